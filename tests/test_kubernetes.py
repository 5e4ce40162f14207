"""Manifests for Kubernetes: compared whole, held against the published schemas, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from provision.errors import SettingsError
from run.commands.settings import read_settings
from run.kube import explain
from run.launchers.kubernetes import manifests, render
from run.launchers.pod import job_name
from run.launchers.pod_settings import KubernetesSettings
from run.pods import Pod, parse_job, parse_pods
from tests.golden import assert_golden
from tests.kubernetes_cases import FULL, SMALL, own_job, recipe_job

SCHEMAS = Path(__file__).parent / "recorded" / "kubernetes"


def container(made: Mapping[str, Any]) -> Any:
    return made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]


def environment(made: Mapping[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in container(made)["env"]}


def the_job(settings: KubernetesSettings, kind: str = "pytorchjob") -> Mapping[str, Any]:
    return manifests(recipe_job(), settings, kind)[-1]


# --- what is made ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_manifest_of_the_guides_job(kind: str) -> None:
    assert_golden(f"kubernetes-{kind}.yaml", render(manifests(recipe_job(), FULL, kind)))


def test_manifest_of_a_script_with_files_beside_it(tmp_path: Path) -> None:
    elastic = replace(SMALL, nodes=2, min_nodes=1, max_nodes=4, restarts=3, host_network=True)
    assert_golden("kubernetes-own.yaml", render(manifests(own_job(tmp_path), elastic)))


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
@pytest.mark.parametrize("settings", [SMALL, FULL, replace(FULL, user_id=None, preload=())])
def test_manifests_hold_against_the_published_schema(
    kind: str, settings: KubernetesSettings, tmp_path: Path
) -> None:
    for made in (*manifests(recipe_job(), settings, kind), *manifests(own_job(tmp_path), settings, kind)):
        schema = json.loads((SCHEMAS / f"{made['kind'].lower()}.json").read_text())
        jsonschema.Draft202012Validator(schema).validate(made)


def test_the_schema_finds_a_field_that_does_not_exist() -> None:
    made = json.loads(json.dumps(the_job(FULL)))
    made["spec"]["elasticPolicy"]["maxRestart"] = 3
    schema = json.loads((SCHEMAS / "pytorchjob.json").read_text())
    with pytest.raises(jsonschema.ValidationError, match="maxRestart"):
        jsonschema.Draft202012Validator(schema).validate(made)


def test_yaml_reads_back_as_it_was_made() -> None:
    made = manifests(recipe_job(), FULL)
    assert list(yaml.safe_load_all(render(made))) == json.loads(json.dumps(made))


def test_requests_equal_limits_so_that_cores_are_given_whole() -> None:
    resources = container(the_job(FULL))["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "240", "memory": "128Gi"}


def test_threads_follow_from_the_cpus_of_a_pod() -> None:
    assert environment(the_job(replace(SMALL, cpu=56, ppn=2)))["OMP_NUM_THREADS"] == "28"
    assert environment(the_job(replace(SMALL, cpu=56, threads=27)))["OMP_NUM_THREADS"] == "27"


def test_a_dollar_of_the_users_is_not_expanded() -> None:
    assert environment(the_job(FULL))["PROMPT"] == "costs $$(HOME)"
    job = replace(recipe_job(), script_args=("--note", "$(POD)"))
    assert "$$(POD)" in container(manifests(job, SMALL)[-1])["command"]


def test_the_model_goes_to_the_volume_where_there_is_one() -> None:
    name = job_name(recipe_job().run_id)
    assert container(the_job(FULL))["command"][-1] == f"/tmp/pvc-mount/{name}/output"
    assert container(the_job(SMALL))["command"][-1] == "output"


def test_one_failure_ends_a_job_that_may_not_begin_anew() -> None:
    worker = the_job(SMALL)["spec"]["pytorchReplicaSpecs"]["Worker"]
    again = the_job(FULL)["spec"]
    assert worker["restartPolicy"] == "Never"
    assert again["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"
    assert again["runPolicy"]["backoffLimit"] == 10


@pytest.mark.parametrize("program", ["run_qa", "a-script-with-a-name-that-goes-on-and-on-and"])
def test_a_jobs_name_is_one_that_both_operators_take(program: str) -> None:
    name = job_name(f"20261121-101500-{program}-ab12")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert name.endswith("-ab12")
    assert len(f"{name}-node-0-999-abcde") <= 63


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"min_nodes": 4, "max_nodes": 2}, "4:2 nodes, beginning with 2, is no range"),
        ({"min_nodes": 3, "max_nodes": 4}, "3:4 nodes, beginning with 2, is no range"),
        ({"nodes": 0}, "count from 1"),
        ({"ppn": 5}, "5 ranks in a pod need 5 CPUs, it has 4; lower --ppn"),
        ({"threads": 5}, "1 ranks x 5 threads need 5 CPUs, a pod has 4"),
        ({"memory_gib": 1}, "/dev/shm of 1 GiB is part of the pod's 1 GiB"),
        ({"image": ""}, "no image for the pods; `clusterctl image`"),
        ({"namespace": "My Team"}, "namespace 'My Team' is no name of Kubernetes"),
        ({"volume": "-x"}, "volume '-x' is no name"),
        ({"mount": "data"}, "cannot be mounted at data"),
        (
            {"environment": {"HF_TOKEN": "x"}},
            "HF_TOKEN looks like a secret.*--set secrets.HF_TOKEN=SECRET/KEY",
        ),
        ({"environment": {"AWS_ACCESS_KEY_ID": "x"}}, "looks like a secret"),
        ({"environment": {"WORLD_SIZE": "2"}}, "WORLD_SIZE is set by the operator"),
        ({"secrets": {"HF_TOKEN": "hub"}}, "give the Secret's name and its key"),
    ],
)
def test_settings_that_no_cluster_takes_are_refused(change: Mapping[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        the_job(replace(SMALL, **change))


def test_what_a_trainjob_cannot_do_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"not elastic.*--kind pytorchjob"):
        the_job(replace(SMALL, max_nodes=4), "trainjob")
    with pytest.raises(SettingsError, match="host's network"):
        the_job(replace(SMALL, host_network=True), "trainjob")
    with pytest.raises(SettingsError, match="no kind 'mpijob'"):
        the_job(SMALL, "mpijob")


def test_words_like_tokenizer_are_no_secrets() -> None:
    the_job(replace(SMALL, environment={"TOKENIZERS_PARALLELISM": "false"}))
    job = replace(recipe_job(), script_args=("--tokenizer_name", "x", "--max_new_tokens", "3"))
    manifests(job, SMALL)


def test_a_secret_among_the_arguments_is_refused() -> None:
    job = replace(recipe_job(), script_args=("--hub_token=abc",))
    with pytest.raises(SettingsError, match="--hub_token would stand in the job") as caught:
        manifests(job, SMALL)
    assert "abc" not in str(caught.value)


def test_files_that_are_too_large_are_refused(tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(bytes(1 << 20))
    job = replace(recipe_job(), uploads={"data/train_file/big.bin": tmp_path / "big.bin"})
    with pytest.raises(SettingsError, match=r"big.bin and what else .* lay it on the volume"):
        manifests(job, SMALL)


def test_the_settings_in_the_docs_are_settings(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "kubernetes.md").read_text()
    (tmp_path / "pods.yml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    found = read_settings(
        KubernetesSettings, tmp_path / "pods.yml", ["cpu=8", "environment.A=b"], {"nodes": 4}
    )
    assert (found.cpu, found.nodes, found.memory_gib) == (8, 4, 128)
    assert found.environment == {"HF_HUB_OFFLINE": "1", "A": "b"}
    manifests(recipe_job(), found)


# --- what kubectl says -------------------------------------------------------------------------


def pods_of(*statuses: Mapping[str, Any]) -> tuple[Pod, ...]:
    items = [
        {"metadata": {"name": f"t-worker-{number}"}, "spec": {"nodeName": f"node{number}"}, "status": status}
        for number, status in enumerate(statuses)
    ]
    return parse_pods(json.dumps({"items": items}))


def waiting(reason: str) -> Mapping[str, Any]:
    state = {"waiting": {"reason": reason, "message": "no such\n manifest."}}
    return {"phase": "Pending", "containerStatuses": [{"state": state, "restartCount": 0}]}


def ended(code: int, reason: str = "Error") -> Mapping[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {"phase": "Failed", "containerStatuses": [{"state": state, "restartCount": 1}]}


def test_the_first_failed_pull_may_pass_and_the_back_off_does_not() -> None:
    first, later = pods_of(waiting("ErrImagePull"), waiting("ImagePullBackOff"))
    assert not first.cannot_start
    assert later.cannot_start
    assert "its image cannot be pulled (ImagePullBackOff): no such manifest; push it" in later.trouble()


def test_a_pod_that_no_node_takes_says_why() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "3 nodes."}
    (pod,) = pods_of({"phase": "Pending", "conditions": [condition]})
    assert pod.trouble().startswith("pod t-worker-0: no node of the cluster takes it: 3 nodes; ask for less")


def test_ends_of_pods_are_told_apart() -> None:
    killed, failed = pods_of(ended(137, "OOMKilled"), ended(3))
    assert (
        killed.trouble()
        == "pod t-worker-0 on node0 took more memory than it may; give more: --set memory_gib=N"
    )
    assert failed.trouble() == "pod t-worker-1 on node1 ended with exit code 3"
    assert failed.started == 2


def test_an_eviction_is_told() -> None:
    (pod,) = pods_of({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."})
    assert pod.trouble() == "pod t-worker-0 on node0 was taken away (Evicted): The node was low on memory"


def test_pods_come_in_the_order_of_their_numbers() -> None:
    names = [pod.name for pod in pods_of(*({"phase": "Pending"} for _ in range(11)))]
    assert names[1:3] == ["t-worker-1", "t-worker-2"]
    assert names[-1] == "t-worker-10"


def test_a_jobs_end_outweighs_what_came_later() -> None:
    conditions = [
        {"type": "Created", "status": "True"},
        {"type": "Failed", "status": "True", "message": "BackoffLimitExceeded"},
        {"type": "Restarting", "status": "True"},
        {"type": "Running", "status": "False"},
    ]
    state = parse_job(json.dumps({"status": {"conditions": conditions}}))
    assert (state.has_failed, state.message) == (True, "BackoffLimitExceeded")
    assert parse_job("{}").condition == ""


def test_what_is_not_known_is_told_in_kubectls_own_words() -> None:
    assert explain("warning\nerror: a new one\n") == "kubectl: error: a new one"
    assert explain("") == "kubectl ended badly and said nothing"
