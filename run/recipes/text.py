"""Plain text on disk as blocks of lines: nothing is read but what is asked for, and nothing twice.

Needs nothing but Python. A line belongs to the block in which it begins, so blocks can be read in any order,
by any process, without having seen what stands before them.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import re
import socket
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, islice
from pathlib import Path
from typing import IO

SMALLEST_BLOCK, LARGEST_BLOCK = 16 << 10, 128 << 10
BLOCKS_WANTED = 256
REACH = 1 << 20
"""How far a block follows a line that begins in it. Bounds memory where a text has no line ends at all."""
ROUND_S = 2.0
PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
JSON_LINES = (".jsonl", ".ndjson", ".json")
HEAD_BYTES = 4096


class TextError(Exception):
    """A text that cannot be used. One line: which, why, what next."""


# --- which files -------------------------------------------------------------------------------


def find_files(named: Sequence[str]) -> list[Path]:
    """The files among the paths, and those in the folders among them (subfolders too, hidden ones left out).

    Each comes once, a folder's in alphabetical order. Raises TextError for a path where there is none.
    """
    return list(dict.fromkeys(file for one in named for file in files_at(Path(one).expanduser())))


def files_at(path: Path) -> list[Path]:
    if not path.is_dir():
        if path.exists():
            return [path]
        raise TextError(f"{path}: No such file or directory; give text files, or folders of them")
    inside = sorted(path.rglob("*"))
    found = [file for file in inside if file.is_file() and not hidden(file.relative_to(path))]
    if not found:
        raise TextError(f"{path}: no file in this folder; give text files, or folders of them")
    return found


def hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def is_plain(path: Path) -> bool:
    return path.suffix not in PACKED and path.suffix not in JSON_LINES


def identify(path: Path, with_time: bool) -> str:
    """What tells a file from another without reading it: name, size, first bytes, and time of change.

    The time tells an edited file from what it was; copies of a file on several nodes may differ in it.
    """
    about = path.stat()
    return f"{path.name} {about.st_size} {zlib.crc32(head(path))} {about.st_mtime_ns if with_time else ''}"


def head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def require_text(path: Path) -> None:
    """Raises TextError for a file that does not begin as text does; what comes later is not looked at."""
    begin = head(path)
    if b"\0" in begin:
        raise TextError(f"{path}: binary; give UTF-8 text or JSON lines, plain or as .gz, .bz2 or .xz")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(begin)
    except UnicodeDecodeError as error:
        raise TextError(f"{path}: not UTF-8 (byte {error.start}); convert it: iconv -t UTF-8") from None


def digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


# --- blocks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """The lines that begin in the bytes [`begin`, `end`) of a file."""

    path: Path
    begin: int
    end: int


class Blocks(Sequence[Block]):
    """All files in blocks of `size` bytes, made when they are asked for: a terabyte has millions."""

    def __init__(self, files: Sequence[Path], size: int):
        self.files, self.size = files, size
        self.bytes = [path.stat().st_size for path in files]
        self.ends = list(accumulate(-(-count // size) for count in self.bytes))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, number: int) -> Block:
        file = bisect_right(self.ends, number)
        begin = (number - (self.ends[file - 1] if file else 0)) * self.size
        return Block(self.files[file], begin, min(begin + self.size, self.bytes[file]))


def block_bytes(total: int) -> int:
    """Bytes of a block: small enough for a shuffle of blocks to mix a small text.

    >>> [block_bytes(total) >> 10 for total in (1000, 10 << 20, 1 << 40)]
    [16, 40, 128]
    """
    return min(max(total // BLOCKS_WANTED, SMALLEST_BLOCK), LARGEST_BLOCK)


def read_lines(block: Block, reach: int = REACH) -> list[str]:
    """The lines that begin in the block, without their ends; bytes that are not UTF-8 become U+FFFD.

    Raises TextError.
    """
    try:
        with block.path.open("rb") as file:
            data = read_block(file, block, reach)
    except OSError as error:
        raise TextError(f"{block.path}: {error.strerror}") from None
    text = data.decode("utf-8-sig" if block.begin == 0 else "utf-8", errors="replace")
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def read_block(file: IO[bytes], block: Block, reach: int = REACH) -> bytes:
    begin = line_start(file, block.begin, reach)
    end = line_start(file, block.end, reach)
    file.seek(begin)
    return file.read(end - begin)


def line_start(file: IO[bytes], offset: int, reach: int = REACH) -> int:
    """Where the first line at or after `offset` begins; the end of the file where none does.

    Where no line ends within `reach` bytes, a long line is cut: after the next blank there, or else between
    two characters. The answer depends on the file and the offset alone and never falls as the offset grows,
    so the blocks of a file make up the file, whoever reads them.
    """
    if offset == 0:
        return 0
    file.seek(offset - 1)  # a line may begin at the offset itself
    window = file.read(min(reach, 8192))
    if b"\n" not in window:
        window += file.read(reach - len(window))
    end = window.find(b"\n")
    if end < 0 and len(window) < reach:
        return offset - 1 + len(window)
    if end < 0:
        cut = re.search(rb"[ \t]", window) or re.search(rb"(?s).(?=[^\x80-\xbf])", window)
        end = cut.start() if cut else 0
    return offset + end


# --- packed text -------------------------------------------------------------------------------


def plain_path(path: Path, folder: Path) -> Path:
    """Where unpack() leaves a file's plain text."""
    return folder / f"{path.name.split('.')[0]}-{digest(identify(path, with_time=True))}.txt"


