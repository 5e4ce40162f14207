"""What a run folder is filled with: small files in one tar, large ones only where a node has not seen them.

Every node keeps large files by their SHA-256 in ~/.clusterctl/files, as long as a run has asked for them in
the last 30 days. A model of 90 MB, or somebody's data, so travels once and not before each run.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from run.job import LaunchPlan

LARGE_BYTES = 1 << 18
"""From this size on a file is asked for before it is sent: a round trip costs what some 100 kB do."""


@dataclass(frozen=True)
class Parcel:
    """`texts` and `files` are path in the run folder -> content or file; `large` path -> SHA-256."""

    texts: Mapping[str, str]
    files: Mapping[str, Path]
    large: Mapping[str, str]
    _packed: dict[frozenset[str], bytes] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(self.large.values())

    def packed(self, missing: Collection[str]) -> bytes:
        """tar.gz of all but the large files that a node has. Raises OSError when one cannot be read.

        Large ones lie in `.large/` under their digest; `.large/paths` says with "digest path" where they go.
        """
        with self._lock:  # most nodes lack the same ones
            key = frozenset(missing)
            if key not in self._packed:
                self._packed[key] = self._pack(key)
            return self._packed[key]

    def _pack(self, missing: Collection[str]) -> bytes:
        buffer = io.BytesIO()
        places = "".join(f"{digest} {path}\n" for path, digest in self.large.items())
        first = {digest: self.files[path] for path, digest in self.large.items() if digest in missing}
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
            for path, text in {**self.texts, ".large/paths": places}.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(text.encode()), 0o755 if text.startswith("#!") else 0o644
                archive.addfile(entry, io.BytesIO(text.encode()))
            for path, source in self.files.items():
                if path not in self.large:
                    archive.add(source.resolve(), path, filter=_plain)
            for digest, source in first.items():
                archive.add(source.resolve(), f".large/{digest}", filter=_plain)
        return buffer.getvalue()


def parcel(plan: LaunchPlan) -> Parcel:
    """What every node is to be sent. Raises OSError when an upload cannot be read."""
    return _parcel(plan.files, plan.uploads)


def head_parcel(plan: LaunchPlan) -> Parcel:
    """What the head gets besides. Raises OSError as parcel() does."""
    return _parcel({}, plan.head_uploads)


def _parcel(texts: Mapping[str, str], uploads: Mapping[str, Path]) -> Parcel:
    files = {path: file for target, source in uploads.items() for path, file in _files(target, source)}
    large = {path: _digest(file) for path, file in files.items() if file.stat().st_size >= LARGE_BYTES}
    return Parcel(texts, files, large)


def _files(target: str, source: Path) -> Iterator[tuple[str, Path]]:
    """The file, or all in the folder but Python's caches, with their paths in the run folder."""
    if not source.is_dir():
        yield target, source
        return
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{target}/{path.relative_to(source)}", path


def _digest(file: Path) -> str:
    sha256 = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(1 << 20):
            sha256.update(chunk)
    return sha256.hexdigest()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry without this machine's user."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
