"""The lines of a text file, decoded, for the readers that are no C++."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from jaxgnn.data.files.limits import Budget, DataError, quote

_LONGEST_LINE = 1 << 16


def text_lines(path: str | os.PathLike[str], budget: Budget) -> Iterator[tuple[int, str]]:
    """Numbers from 1 and texts of the lines, with their `\\n`, without a byte order mark.

    Raises:
        DataError: a line of more than 64 KiB, or not UTF-8.
    """
    number, rest = 0, b""
    for block in budget.blocks(path):
        parts = (rest + block).split(b"\n")
        rest = parts.pop()
        for part in parts:
            number += 1
            yield number, _decode(part + b"\n", number)
        if len(rest) > _LONGEST_LINE:
            _decode(rest, number + 1)
    if rest:
        yield number + 1, _decode(rest, number + 1)


def _decode(line: bytes, number: int) -> str:
    if len(line) > _LONGEST_LINE:
        raise DataError(f"line {number}: expected at most {_LONGEST_LINE} bytes, got more")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise DataError(f"line {number}: expected UTF-8 text, got {quote(line)}") from None


def as_number(text: str) -> float | None:
    """A finite number that float32 holds; None of anything else."""
    if not text.isascii() or "_" in text or len(text) > 400:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _LARGEST else None


def as_count(text: str) -> int | None:
    """Digits alone, below 2**31; None of anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= 400):
        return None
    value = int(text)
    return value if value < 1 << 31 else None


_LARGEST = float(np.finfo(np.float32).max)
