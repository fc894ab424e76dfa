"""Softmax over the edges of each receiver."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.gather_edges import gather_edges
from jaxgnn.ops._aggregation.segment_reduce import segment_reduce
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.parts import over_parts


@jax.named_scope("jaxgnn.segment_softmax")
@over_parts({"logits": "edges"}, "edges")
def segment_softmax(
    graph: Graph, logits: Float[Array, "num_edges *heads"], *, impl: Impl = None
) -> Float[Array, "num_edges *heads"]:
    r"""Normalizes the scores of each receiver's edges (the edge softmax).

    $$\alpha_e = \frac{\exp(s_e - m_i)}{\sum_{e' \to i} \exp(s_{e'} - m_i)}, \qquad
      m_i = \max_{e' \to i} s_{e'}$$

    Computed in float32 (float64 for float64). A score of $-\infty$ masks its edge: where all of a
    receiver's edges are masked, they get 0.

    Args:
        graph: the graph.
        logits: scores in its edge order, not the user's (`Graph.sort_edge_data`),
            `[num_edges, ...]`.
        impl: `None` (our kernels where the platform has them, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_edges, ...]` in the dtype of `logits`.

    Raises:
        TypeError: `graph` is no `Graph`, or `logits` are not floating.
        ValueError: a shape does not fit, or `impl` is unknown.

    Source: Velickovic et al., Graph Attention Networks (ICLR 2018), equation 3.
    """
    checks.graph_argument(graph)
    logits = checks.floating_rows(logits, "logits", graph.num_edges, "edge")
    scores = logits.astype(accumulation_dtype(logits.dtype))
    scores = scores.reshape(graph.num_edges, math.prod(logits.shape[1:]))
    edges, _ = edge_softmax(graph, scores, impl=impl)
    return edges.astype(logits.dtype).reshape(logits.shape)


def edge_softmax(
    graph: Graph,
    scores: Float[Array, "num_edges heads"],
    loops: Float[Array, "nodes heads"] | None = None,
    *,
    impl: Impl = None,
) -> tuple[Float[Array, "num_edges heads"], Float[Array, "nodes heads"] | None]:
    """`segment_softmax` in the dtype of the scores, and of added self-loops if there are any.

    Those are at the nodes that are both a sender and a receiver, the first ones; `loops` are their
    scores.
    """
    # Subtracting the maximum changes only the rounding: no derivative passes through it.
    largest = segment_reduce(graph, jax.lax.stop_gradient(scores), "max", impl=impl)
    lowest = jnp.full_like(largest, -jnp.inf)
    largest = jnp.where(graph.in_degrees[:, None] > 0, largest, lowest)
    if loops is not None:
        largest = combine_first(jnp.maximum, largest, jax.lax.stop_gradient(loops))
    # Masked rows: 0, without NaN from the difference of two infinities.
    largest = jnp.where(largest == -jnp.inf, jnp.zeros_like(largest), largest)
    exponentials = jnp.exp(scores - gather_edges(graph, receivers=largest, impl=impl))
    total = segment_reduce(graph, exponentials, impl=impl)
    if loops is not None:
        loops = jnp.exp(loops - largest[: loops.shape[0]])
        total = combine_first(jnp.add, total, loops)
    total = jnp.where(total == 0, jnp.ones_like(total), total)
    edges = exponentials / gather_edges(graph, receivers=total, impl=impl)
    return edges, None if loops is None else loops / total[: loops.shape[0]]


def combine_first(combine: Callable[[Array, Array], Array], array: Array, first: Array) -> Array:
    """`array`, its first rows combined with `first`, which may be all of them.

    `array.at[:n]` of all rows is a scatter by an index without elements, and compiling that under
    `shard_map` over several CPU devices crashes jaxlib 0.11.
    """
    count = first.shape[0]
    if count == array.shape[0]:
        return combine(array, first)
    return jnp.concatenate([combine(array[:count], first), array[count:]])
