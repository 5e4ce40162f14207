"""The kinds of stacks: what each is for, its Pythons, and where its own packages come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# PyPI's torch for Linux on x86 is the CUDA build, several GB with its packages; this index has the CPU one.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NONE = "none"
FIRST_PYTHON = "3.11"
SYSTEM_PYTHON = "/usr/bin/python3"  # the one that the nodes have


@dataclass(frozen=True)
class Kind:
    """`pythons` are the first and the last minor version, "" where there is no last yet.

    `stack_index` has the packages that no other index has: an index, a page with links, or a folder; None
    where the stack needs none.
    """

    about: str
    pythons: tuple[str, str] = (FIRST_PYTHON, "")
    stack_index: str | None = None


KINDS: Mapping[str, Kind] = {
    "native": Kind("current torch for CPUs, gloo, transformers 5"),
    "intel": Kind(
        "torch 2.8 with Intel's extension (IPEX) and oneCCL, transformers 4.55",
        ("3.10", "3.13"),
        "https://pytorch-extension.intel.com/release-whl/stable/cpu/us/",
    ),
    "article-2022": Kind(
        "torch, IPEX and oneCCL 1.13, transformers 4.24, as in the Sapphire Rapids article; for own scripts",
        ("3.8", "3.10"),
        "https://developer.intel.com/ipex-whl-stable-cpu",
    ),
}


def span(pythons: tuple[str, str]) -> str:
    """
    >>> span(("3.8", "3.10")), span(("3.11", ""))
    ('3.8 to 3.10', '3.11 or newer')
    """
    first, last = pythons
    return f"{first} to {last}" if last else f"{first} or newer"
