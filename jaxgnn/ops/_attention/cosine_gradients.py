"""The backward pass of attention by cosines on a GPU: by which kernel, and its call."""

from __future__ import annotations

from typing import Literal, TypeAlias

from jaxtyping import Array, Float

from jaxgnn.ops._attention import cosine_tiles
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, ordered_structure

TARGET = "jaxgnn_cosine_attention_gradients"

Kernel: TypeAlias = Literal["walk", "tensor_cores"]
"""`"walk"` is the kernel of all dtypes and widths; the other makes its dot products on tensor
cores, for rows that `cosine_tiles.serves`."""

# Picoseconds of one head of a symmetric graph, from the runs in docs/kernels/attention.md: of the
# walk an edge of 64 features, whose number of lanes follows the width, and a row; of the other
# kernel an edge of any width, and a row. Another GPU is taken to scale both kernels alike.
_WALK_EDGE, _WALK_ROW, _EDGE, _ROW = 50.6, 400.0, 31.8, 850.0
# Of a directed graph, whose edges have three rows in two walks, relative to these.
_DIRECTED = 1.6


def picoseconds(
    num_rows: int, num_edges: int, heads: int, features: int, *, symmetric: bool
) -> dict[Kernel, float]:
    """What each kernel takes by estimate."""
    lanes = 1 << max(features // 8 - 1, 0).bit_length()  # of 8 features, a power of two
    edges = heads * num_edges * (1.0 if symmetric else _DIRECTED)
    rows = heads * num_rows * (1 if symmetric else 2)
    return {
        "walk": _WALK_EDGE * lanes / 8 * edges + _WALK_ROW * rows,
        "tensor_cores": _EDGE * edges + _ROW * rows,
    }


def choose(rows: Rows, x: Float[Array, "num_nodes heads features"], *, symmetric: bool) -> Kernel:
    """The fastest kernel by estimate, of those that take such rows."""
    if not cosine_tiles.serves(rows, x):
        return "walk"
    assert rows.columns is not None
    nodes, heads, features = x.shape
    shape = nodes, rows.columns.shape[0], heads, features
    estimates = picoseconds(*shape, symmetric=symmetric)
    return min(estimates, key=lambda kernel: estimates[kernel])


def call(
    both: tuple[Rows, Rows],
    x: Float[Array, "num_nodes heads features"],
    beta: Float[Array, "1 heads"],
    node_terms: Float[Array, "num_nodes heads 4"],
    cotangent: Float[Array, "num_nodes heads features"],
    *,
    symmetric: bool,
    self_loops: bool,
    kernel: Kernel | None = None,
) -> tuple[Float[Array, "num_nodes heads features"], Float[Array, "num_nodes heads"]]:
    """The gradient of `x`, and each node's share in twice the gradient of `beta`.

    `both` are the graph's rows and those of its transpose, the same if `symmetric`. `kernel`, if
    given, must take such rows; `None` is that of `choose`.
    """
    rows, transpose = both
    nodes, heads, features = x.shape
    dtype, width = beta.dtype, heads * features
    parts = rows.chunks.table.shape[0]
    if not symmetric:
        parts += transpose.chunks.table.shape[0]
    kernel = kernel or choose(rows, x, symmetric=symmetric)
    dx, dots, _, _ = row_call(
        TARGET,
        rows,
        [*ordered_structure(transpose), x, beta[0], node_terms, cotangent],
        [
            (x.shape, x.dtype),
            ((nodes, heads), dtype),
            ((0, 0) if symmetric else (nodes, width), dtype),
            ((parts, 2 * width), dtype),
        ],
        heads=heads,
        self_loops=self_loops,
        symmetric=symmetric,
        tensor_cores=kernel == "tensor_cores",
    )
    return dx, dots
