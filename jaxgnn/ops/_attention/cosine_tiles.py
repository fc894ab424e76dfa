"""Attention by cosines of rows of 16 bits, forward, on a GPU: over tiles, or all edges by rows.

Both make their dot products on tensor cores.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn.graph._layouts.tiles import ROWS, Tiles
from jaxgnn.ops._core.rows import Rows, ordered_structure, tiled_structure

TARGET = "jaxgnn_tiles_cosine_attention"
WIDTH = 64  # features of the widest heads; multiples of 8
MOST_HEADS = 65_535  # of a grid's second axis

Kernel: TypeAlias = Literal["walk", "rows", "tiles"]
"""`"walk"` is the kernel of all dtypes and widths; the others are those of this module."""

# Picoseconds, from the runs in docs/kernels/tiles.md; another GPU is taken to scale all kernels
# alike. Of one head of 64 features: the walk's edges, whose number of lanes follows the width, and
# its rows; the edges and the rows of the kernel by rows; entries of tiles. Of all: a byte of the
# slots, written and read, and the tiles' launches.
_WALK_EDGE, _WALK_ROW, _EDGE, _ROW = 40.0, 400.0, 17.0, 1000.0
_ENTRY, _SLOT_BYTE, _LAUNCH = 60.5, 0.67, 14e6


def serves(rows: Rows, x: Float[Array, "num_nodes heads features"]) -> bool:
    """Whether these kernels take such rows: 16 bits, narrow heads, 32-bit indices."""
    _, heads, features = x.shape
    assert rows.columns is not None
    narrow = rows.offsets.dtype == rows.columns.dtype == jnp.int32
    return narrow and 0 < heads <= MOST_HEADS and serves_heads(features, x.dtype)


def serves_heads(features: int, dtype: DTypeLike) -> bool:
    """Whether these kernels take heads of so many features."""
    return 0 < features <= WIDTH and features % 8 == 0 and jnp.dtype(dtype).itemsize == 2


def picoseconds(
    num_rows: int, num_edges: int, heads: int, features: int, tiles: Tiles | None
) -> dict[Kernel, float]:
    """What each kernel takes by estimate; `tiles` only with entries."""
    lanes = 1 << max(features // 8 - 1, 0).bit_length()  # of 8 features, a power of two

    def by_rows(edges: int) -> float:
        return heads * (_EDGE * edges + _ROW * num_rows)

    estimates: dict[Kernel, float] = {
        "walk": heads * (_WALK_EDGE * lanes / 8 * num_edges + _WALK_ROW * num_rows),
        "rows": by_rows(num_edges),
    }
    if tiles is not None and tiles.num_batches > 0:
        slot_bytes = 2 * tiles.parts.shape[0] * ROWS * heads * features * 4
        estimates["tiles"] = (
            by_rows(tiles.rest_columns.shape[0])
            + heads * _ENTRY * tiles.num_entries
            + _SLOT_BYTE * slot_bytes
            + _LAUNCH
        )
    return estimates


def choose(
    rows: Rows,
    tiles: Tiles | None,
    x: Float[Array, "num_nodes heads features"],
    engine: Literal["rows", "tiles"] | None,
) -> Kernel:
    """The kernel of the forward pass: the fastest by estimate, or over tiles where `engine` says
    so and they have entries."""
    if not serves(rows, x):
        return "walk"
    assert rows.columns is not None
    tiles = None if engine == "rows" else tiles
    nodes, heads, features = x.shape
    estimates = picoseconds(nodes, rows.columns.shape[0], heads, features, tiles)
    if engine == "tiles" and "tiles" in estimates:
        return "tiles"
    return min(estimates, key=lambda kernel: estimates[kernel])


def forward(
    rows: Rows,
    tiles: Tiles | None,
    x: Float[Array, "num_nodes heads features"],
    beta: Float[Array, " heads"],
    reciprocals: Float[Array, "num_nodes heads"],
    *,
    self_loops: bool = False,
) -> tuple[Float[Array, "num_nodes heads features"], Float[Array, "num_nodes heads"]]:
    """The averages, and the logarithm of each row's sum of exponentials (0 without edges), of rows
    that the kernels serve.

    `rows` are the graph's, `tiles` theirs, `reciprocals` one over the norms of `x`.
    """
    nodes, heads, features = x.shape
    chunks = rows.chunks if tiles is None else tiles.rest_chunks
    structure = _by_rows(rows) if tiles is None else tiled_structure(rows, tiles, weighted=False)
    parts, pieces = 0 if tiles is None else tiles.parts.shape[0], chunks.table.shape[0]
    out, log_sum, *_ = ffi.call(
        TARGET,
        [
            *structure,
            x.reshape(nodes, heads * features),
            beta[None, :] * reciprocals,
            reciprocals,
            beta,
        ],
        [
            ((nodes, heads * features), x.dtype),
            ((nodes, heads), jnp.float32),
            ((parts, ROWS, heads * features), jnp.float32),
            ((parts, ROWS, heads), jnp.float32),
            ((pieces, heads * features), jnp.float32),
            ((pieces, heads), jnp.float32),
            ((parts, 2), jnp.uint32),
        ],
        heads=heads,
        self_loops=self_loops,
        chunk_length=chunks.length,
    )
    return out.reshape(x.shape), log_sum


def _by_rows(rows: Rows) -> list[Array]:
    """`tiled_structure` of rows in their schedule, without tiles."""
    none = jnp.zeros(0, jnp.int32)
    masks, parts = jnp.zeros((0, 32), jnp.uint32), jnp.zeros((0, 4), jnp.int32)
    return [*ordered_structure(rows), none, masks, parts, none, none, none]
