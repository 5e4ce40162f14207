"""Stacks built on this machine by a real pip, from wheels made here: what only their own index has."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from provision import stacks
from provision.errors import ProviderError
from provision.facts import MANIFEST
from provision.stacks import Stack, build_here, look_order, look_script
from provision.stacks.kinds import SYSTEM_PYTHON, TORCH_CPU_INDEX
from provision.stacks.versions import CCL

OWN = "oneccl_bind_pt==2.8.0+cpu"
# Stands in for Intel's package: fails unless it was told where its libraries lie, as the real one does.
SETVARS = 'export LD_LIBRARY_PATH="$(dirname "${BASH_SOURCE[0]}")/../lib:$LD_LIBRARY_PATH"\n'
BINDINGS = """import os
if "oneccl_bindings_for_pytorch/env/../lib" not in os.environ.get("LD_LIBRARY_PATH", ""):
    raise ImportError("libccl.so.1: cannot open shared object file")
__version__ = "2.8.0+cpu"
"""


def wheel(folder, name, version, files, needs=""):
    """A wheel of those files; its path."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    texts = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*texts, f"{about}/RECORD"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file, text in (*texts.items(), (f"{about}/RECORD", record)):
            archive.writestr(file, text)
    path.write_bytes(buffer.getvalue())
    return path


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A stack of stand-ins, half of them from a folder that is its own index."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "own").mkdir()
    torch = wheel(tmp_path / "wheels", "torch", "2.8.0", {"torch.py": "__version__ = '2.8.0'\n"})
    package = "oneccl_bindings_for_pytorch"
    files = {f"{package}/__init__.py": BINDINGS, f"{package}/env/setvars.sh": SETVARS}
    wheel(tmp_path / "own", "oneccl_bind_pt", "2.8.0+cpu", files)
    lock = f"torch==2.8.0\n{OWN}\nabsent==1.0 ; python_full_version < '3.0'\n"
    monkeypatch.setenv("PIP_FIND_LINKS", str(torch.parent))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    own = str(tmp_path / "own")
    return Stack("tiny", lock, "none", own, (OWN,), pythons=("3.8", ""))


def looked(folder, stack):
    """What the stack's own Python says of it."""
    argv = [folder / stack.name / "bin" / "python", "-c", look_script()]
    return json.loads(subprocess.run(argv, input=look_order(stack), capture_output=True, check=True).stdout)


def test_a_stack_takes_from_its_own_index_what_no_other_has(tiny, tmp_path):
    said = []
    build_here(tiny, tmp_path / "store", said.append)
    found = looked(tmp_path / "store", tiny)

    assert f"installing {OWN} from {tiny.stack_index}" in said
    assert found["problems"] == []
    assert found["versions"][CCL] == "2.8.0+cpu"
    # Imported, and with its setvars.sh sourced: without, it says that its library is not there.
    assert found["imports"]["torch"]["version"] == "2.8.0"
    assert found["imports"]["oneccl_bindings_for_pytorch"]["version"] == "2.8.0+cpu"

    packages = next((tmp_path / "store" / tiny.name / "lib").glob("python3*/site-packages"))
    (packages / "torch-2.8.0.dist-info").rename(packages / "torch-2.7.0.dist-info")
    metadata = packages / "torch-2.7.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("2.8.0", "2.7.0"))
    (packages / "oneccl_bindings_for_pytorch" / "env" / "setvars.sh").unlink()
    (packages / "later-1.0.dist-info").mkdir()
    (packages / "later-1.0.dist-info" / "METADATA").write_text("Name: later\nVersion: 1.0\n")
    found = looked(tmp_path / "store", tiny)
    assert found["problems"] == ["torch 2.7.0, wanted 2.8.0", "later 1.0, wanted none"]
    error = found["imports"]["oneccl_bindings_for_pytorch"]["error"]
    assert error == "ImportError: libccl.so.1: cannot open shared object file"


def test_a_scripts_packages_come_with_what_they_need_and_change_nothing_that_is_locked(tiny, tmp_path):
    wheels = tmp_path / "wheels"
    wheel(wheels, "torch", "2.9.0", {"torch.py": "__version__ = '2.9.0'\n"})
    wheel(wheels, "needed", "1.0", {"needed.py": ""})
    wheel(wheels, "mine", "1.5", {"mine.py": ""}, "Requires-Dist: needed\nRequires-Dist: torch>=2\n")
    wheel(wheels, "newer", "1.0", {"newer.py": ""}, "Requires-Dist: torch>=2.9\n")
    said = []
    stack = replace(tiny, packages=("mine",))
    build_here(stack, tmp_path / "store", said.append)
    found = looked(tmp_path / "store", stack)

    assert "installing mine and what that needs" in said
    assert found["problems"] == []
    assert {"mine": "1.5", "needed": "1.0", "torch": "2.8.0"}.items() <= found["versions"].items()

    for package, told in (("newer", "newer 1.0|conflicting"), ("nowhere", "requirement nowhere")):
        with pytest.raises(ProviderError, match=rf"({told}).*; see `packages` in the inventory"):
            build_here(replace(tiny, packages=(package,)), tmp_path / "store", said.append)


def test_an_index_without_the_package_is_named_with_its_setting(tiny, tmp_path):
    broken = replace(tiny, stack_index=str(tmp_path / "nowhere"))
    with pytest.raises(ProviderError) as raised:
        build_here(broken, tmp_path / "store", lambda line: None)
    said = str(raised.value)
    assert f"{OWN} cannot be had from {tmp_path}/nowhere: name an index or a folder" in said
    assert "stack_index: none to build without" in said
    assert "\n" not in said
    assert not (tmp_path / "store" / tiny.name / MANIFEST).exists()


def test_a_torch_that_no_index_has_is_named_with_its_setting(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    other = replace(tiny, lock="torch==2.8.0\n", own_lines=(), torch_index=TORCH_CPU_INDEX)
    with pytest.raises(ProviderError, match=rf"torch==2\.8\.0.*torch_index .* {TORCH_CPU_INDEX}"):
        build_here(other, tmp_path / "store", lambda line: None)


def test_a_python_of_another_time_is_refused_in_one_line(tiny, tmp_path):
    old = replace(tiny, pythons=("3.7", "3.8"))
    with pytest.raises(ProviderError, match=r"stack tiny needs Python 3\.7 to 3\.8, .* is here"):
        build_here(old, tmp_path / "store", lambda line: None)


def test_the_build_and_the_look_need_no_newer_python_than_the_oldest_stack():
    """They are parsed by the node's own Python, 3.8 at the oldest."""
    for script in ("build.py", "look.py"):
        check = "import ast, sys; ast.parse(sys.stdin.read(), feature_version=(3, 8))"
        path = Path(stacks.__file__).with_name(script)
        subprocess.run([SYSTEM_PYTHON, "-c", check], input=path.read_bytes(), check=True)
