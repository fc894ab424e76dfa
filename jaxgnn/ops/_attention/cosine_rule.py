"""Attention by cosines as one differentiable map, by kernels that GPUs have."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import foldable_heads
from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph
from jaxgnn.graph._layouts.tiles import Tiles
from jaxgnn.ops._aggregation.kernels import node_dots
from jaxgnn.ops._aggregation.linear import Engine
from jaxgnn.ops._attention import cosine_gradients, cosine_tiles, pair_rule
from jaxgnn.ops._attention.gat_kernels import call_forward
from jaxgnn.ops._attention.pair_kernels import Nodes, PairAttention, PairOperands
from jaxgnn.ops._core.recomputed import recomputed
from jaxgnn.ops._core.rows import Rows, neighbors, tiles_of

TARGETS = (
    "jaxgnn_cosine_attention",
    cosine_gradients.TARGET,
    cosine_tiles.TARGET,
)
# PyTorch's bound of a norm, squared: a row of zeros stays one.
_SMALLEST_SQUARE = 1e-24
# Widest heads that the kernels take, in bytes.
_MOST_BYTES = 1024


class Cosine(NamedTuple):
    """What is static: self-loops as in `gat_attention`, and the engine of the forward pass."""

    self_loops: bool
    engine: Engine = None


class CosineOperands(NamedTuple):
    """What the attention is computed from.

    Attributes:
        graph: a square graph.
        x: the nodes' rows.
        beta: of each head, in the accumulation dtype.
        philox_key: there is no dropout: `None`.
    """

    graph: Graph
    x: Float[Array, "num_nodes heads features"]
    beta: Float[Array, "1 heads"]
    philox_key: None = None


def takes(graph: Graph, x: Float[Array, "num_nodes heads features"]) -> bool:
    """Whether the kernels take such rows: whole vectors of 16 bytes, 32-bit node indices."""
    bytes_of_head = x.shape[2] * x.dtype.itemsize
    narrow = graph.senders.dtype == graph.transpose_receivers.dtype == jnp.int32
    fits = bytes_of_head % 16 == 0 and bytes_of_head <= _MOST_BYTES
    return narrow and fits and x.dtype != jnp.float64


def reciprocal_norms(
    x: Float[Array, "num_nodes heads features"],
) -> tuple[Float[Array, "num_nodes heads"], Float[Array, "num_nodes heads"]]:
    """One over each row's norm and the norm's square, in the accumulation dtype."""
    squares = jnp.sum(x.astype(accumulation_dtype(x.dtype)) ** 2, axis=-1)
    return jax.lax.rsqrt(jnp.maximum(squares, _SMALLEST_SQUARE)), squares


def walk(
    rows: Rows,
    x: Float[Array, "num_nodes heads features"],
    row_scale: Float[Array, "num_nodes heads"],
    column_scale: Float[Array, "num_nodes heads"],
    *,
    self_loops: bool,
) -> tuple[Float[Array, "num_nodes heads features"], Float[Array, "num_nodes heads"]]:
    """The forward pass by the kernel of all dtypes and widths."""
    _, heads, features = x.shape
    out, log_sum = call_forward(
        TARGETS[0],
        rows,
        [x, row_scale, column_scale],
        (heads, features),
        (x.dtype, column_scale.dtype),
        heads=heads,
        self_loops=self_loops,
    )
    return out, log_sum[:, :, 0]  # cosines times beta are small: its rounding lost nothing


def forward(
    static: Cosine, operands: CosineOperands
) -> tuple[Float[Array, "num_nodes heads features"], Float[Array, "num_nodes heads"]]:
    """The averages, and the logarithm of the sum of the exponentials (0 without edges)."""

    def kernel(structure: tuple[Rows, Tiles | None], arrays: Any) -> tuple[Array, Array]:
        rows, tiles = structure
        x, beta, reciprocals = arrays
        chosen = cosine_tiles.choose(rows, tiles, x, static.engine)
        loops = static.self_loops
        if chosen == "walk":
            return walk(rows, x, beta * reciprocals, reciprocals, self_loops=loops)
        tiles = tiles if chosen == "tiles" else None
        return cosine_tiles.forward(rows, tiles, x, beta[0], reciprocals, self_loops=loops)

    graph, x, beta, _ = operands
    reciprocals, _ = reciprocal_norms(x)
    structure = neighbors(graph, transpose=False), tiles_of(graph, transpose=False)
    return foldable_heads(kernel)(structure, (x, beta, reciprocals))


def gradients(
    static: Cosine,
    operands: CosineOperands,
    out: Float[Array, "num_nodes heads features"],
    log_sum: Float[Array, "num_nodes heads"],
    cotangent: Float[Array, "num_nodes heads features"],
    *,
    kernel: cosine_gradients.Kernel | None = None,
) -> CosineOperands:
    r"""The gradients of the averages, from scores recomputed in the backward pass.

    With $c = 1 / |x|$, $s_e = \beta c_i c_j \langle x_i, x_j \rangle$,
    $\alpha_e = \exp(s_e - \mathrm{lse}_i)$ and $\delta_i = \langle dy_i, y_i \rangle$,

    $$ds_e = \alpha_e \, (\langle dy_i, x_j \rangle - \delta_i), \qquad
      u_n = \sum_{e = (j \to n)} ds_e c_j x_j + \sum_{e = (n \to i)} ds_e c_i x_i,$$
    $$dx_n = \sum_{e = (n \to i)} \alpha_e \, dy_i
      + \beta \, (c_n u_n - c_n^3 \langle x_n, u_n \rangle x_n), \qquad
      d\beta = \tfrac{1}{2} \sum_n c_n \langle x_n, u_n \rangle,$$

    as each edge's $ds_e$ is in both of its nodes' sums. Where edges go both ways, all of a node's
    sums are over the same neighbors. `kernel` is that of `cosine_gradients.call`.
    """

    graph, x, beta, _ = operands

    def call(both: tuple[Rows, Rows], arrays: Any) -> tuple[Array, Array]:
        return cosine_gradients.call(
            both, *arrays, symmetric=graph.symmetric, self_loops=static.self_loops, kernel=kernel
        )

    reciprocals, squares = reciprocal_norms(x)
    # A norm at its bound is a constant.
    cubes = jnp.where(squares > _SMALLEST_SQUARE, reciprocals**3, 0)
    delta = node_dots(cotangent, out)
    node_terms = jnp.stack([log_sum, delta, reciprocals, cubes], axis=-1)
    both = neighbors(graph, transpose=False), neighbors(graph, transpose=not graph.symmetric)
    dx, dots = foldable_heads(call)(both, (x, beta, node_terms, cotangent))
    dbeta = jnp.sum(dots, axis=0, keepdims=True) / 2
    return CosineOperands(None, dx, dbeta)  # type: ignore[arg-type]


def by_dots(
    static: Cosine, operands: CosineOperands, impl: Impl = None
) -> Float[Array, "num_nodes heads features"]:
    """The same by the attention of dot products, whose queries are rows scaled by beta over their
    norms."""
    graph, x, beta, _ = operands
    return between(static, graph, x, x, beta, impl)


def between(
    static: Cosine,
    graph: Graph,
    x: Float[Array, "num_senders heads features"],
    receivers: Float[Array, "num_receivers heads features"],
    beta: Float[Array, "1 heads"],
    impl: Impl = None,
) -> Float[Array, "num_receivers heads features"]:
    """`by_dots` of a graph whose receivers have rows of their own."""
    reciprocals, _ = reciprocal_norms(x)
    own = reciprocals if receivers is x else reciprocal_norms(receivers)[0]
    # One scale a row: the gradient of beta then sums terms that the norms' gradient needs too.
    scale = (beta * own)[:, :, None]
    queries = (receivers.astype(beta.dtype) * scale).astype(x.dtype)
    nodes = Nodes(queries, x, x, None, reciprocals)
    pair = PairAttention("dot", 1.0, 0, static.self_loops)
    pairs = PairOperands(graph, nodes, None, None, None)
    return pair_rule.pair_attention(pair, pairs, impl)


attend = recomputed(TARGETS, forward, gradients, by_dots, platforms=("cuda",))
