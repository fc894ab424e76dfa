"""Attention by cosines over neighbors: norms, scores, softmax and aggregation in one operation."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.arguments import unwrap
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph, GraphSubstitute
from jaxgnn.ops._aggregation.linear import engine_of
from jaxgnn.ops._attention import cosine_rule
from jaxgnn.ops._attention.cosine_rule import Cosine, CosineOperands
from jaxgnn.ops._attention.dot_attention import node_rows
from jaxgnn.ops._core import checks, padding


@jax.named_scope("jaxgnn.cosine_attention")
def cosine_attention(
    graph: Graph,
    x: Float[Array, "num_nodes heads features"],
    beta: float | Float[Array, ""] | Float[Array, " heads"] = 1.0,
    *,
    self_loops: bool = False,
    impl: Impl | Literal["rows", "tiles"] = None,
) -> Float[Array, "num_nodes heads features"]:
    r"""Averages the neighbors' rows by an attention whose scores are cosines of the ends.

    $$y_{ih} = \sum_{e = (j \to i)} \alpha_{eh} \, x_{jh}, \qquad
      \alpha_{eh} = \frac{\exp s_{eh}}{\sum_{e' \to i} \exp s_{e'h}}, \qquad
      s_{eh} = \beta_h \frac{\langle x_{ih}, x_{jh} \rangle}{|x_{ih}| \, |x_{jh}|}$$

    A norm below $10^{-12}$ counts as that. A node without edges gets 0. Scores and sums are in
    float32 for float32, bfloat16 and float16, in float64 for float64.

    No intermediates of `[num_edges, heads]` are stored, as in `dot_attention`, which computes the
    same from two arrays and which serves the CPU. On a GPU the rows are read unscaled and the
    gradients of the norms are accumulated online. If the edges go both ways (the graph and its
    transpose share their arrays, see `Graph`), the backward pass is one gather of two rows an edge
    instead of two gathers of three rows in total. Results are bitwise reproducible. Derivatives of
    second order and above are those of the composition of `sddmm`, a softmax and `spmm`, which
    materializes `[num_edges, heads]` arrays.

    Args:
        graph: a square graph.
        x: rows of the nodes, `[num_nodes, heads, F]`.
        beta: a number, or one for each head.
        self_loops: one self-loop for each node, in place of the graph's.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`; or
            the engine: `"rows"`, or `"tiles"` for graphs of `Graph.with_tiles`. Over tiles runs the
            forward pass of bfloat16 and float16 on a GPU, for heads of up to 64 features; all else,
            and everything on a CPU, runs by rows. `None` and `"kernel"` take the faster engine by
            an estimate.

    Returns:
        `[num_nodes, heads, F]` in the dtype of `x`.

    Raises:
        TypeError: `graph` is no `Graph`, or a dtype is not floating.
        ValueError: the graph is rectangular, a shape does not fit, `impl` is unknown, or `impl` is
            `"tiles"` and the graph has none.

    Source: Thekumparampil et al., "Attention-based graph neural network for semi-supervised
    learning" (2018), section 3.2.
    """
    if not isinstance(graph, GraphSubstitute):
        checks.graph_argument(graph)
    if not graph.is_square:
        raise ValueError(
            f"graph: expected as many senders as receivers, got {graph.num_senders} and "
            f"{graph.num_receivers}"
        )
    x = node_rows(x, "x", graph.num_senders, "node")
    operands = CosineOperands(graph, x, _beta_of(beta, x))
    static = Cosine(checks.boolean(self_loops, "self_loops"))
    if isinstance(graph, GraphSubstitute):
        checks.choice(impl, "impl", (None, "kernel", "jax", "rows", "tiles"))
        return graph.map_parts(
            functools.partial(_of_part, static, impl=impl),
            "cosine_attention",
            {"x": x, "receivers": x, "beta": operands.beta[0]},
            {"x": "senders", "receivers": "receivers", "beta": "replicated"},
            split="heads",
        )
    engine, impl = engine_of(impl, graph.tiles)
    static = static._replace(engine=engine)
    # Only CUDA has these kernels: without them the dot products' own rule keeps more of the work.
    fused = impl != "jax" and ffi.targets["cuda"].issuperset(cosine_rule.TARGETS)
    padded = operands._replace(x=padding.pad_features(x))
    without_edges = graph.num_edges == 0 and not self_loops
    if not fused or 0 in x.shape or without_edges or not cosine_rule.takes(graph, padded.x):
        return cosine_rule.by_dots(static, operands, impl)
    with config.use(impl=impl):
        out, _ = cosine_rule.attend(static, CosineOperands(*ffi.unify_varying(*padded)))
    return out[..., : x.shape[2]]


def _of_part(
    static: Cosine,
    part: Graph,
    *,
    x: Array,
    receivers: Array,
    beta: Array,
    impl: Impl | Literal["rows", "tiles"],
) -> Array:
    """Of a rectangular part: the kernels for whole graphs take one array for both ends."""
    _, impl = engine_of(impl, part.tiles)
    return cosine_rule.between(static, part, x, receivers, beta[None], impl)


def _beta_of(beta: Any, x: Float[Array, "num_nodes heads features"]) -> Float[Array, "1 heads"]:
    heads, dtype = x.shape[1], accumulation_dtype(x.dtype)
    beta = unwrap(beta)
    if not isinstance(beta, jax.Array | np.ndarray):
        beta = np.asarray(checks.number(beta, "beta", -math.inf, math.inf), dtype)
    beta = checks.floating(beta, "beta")
    if beta.shape not in ((), (heads,)):
        raise ValueError(f"beta: expected a number or the shape ({heads},), got {beta.shape}")
    return jnp.broadcast_to(beta.astype(dtype), (1, heads))
