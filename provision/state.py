"""The record of each cluster, in a private folder of the operator's machine.

    $XDG_STATE_HOME/clusterctl/NAME/        (0700; ~/.local/state where the variable is not set)
        record.yml      what stands, an Ansible inventory; written before nodes are configured
        facts.json      what was last seen of each node
        log/NODE.log    every command that was run on it, see commandlog.py
        id_ed25519      the key that opens this cluster's nodes
        known_hosts     their pinned host keys
        ssh_config      one Host per node, included from ~/.ssh/config

Every file is written beside its place and renamed, so a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.errors import ClusterctlError, ProviderError, SettingsError
from provision.facts import NodeFacts, parse_facts
from provision.inventory import dump_record, load_record
from provision.model import Cluster


def state_root() -> Path:
    """Where all records lie."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "clusterctl"


def recorded_names() -> tuple[str, ...]:
    """Names of the clusters that have a record, sorted."""
    return tuple(sorted(path.parent.name for path in state_root().glob("*/record.yml")))


def choose_name(wanted: str | None) -> str:
    """The cluster that a command is about: the one named, or the only one there is.

    Raises SettingsError when there is none, or more than one to choose from.
    """
    names = recorded_names()
    if wanted is not None:
        if wanted not in names:
            there = f"there is {', '.join(names)}" if names else "there is none"
            raise SettingsError(f"no cluster {wanted!r} ({there}); run `clusterctl up --name {wanted}` first")
        return wanted
    if not names:
        raise SettingsError("no cluster is up; run `clusterctl up` first")
    if len(names) > 1:
        raise SettingsError(f"there are {len(names)} clusters, say which: --name {' or --name '.join(names)}")
    return names[0]


@dataclass(frozen=True)
class FactText:
    """What facts_script() printed on a node, and the operator's clock at that time."""

    text: str
    gathered_s: float

    def parse(self) -> NodeFacts:
        return parse_facts(self.text, self.gathered_s)


@dataclass(frozen=True)
class ClusterState:
    """The folder of one cluster."""

    name: str

    @property
    def folder(self) -> Path:
        return state_root() / self.name

    @property
    def record(self) -> Path:
        return self.folder / "record.yml"

    @property
    def identity_file(self) -> Path:
        return self.folder / "id_ed25519"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def log(self, node: str) -> Path:
        """Where the commands run on a node are written."""
        return self.folder / "log" / f"{node}.log"

    def prepare(self) -> None:
        """Make the folder, readable by its owner alone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Held by `up` and `down`: two at once on one cluster would undo each other.

        Raises ProviderError at once when another command holds it.
        """
        self.prepare()
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ProviderError(
                    f"another `clusterctl up` or `down` of {self.name} is running; wait for it to end"
                ) from None
            try:
                yield
            finally:
                if not self.record.exists():  # a wrong option, say: nothing stands that needs a folder
                    self.remove()

    def public_key(self) -> str:
        """The public half of the operator's key for this cluster, made on first use."""
        if not self.identity_file.exists():
            self.prepare()
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"clusterctl-{self.name}"]
            subprocess.run([*command, "-f", str(self.identity_file)], check=True, stdin=subprocess.DEVNULL)
        return self.identity_file.with_suffix(".pub").read_text().strip()

    def load(self) -> Cluster | None:
        """The recorded cluster, None when there is no record."""
        return load_record(self.record) if self.record.exists() else None

    def save(self, cluster: Cluster) -> None:
        self.prepare()
        replace_file(self.record, dump_record(cluster))

    def load_facts(self) -> dict[str, NodeFacts]:
        """Facts as last seen; empty when there are none, or they are of another version of clusterctl."""
        try:
            return {name: seen.parse() for name, seen in self.load_fact_texts().items()}
        except (ValueError, ClusterctlError):
            return {}

    def load_fact_texts(self) -> dict[str, FactText]:
        """What facts were last read from; empty when there is nothing to read."""
        try:
            stored = json.loads((self.folder / "facts.json").read_text())
            return {name: FactText(*entry) for name, entry in stored.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def save_facts(self, texts: Mapping[str, FactText]) -> None:
        stored = {name: (seen.text, seen.gathered_s) for name, seen in texts.items()}
        replace_file(self.folder / "facts.json", json.dumps(stored))

    def remove(self) -> None:
        """Forget the cluster. Tolerates absence."""
        shutil.rmtree(self.folder, ignore_errors=True)


def replace_file(path: Path, content: str, mode: int = 0o600) -> None:
    """Write a file at once: whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(content)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
