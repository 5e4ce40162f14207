"""Steps that are at home in any folder, each with what stands there before."""

from __future__ import annotations

import getpass
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

from provision.step import Mode, Step, StepResult, converge
from provision.steps import Absent, Block, Command, Directory, Download, Line, Symlink, TextFile
from tests.shell_host import ShellHost, SilentWatcher

ME = getpass.getuser()
APPLY = Mode()
CHECK = Mode(check=True, diff=True)
FSTAB = b"# caf\xe9, not UTF-8\r\nUUID=1 / ext4 defaults 0 1\n\tindented\nlast"


def run(steps, host=None, mode=APPLY) -> list[StepResult]:
    return converge(host or ShellHost(), "test", steps, None, mode, SilentWatcher())


def statuses(results):
    return [result.status for result in results]


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything under the folder: inode, mode, owner, modification time and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        content = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        found[str(path)] = (stat.st_ino, stat.st_mode, stat.st_uid, stat.st_mtime_ns, content)
    return found


def litter(folder: Path) -> list[Path]:
    """What steps write beside their targets and should never leave there."""
    return [path for path in folder.rglob("*") if "clusterctl-" in path.name]


def with_file(folder: Path, content: bytes = FSTAB, mode: int = 0o640) -> str:
    path = folder / "theirs"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def over_another(folder: Path) -> Step:
    return TextFile(with_file(folder), "# ours\nnew\n", ME, "600")


def secret(folder: Path) -> Step:
    return TextFile(with_file(folder), "password\n", ME, "600", secret=True)


def template(folder: Path) -> Step:
    return TextFile.from_template(f"{folder}/new.conf", "server=$server\n", {"server": "10.0.0.9"}, ME)


def link_elsewhere(folder: Path) -> Step:
    (folder / "link").symlink_to("old-target")
    return Symlink(f"{folder}/link", "new target")


def full_folder(folder: Path) -> Step:
    for name in ("gone/a/b", "gone/c"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("x")
    return Absent(f"{folder}/gone")


def dangling_link(folder: Path) -> Step:
    (folder / "gone").symlink_to("nowhere")
    return Absent(f"{folder}/gone")


def download(folder: Path) -> Step:
    (folder / "origin").write_bytes(b"some\0bytes")
    digest = hashlib.sha256(b"some\0bytes").hexdigest()
    return Download(f"file://{folder}/origin", f"{folder}/new/copy", digest.upper(), ME, "600")


CASES: dict[str, Callable[[Path], Step]] = {
    "directory": lambda folder: Directory(f"{folder}/new/deep", ME, "0750"),
    "file": lambda folder: TextFile(f"{folder}/deep/er/new.conf", "# ours\n%s and 'quotes'\n", ME, "0640"),
    "file over another": over_another,
    "secret file": secret,
    "template": template,
    "block": lambda folder: Block(f"{folder}/hosts", "mesh", ("10.0.0.1 n1", "100% $HOME"), ME, "600"),
    "block in a file": lambda folder: Block(with_file(folder), "mesh", ("a",), at_start=True),
    "no block": lambda folder: Block(
        with_file(folder, b"x\n# >>> clusterctl mesh >>> managed, do not edit\n# <<< clusterctl mesh <<<\ny"),
        "mesh", (), present=False,
    ),
    "line": lambda folder: Line(f"{folder}/new", "a % b", owner=ME),
    "line in a file": lambda folder: Line(with_file(folder), "UUID=2 / ext4", "^UUID=.* / "),
    "no line": lambda folder: Line(with_file(folder), "last", present=False),
    "link": lambda folder: Symlink(f"{folder}/deep/link", "../target"),
    "link elsewhere": link_elsewhere,
    "no folder": full_folder,
    "no file": lambda folder: Absent(with_file(folder)),
    "no dangling link": dangling_link,
    "download": download,
    "command": lambda folder: Command("make", f"touch {folder}/made", creates=f"{folder}/made"),
    "command unless": lambda folder: Command(
        "fill", f"cd {folder}; touch clusterctl-x; mv clusterctl-x made", unless=f"[ -e {folder}/made ]"
    ),
}  # fmt: skip


def wheel(folder: Path, name: str, version: str) -> None:
    """A wheel without content, for pip to install."""
    info = f"{name}-{version}.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
