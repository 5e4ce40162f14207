"""Listen to what oneDNN and MKL say for a while, without losing anything else that the process prints.

Runs on nodes, under a stack's Python, beside a copy of onednn.py.

Both libraries write to the C library's stdout, which is descriptor 1. While they are listened to, that is a
temporary file, and Python's own output goes where it always did; what else came by descriptor 1 follows when
it is over.
"""

# mypy: disable-error-code="import-not-found"
# The operator's side has no torch.

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

from onednn import is_verbose

TEXT_LIMIT = 64 << 20  # of lines that are read; a few steps of any model stay far below


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """The libraries' lines, in a list that is filled when the block ends."""
    lines: list[str] = []
    with tempfile.TemporaryFile() as file:
        with _redirected(file), _verbose():
            yield lines
        file.seek(0)
        rest = b""
        for line in file.read(TEXT_LIMIT).splitlines(keepends=True):
            text = line.decode(errors="replace")
            if is_verbose(text):
                lines.append(text)
            else:
                rest += line
        sys.stdout.flush()
        while rest:
            rest = rest[os.write(1, rest) :]


@contextlib.contextmanager
def _redirected(file: IO[bytes]) -> Iterator[None]:
    """Descriptor 1 is the file; sys.stdout goes on as before."""
    _flush()
    before, python = os.dup(1), sys.stdout
    os.dup2(file.fileno(), 1)
    sys.stdout = os.fdopen(os.dup(before), "w", buffering=1, encoding="utf-8", errors="replace")
    try:
        yield
    finally:
        _flush()
        os.dup2(before, 1)
        os.close(before)
        sys.stdout.close()
        sys.stdout = python


def _flush() -> None:
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)


@contextlib.contextmanager
def _verbose() -> Iterator[None]:
    """Both libraries tell each call; one that this torch was built without stays silent."""
    from torch.backends import mkl, mkldnn

    with contextlib.ExitStack() as stack:
        for library in (mkldnn, mkl):
            if library.is_available() and hasattr(library, "verbose"):
                stack.enter_context(library.verbose(library.VERBOSE_ON))
        yield


def bf16_units() -> tuple[str, ...]:
    """What this CPU multiplies bf16 by, the fastest first, as torch sees it.

    torch.cpu.get_capabilities came with 2.10 or so; before it there were single private questions.
    """
    import torch

    if hasattr(torch.cpu, "get_capabilities"):
        found = torch.cpu.get_capabilities()
        have = (bool(found.get("amx_bf16")), bool(found.get("avx512_bf16")))
    else:
        have = (torch.cpu._is_amx_tile_supported(), torch.cpu._is_avx512_bf16_supported())
    return tuple(name for name, there in zip(("amx", "avx512_bf16"), have, strict=True) if there)
