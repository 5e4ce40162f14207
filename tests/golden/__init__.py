"""Texts compared whole with a file here. UPDATE_GOLDEN=1 writes them anew: read the diff before a commit."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent


def assert_golden(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"differs from {path}; UPDATE_GOLDEN=1 writes it anew"
