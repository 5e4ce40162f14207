"""The image that pods and containers run from: a stack's lock, rank.py and the recipes. Pure but for writing.

1. torch comes from PyTorch's own index of CPU builds: PyPI's for x86 is the CUDA one, several GB.
2. Only tcmalloc comes from Debian. sshd is not needed: torchrun's agents meet over TCP, nobody logs in.
3. libiomp5 is PyPI's intel-openmp, for x86 alone; without it the preload of that path would be refused by the
   loader with a line for every process, so elsewhere the path is a link to tcmalloc.
4. The user has a number, since Kubernetes cannot know that a name is not root's.
5. `speed` lies in lib, as on nodes: rank.py puts that on the Python path of every program.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from provision.errors import SettingsError
from provision.stacks import Stack
from provision.stacks.kinds import NONE
from run.job import RECIPES_FOLDER, SPEED_FOLDER
from run.launchers.pod_settings import IOMP, TCMALLOC, USER_ID, WORKSPACE

BASE = "python:{python}-slim-bookworm"
PYTHON = "3.12"
"""Where the stack allows it."""
INTEL_OPENMP = "intel-openmp==2025.3.3"

_DOCKERFILE = """\
# The stack {stack} with clusterctl's rank.py and recipes; made by `clusterctl image`.
FROM {base}

RUN apt-get update \\
 && apt-get install -y --no-install-recommends libtcmalloc-minimal4 \\
 && rm -rf /var/lib/apt/lists/*

{own}{torch}
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --no-deps -r /tmp/requirements.txt \\
 {packages}&& rm /tmp/requirements.txt

# What LD_PRELOAD names, at paths that are the same on every architecture.
RUN mkdir -p {libraries} \\
 && ln -s "$(ls /usr/lib/*/libtcmalloc_minimal.so.4)" {tcmalloc} \\
 && if [ "$(uname -m)" = x86_64 ]; then \\
      pip install --no-cache-dir --no-deps {openmp} \\
      && ln -s /usr/local/lib/libiomp5.so {iomp}; \\
    else ln -s {tcmalloc} {iomp}; fi

RUN useradd --uid {user} --create-home clusterctl \\
 && mkdir {workspace} \\
 && chown {user}:{user} {workspace}
COPY --chown={user}:{user} rank.py {workspace}/rank.py
COPY --chown={user}:{user} recipe {workspace}/recipe
COPY --chown={user}:{user} lib {workspace}/lib

ENV PYTHONUNBUFFERED=1
USER {user}
WORKDIR {workspace}
"""


_TORCH = """\
# The CPU build; PyPI's for x86 is the CUDA one.
ARG TORCH_INDEX={index}
RUN pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX" {line}
"""
_OWN = """\
# On no index but the stack's own.
ARG STACK_INDEX={index}
RUN pip install --no-cache-dir --no-deps --index-url "$STACK_INDEX" --find-links "$STACK_INDEX" {lines}

"""


def dockerfile(stack: Stack) -> str:
    """The Dockerfile of an image with exactly the stack's locked versions.

    Raises SettingsError where the stack's own packages come from a folder, which a build does not see.
    """
    return _DOCKERFILE.format(
        stack=stack.name,
        base=BASE.format(python=image_python(stack)),
        own=_own_packages(stack),
        torch=_torch_install(stack),
        packages=_packages(stack),
        libraries=Path(TCMALLOC).parent,
        tcmalloc=TCMALLOC,
        iomp=IOMP,
        openmp=_openmp(stack),
        user=USER_ID,
        workspace=WORKSPACE,
    )


def image_python(stack: Stack) -> str:
    """PYTHON, or the stack's last where that is older.

    >>> image_python(Stack("article-2022", "", pythons=("3.8", "3.10")))
    '3.10'
    """
    last = stack.pythons[1] or PYTHON
    return min(last, PYTHON, key=lambda python: [int(part) for part in python.split(".")])


def _own_packages(stack: Stack) -> str:
    if not stack.own_lines:
        return ""
    if "://" not in stack.stack_index:
        raise SettingsError(
            f"stack {stack.kind}: its own packages are in the folder {stack.stack_index}, which the build of "
            "an image does not see; name an index on the network, or none to build without"
        )
    return _OWN.format(index=stack.stack_index, lines=shlex.join(stack.own_lines))


def _torch_install(stack: Stack) -> str:
    """Without an index of its own, torch comes with all that it needs from where the rest does."""
    if stack.torch_index == NONE:
        return f"RUN pip install --no-cache-dir {_torch(stack)}\n"
    return _TORCH.format(index=stack.torch_index, line=_torch(stack))


def _packages(stack: Stack) -> str:
    """The user's own, after what is locked, which stays as it is."""
    if not stack.packages:
        return ""
    return f"&& pip install --no-cache-dir -c /tmp/requirements.txt {shlex.join(stack.packages)} \\\n "


def _openmp(stack: Stack) -> str:
    version = stack.versions.get("intel-openmp")
    return f"intel-openmp=={version}" if version else INTEL_OPENMP


def image_context(stack: Stack) -> Mapping[str, str]:
    """The build context: path -> text."""
    here = Path(__file__).parents[1]
    folders = {"recipe": RECIPES_FOLDER, "lib/speed": SPEED_FOLDER}
    code = {
        f"{name}/{path.relative_to(folder)}": path.read_text()
        for name, folder in folders.items()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".json")  # the sample questions are JSON
    }
    return {
        "Dockerfile": dockerfile(stack),
        "requirements.txt": "".join(f"{line}\n" for line in _requirements(stack)),
        "rank.py": (here / "rank.py").read_text(),
        **code,
    }


def write_context(folder: Path, context: Mapping[str, str]) -> None:
    """Write the files that are not there as they should be.

    Raises SettingsError, and writes nothing, when another file is in the way of one of them.
    """
    for path, text in context.items():
        there = folder / path
        if there.exists() and (not there.is_file() or there.read_text(errors="replace") != text):
            raise SettingsError(f"{there} is there and differs, nothing was written; choose another --output")
    for path, text in context.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def image_name(stack: Stack) -> str:
    """
    >>> image_name(Stack("native", ""))
    'clusterctl:native-e3b0c44298fc'
    """
    return f"clusterctl:{stack.name}"


def build_command(engine: str, name: str, folder: Path) -> str:
    """The line that builds it."""
    return shlex.join([engine, "build", "--tag", name, str(folder)])


def _locked(stack: Stack) -> list[str]:
    return [line for line in stack.lock.splitlines() if line.strip()]


def _requirements(stack: Stack) -> list[str]:
    """What is left once torch and the stack's own packages are there."""
    return [line for line in _locked(stack) if line != _torch(stack) and line not in stack.own_lines]


def _torch(stack: Stack) -> str:
    return next((line for line in _locked(stack) if line.startswith("torch==")), "torch")
