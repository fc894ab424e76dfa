"""Softmax over the edges of each receiver."""

from __future__ import annotations

import math

import jax
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.edge_softmax import edge_softmax
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
