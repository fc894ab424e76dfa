"""Reduction of edge values to nodes."""

from __future__ import annotations

import math
from typing import Literal

import jax
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import Graph, GraphSubstitute
from jaxgnn.ops._aggregation import reference
from jaxgnn.ops._aggregation.incidence import EdgeEnd, reduce_extremum_to_nodes, reduce_to_nodes
from jaxgnn.ops._aggregation.spmm import Reduce
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.rows import edges_of


@jax.named_scope("jaxgnn.segment_reduce")
def segment_reduce(
    graph: Graph,
    data: Float[Array, "num_edges *features"],
    reduce: Reduce = "sum",
    *,
    by: Literal["receivers", "senders"] = "receivers",
    impl: Impl = None,
) -> Float[Array, "nodes *features"]:
    r"""Reduces the values on the edges of each node.

    $$y_i = \mathrm{reduce}_{e = (j \to i)} \; d_e$$

    A node without edges gets 0. Sums run in float32 (float64 for float64) and in a fixed order;
    at ties of `max` and `min` the gradient is shared equally.

    Args:
        graph: the graph.
        data: values in its edge order, not the user's (`Graph.sort_edge_data`), `[num_edges, ...]`.
        reduce: `"sum"`, `"mean"`, `"max"` or `"min"`.
        by: over the edges that end at each receiver, or that start at each sender.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, ...]` or `[num_senders, ...]` in the dtype of `data`.

    Raises:
        TypeError: `graph` is no `Graph`, or `data` is not floating.
        ValueError: a shape does not fit, or `reduce`, `by` or `impl` is unknown.
    """
    substitute = isinstance(graph, GraphSubstitute)
    if not substitute:
        checks.graph_argument(graph)
    checks.choice(reduce, "reduce", ("sum", "mean", "max", "min"))
    checks.choice(by, "by", ("receivers", "senders"))
    data = checks.floating_rows(data, "data", graph.num_edges, "edge")
    if substitute:
        return graph.segment_reduce(data, reduce, by=by, impl=impl)
    end = EdgeEnd(by == "senders", reduce == "mean")
    nodes = graph.num_senders if end.sender else graph.num_receivers
    shape = (nodes, *data.shape[1:])
    impl = chosen(impl)
    if data.size == 0 or nodes == 0:
        return ffi.zeros(shape, data.dtype, graph, data)
    flat = data.reshape(graph.num_edges, math.prod(data.shape[1:]))
    out: Array
    if impl == "jax":
        rows = edges_of(graph, by_sender=end.sender)
        out = reference.reduce_rows(rows, flat[:, None, :], None, reduce)
        return out.reshape(shape)
    graph, flat = ffi.unify_varying(graph, flat)
    with config.use(impl=impl):
        if reduce in ("max", "min"):
            out = reduce_extremum_to_nodes((end, reduce), graph, flat)
        else:
            out = reduce_to_nodes(end, graph, flat)
    return out.reshape(shape)
