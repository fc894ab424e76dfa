"""Attention by cosines over tiles, forward, on a GPU: an experiment, which no operation calls.

`benchmarks/experiments/tiles/cosine.py` times it beside the kernel by rows.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn.graph._tiles import ROWS, Tiles
from jaxgnn.ops._attention.cosine_rule import reciprocal_norms
from jaxgnn.ops._core.rows import Rows, or_empty

TARGET = "jaxgnn_tiles_cosine_attention"
WIDTH = 64  # features of the widest heads; multiples of 8


def forward(
    rows: Rows,
    tiles: Tiles,
    x: Float[Array, "num_nodes heads features"],
    beta: Float[Array, " heads"],
) -> tuple[Float[Array, "num_nodes heads features"], Float[Array, "num_nodes heads"]]:
    """What `cosine_attention` returns for 16-bit rows, without self-loops of its own, and the
    logarithm of each row's sum of exponentials (0 without edges).

    `rows` are the graph's, `tiles` theirs.
    """
    nodes, heads, features = x.shape
    parts, chunks = tiles.parts.shape[0], tiles.rest_chunks.table.shape[0]
    reciprocals, _ = reciprocal_norms(x)
    out, log_sum, *_ = ffi.call(
        TARGET,
        [
            rows.offsets,
            or_empty(rows.columns),
            tiles.rows,
            or_empty(tiles.columns),
            tiles.masks,
            tiles.parts,
            tiles.slot_offsets,
            tiles.rest_offsets,
            or_empty(tiles.rest_columns),
            tiles.rest_chunks.table,
            x.reshape(nodes, heads * features),
            beta * reciprocals,
            reciprocals,
            beta,
        ],
        [
            ((nodes, heads * features), x.dtype),
            ((nodes, heads), jnp.float32),
            ((parts, ROWS, heads * features), jnp.float32),
            ((parts, ROWS, heads), jnp.float32),
            ((chunks, heads * features), jnp.float32),
            ((chunks, heads), jnp.float32),
        ],
        heads=heads,
        split_length=tiles.rest_chunks.length,
    )
    return out.reshape(x.shape), log_sum
