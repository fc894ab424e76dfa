"""Scores on edges: the dense product sampled at the edges."""

from __future__ import annotations

import math
from typing import Literal

import jax
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation import reference
from jaxgnn.ops._aggregation.linear import edge_dot, engine_of
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.parts import over_parts
from jaxgnn.ops._core.rows import neighbors


@jax.named_scope("jaxgnn.sddmm")
@over_parts({"a": "receivers", "b": "senders"}, "edges")
def sddmm(
    graph: Graph,
    a: Float[Array, "num_receivers *heads features"],
    b: Float[Array, "num_senders *heads features"],
    *,
    impl: Impl | Literal["rows", "tiles"] = None,
) -> Float[Array, "num_edges *heads"]:
    r"""Dot product of the two ends' features on every edge.

    $$s_{e} = \langle a_i, b_j \rangle \quad \text{for each edge } e = (j \to i)$$

    Axes between the first and the last are heads: `[nodes, heads, F]` gives `[edges, heads]`.
    Sums run in float32 (float64 for float64). Derivatives: products with the graph and its
    transpose (`spmm`), weighted by the cotangent.

    Args:
        graph: the graph; the result is in its edge order, not the user's
            (`Graph.unsort_edge_data`).
        a: features of the receivers.
        b: features of the senders, of the same dtype and trailing shape.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`; or
            the engine of the derivatives, as of `spmm`: `"rows"`, or `"tiles"` for graphs of
            `Graph.with_tiles`. The dot products themselves run by rows.

    Returns:
        `[num_edges, ...]` in the dtype of `a`.

    Raises:
        TypeError: `graph` is no `Graph`, or the dtypes are not floating or differ.
        ValueError: a shape does not fit, `impl` is unknown, or it is `"tiles"` and the graph has
            none.
    """
    checks.graph_argument(graph)
    a = checks.floating_rows(a, "a", graph.num_receivers, "receiver")
    b = checks.floating_rows(b, "b", graph.num_senders, "sender")
    if a.dtype != b.dtype:
        raise TypeError(f"b: expected the dtype of a, {a.dtype}, got {b.dtype}")
    if a.ndim < 2 or a.shape[1:] != b.shape[1:]:
        raise ValueError(
            f"a, b: expected equal shapes (nodes, ..., features) after the first axis, "
            f"got {a.shape} and {b.shape}"
        )
    heads, width = a.shape[1:-1], a.shape[-1]
    engine, impl = engine_of(impl, graph.tiles, graph.transpose_tiles)
    if a.size == 0 or b.size == 0 or graph.num_edges == 0:
        return ffi.zeros((graph.num_edges, *heads), a.dtype, graph, a, b)
    a = a.reshape(graph.num_receivers, math.prod(heads), width)
    b = b.reshape(graph.num_senders, math.prod(heads), width)
    if impl == "jax":
        out = reference.dot_rows(neighbors(graph, transpose=False), a, b)
    else:
        graph, a, b = ffi.unify_varying(graph, a, b)
        with config.use(impl=impl):
            out = edge_dot(engine, graph, a, b)
    return out.astype(a.dtype).reshape(graph.num_edges, *heads)
