"""JSON within a budget: what its objects will take is charged before they are made."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from jaxgnn.data.files.limits import Budget, DataError, quote

# Bytes of Python's objects at most: a list, a dict, a value and its place, and a text, which as a
# key stands in two dicts that grow.
_JSON_BYTES = {b"[": 120, b"{": 240, b",": 48, b'"': 150}


def read_json(path: pathlib.Path, budget: Budget) -> dict[str, Any]:
    """A JSON object. The caller frees it, and what is charged for it."""
    text = budget.read(path)
    objects = sum(size * (1 + text.count(sign)) for sign, size in _JSON_BYTES.items())
    budget.charge(len(text) * (2 if text.isascii() else 8) + objects, "the objects in it")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise DataError(f"expected an object, got {type(value).__name__}")
    return value


def integers(values: list[Any], what: str, budget: Budget) -> np.ndarray:
    """A list of integers, as int64: NumPy would make texts of the longest's size of others."""
    budget.charge(8 * len(values), what)
    for value in values:
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise DataError(f"{what}: expected integers, got {quote(value)}")
    return np.fromiter(values, np.int64, len(values))
