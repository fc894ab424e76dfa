"""Softmax over the edges of each receiver."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.gather_edges import gather_edges
from jaxgnn.ops._aggregation.segment_reduce import segment_reduce
from jaxgnn.ops._core import checks


def segment_softmax(
    graph: Graph, logits: Float[Array, "num_edges *heads"], *, impl: Impl = None
) -> Float[Array, "num_edges *heads"]:
    r"""Normalises the scores of each receiver's edges (the edge softmax).

    $$\alpha_e = \frac{\exp(s_e - m_i)}{\sum_{e' \to i} \exp(s_{e'} - m_i)}, \qquad
      m_i = \max_{e' \to i} s_{e'}$$

    Computed in float32 (float64 for float64). A receiver whose scores are all $-\infty$ gets NaN,
    as in `jax.nn.softmax`.

    Args:
        graph: the graph.
        logits: scores in its edge order, `[num_edges, ...]`.
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
    # Subtracting the maximum changes nothing but the rounding: no derivative passes through it.
    largest = segment_reduce(graph, jax.lax.stop_gradient(scores), "max", impl=impl)
    exponents = jnp.exp(scores - gather_edges(graph, receivers=largest, impl=impl))
    total = segment_reduce(graph, exponents, impl=impl)
    return (exponents / gather_edges(graph, receivers=total, impl=impl)).astype(logits.dtype)
