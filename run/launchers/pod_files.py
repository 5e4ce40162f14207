"""Files of this machine that go along into the pods, as a ConfigMap."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from provision.errors import SettingsError
from run.job import TrainJob

FILES_FOLDER = "/clusterctl/files"
MOST_FILES_KIB = 900
"""A ConfigMap holds 1 MiB, coded."""


def file_items(job: TrainJob) -> Iterator[Mapping[str, str]]:
    """A ConfigMap's keys have no slash: each file's number, and where it goes."""
    for number, path in enumerate(job.uploads):
        yield {"key": f"f{number}", "path": path}


def file_manifest(job: TrainJob, metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The files of this machine that the job needs, as a ConfigMap; None without any."""
    if job.head_uploads:
        raise SettingsError("a checkpoint of this machine does not go into pods; lay it on the volume")
    if not job.uploads:
        return None
    _refuse_too_much(job.uploads)
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for item, source in zip(file_items(job), job.uploads.values(), strict=True):
        content = source.read_bytes()
        try:
            text[item["key"]] = content.decode()
        except UnicodeDecodeError:
            binary[item["key"]] = base64.b64encode(content).decode()
    contents = {**({"data": text} if text else {}), **({"binaryData": binary} if binary else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, **contents}


def _refuse_too_much(uploads: Mapping[str, Path]) -> None:
    folders = [path for path, source in uploads.items() if source.is_dir()]
    kib = sum(source.stat().st_size for source in uploads.values() if source.is_file()) / 1024
    if folders or kib > MOST_FILES_KIB:
        largest = folders[0] if folders else max(uploads, key=lambda path: uploads[path].stat().st_size)
        raise SettingsError(
            f"{uploads[largest]} and what else goes along is more than {MOST_FILES_KIB} KiB, and pods get no "
            "more: lay it on the volume and give its path there (a recipe's data as node:/data/FILE), or "
            "into the image"
        )
