"""What a raw call of an FFI target is made of: its arrays, and a small graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxgnn.graph._build import row_chunks

ROWS, COLUMNS, FEATURES, HEADS, K, KERNELS, DIMS = 6, 8, 8, 2, 4, 3, 2
CHUNK_LENGTH = 4
F32, I32, U32, U8 = np.float32, np.int32, np.uint32, np.uint8


class Call(NamedTuple):
    """A valid call. `free` are the extents and attributes that may have other values, as
    "x, axis 0", "keys, axis 0, 1" (one alone) or "reduce": a gathered operand may have more rows
    than are gathered."""

    operands: dict[str, np.ndarray]
    results: dict[str, tuple[tuple[int, ...], Any]]
    attributes: dict[str, int | float | tuple[int, ...]]
    free: frozenset[str] = frozenset()


class Graph:
    """A graph from the last columns of which no edge comes. On a GPU its rows are empty: nothing
    that an operand says is then read out of bounds."""

    def __init__(self, empty: bool):
        rng = np.random.default_rng(0)
        degrees = np.array([7, 0, 1, 3, 2, 1])
        self.edges = int(degrees.sum())
        self.offsets = np.concatenate([[0], np.cumsum(degrees)]).astype(I32)
        self.columns = rng.integers(0, ROWS - 2, self.edges).astype(I32)
        self.chunks = row_chunks.chunk_rows(self.offsets.astype(np.int64), CHUNK_LENGTH).table
        self.order = rng.permutation(ROWS).astype(I32)
        self.permutation = rng.permutation(self.edges).astype(I32)
        if empty:
            self.offsets *= 0
            self.columns *= 0
        self.rng = rng
        self.parts = len(self.chunks)

    def x(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape).astype(F32)

    def rows(self) -> dict[str, np.ndarray]:
        return {"row_offsets": self.offsets, "columns": self.columns, "chunks": self.chunks}

    def ordered(self) -> dict[str, np.ndarray]:
        return {**self.rows(), "row_order": self.order}

    def indices(self, rows: int) -> np.ndarray:
        picked = [np.sort(self.rng.choice(FEATURES, K, replace=False)) for _ in range(rows)]
        return np.array(picked, U8)

    def windows(self, rows: int) -> dict[str, np.ndarray]:
        """A window without entries."""
        receivers = np.full((1, 64), -1, I32)
        receivers[0, :rows] = np.arange(rows)
        parts = np.array([[0, 0, 0, -1]], I32)
        senders, masks = np.zeros(5, I32), np.zeros((5, 2), U32)
        return {"rows": receivers, "parts": parts, "senders": senders, "masks": masks}


Calls = dict[str, Callable[[Graph], Call]]

CHUNKED = {"chunk_length": CHUNK_LENGTH}
FREE = frozenset(
    {"chunk_length"}
)  # with no row beyond it, or with a table of chunks of this length
BOOLEANS = {
    "self_loops",
    "by_senders",
    "narrow_slices",
    "rows_stacked",
    "shared_input",
    "transpose",
    "packed",
    "tensor_cores",
    "tensorfloat32",
    "warpgroups",
}
