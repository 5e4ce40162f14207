"""Record what Kubeflow publishes of its two kinds of job, cut down to what our manifests touch.

    pip install kubeflow-trainer-api==2.3.0 kubeflow-training==1.9.4 && python -m tests.record_schemas

Both packages are the Kubeflow authors' own, made from the types that their CRDs are made from, under the
Apache licence 2.0. Kept of them: the name of every field of each object that our manifests have, and the
types of those that they use; no descriptions. So a field that does not exist is found, and one that is new to
our manifests wants recording.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from run.launchers.kubernetes import manifests
from tests.kubernetes_cases import FULL, own_job

FOLDER = Path(__file__).parent / "recorded" / "kubernetes"
PLAIN = {"int": "integer", "str": "string", "bool": "boolean", "float": "number", "datetime": "string"}
Schema = dict[str, Any]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = own_job(Path(folder))
        config, pytorch = manifests(job, replace(FULL, max_nodes=8, host_network=True), "pytorchjob")
        train = manifests(job, FULL, "trainjob")[-1]
    published = import_module("kubeflow_trainer_api.models").TrainerV1alpha1TrainJob.model_json_schema(
        by_alias=True
    )
    write("trainjob", "kubeflow-trainer-api 2.3.0", from_json(published, published["$defs"], train))
    write("pytorchjob", "kubeflow-training 1.9.4", from_types("KubeflowOrgV1PyTorchJob", pytorch))
    write("configmap", "kubernetes, the Python client", from_types("V1ConfigMap", config))


def write(name: str, source: str, schema: Schema) -> None:
    about = f"Cut down from {source} (PyPI, Apache-2.0) by tests/record_schemas.py"
    (FOLDER / f"{name}.json").write_text(json.dumps({"$comment": about, **schema}, indent=1) + "\n")


def an_object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def merged(items: Any) -> Any:
    """One example that has the keys of all."""
    if items and isinstance(items[0], dict):
        return {key: value for item in items for key, value in item.items()}
    return items[0] if items else None


def from_json(schema: Schema, defs: Schema, example: Any) -> Schema:
    """The part of a JSON schema that the example touches."""
    if "$ref" in schema:
        return from_json(defs[schema["$ref"].rpartition("/")[2]], defs, example)
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
        return from_json(kinds[0], defs, example) if len(kinds) == 1 else {}
    if "actual_instance" in schema.get("properties", {}):  # a quantity: a number or a text
        return {"type": ["string", "number"]}
    if "properties" in schema:
        found = {
            name: from_json(kind, defs, example[name]) if name in example else {}
            for name, kind in sorted(schema["properties"].items())
        }
        required = [name for name in schema.get("required", []) if name in example]
        return {**an_object(found), **({"required": required} if required else {})}
    if schema.get("type") == "array":
        return {"type": "array", "items": from_json(schema["items"], defs, merged(example))}
    if isinstance(schema.get("additionalProperties"), dict):
        value = from_json(schema["additionalProperties"], defs, merged([*example.values()]))
        return {"type": "object", "additionalProperties": value}
    return {"type": schema["type"]} if "type" in schema else {}


def from_types(kind: str, example: Any) -> Schema:
    """The same of a class that OpenAPI's older generator made: types by name."""
    listed = re.fullmatch(r"list\[(.*)\]", kind)
    if listed:
        return {"type": "array", "items": from_types(listed[1], merged(example))}
    mapped = re.fullmatch(r"dict\(str, (.*)\)", kind)
    if mapped:
        return {"type": "object", "additionalProperties": from_types(mapped[1], merged([*example.values()]))}
    if kind in PLAIN or kind == "object":
        return {"type": PLAIN[kind]} if kind in PLAIN else {}
    models = import_module("kubeflow.training.models" if kind.startswith("Kubeflow") else "kubernetes.client")
    model = getattr(models, kind)
    names = {json_name: name for name, json_name in model.attribute_map.items()}
    return an_object(
        {
            json_name: from_types(model.openapi_types[name], example[json_name])
            if json_name in example
            else {}
            for json_name, name in sorted(names.items())
        }
    )


if __name__ == "__main__":
    main()