def lacking(files: Sequence[Path], folder: Path) -> list[Path]:
    """Those of the files that are not plain, and have not been unpacked yet."""
    return [path for path in files if not is_plain(path) and not plain_path(path, folder).exists()]


def unpack(packed: Sequence[Path], folder: Path) -> Iterator[float]:
    """Write the files as plain text into `folder`: no byte range can be read from inside a compressed file.

    Works as it is iterated; yields the share that is done every two seconds. Raises TextError.
    """
    clock = Rounds()
    for number, path in enumerate(packed):
        target = plain_path(path, folder)
        aside = beside(target)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                for batch in batches(plain_lines(path), 1000):
                    file.writelines(batch)
                    if clock.over():
                        yield number / len(packed)
            aside.replace(target)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise TextError(f"{path}: cannot be unpacked into {folder}: {error}") from None


def beside(target: Path) -> Path:
    """Where a file is written before it is renamed: nodes that share a home may write it at once."""
    return target.with_name(f".{target.name}.{socket.gethostname()}.coming")


def plain_lines(path: Path) -> Iterator[bytes]:
    """The text of a compressed or JSON-lines file, line by line.

    Raises TextError and what unpacking raises.
    """
    suffixes = path.suffixes
    unpacked = PACKED.get(suffixes[-1], open)
    inner = suffixes[-2] if suffixes[-1] in PACKED and len(suffixes) > 1 else suffixes[-1]
    with unpacked(path, "rb") as file:
        if inner not in JSON_LINES:
            yield from file
            return
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield document(line, f"{path}, line {number}").encode() + b"\n\n"  # a blank line ends it


def document(line: bytes, where: str) -> str:
    """The field "text" of a line of JSON. Raises TextError."""
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise TextError(f'{where}: no {{"text": "..."}}; give a line of JSON for each document')
    return text.encode("utf-8", "replace").decode()  # JSON may hold halves of characters


def batches(lines: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while batch := list(islice(lines, size)):
        yield batch


class Rounds:
    """Tells when two seconds of work are over, again and again."""

    def __init__(self) -> None:
        self.next_s = time.monotonic() + ROUND_S

    def over(self) -> bool:
        is_over = time.monotonic() >= self.next_s
        if is_over:
            self.next_s = time.monotonic() + ROUND_S
        return is_over
