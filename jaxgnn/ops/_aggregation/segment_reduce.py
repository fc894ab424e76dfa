"""Reduction of edge values to nodes."""

from __future__ import annotations

import math
from typing import Literal

from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, use_kernel
from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.incidence import EdgeEnd, reduce_extremum_to_nodes, reduce_to_nodes
from jaxgnn.ops._aggregation.spmm import Reduce, segment_reference
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.rows import edges_of


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
        data: values in its edge order, `[num_edges, ...]`.
        reduce: `"sum"`, `"mean"`, `"max"` or `"min"`.
        by: over the edges that end at each receiver, or that start at each sender.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, ...]` or `[num_senders, ...]` in the dtype of `data`.

    Raises:
        TypeError: `graph` is no `Graph`, or `data` is not floating.
        ValueError: a shape does not fit, or `reduce`, `by` or `impl` is unknown.
    """
    checks.graph_argument(graph)
    checks.choice(reduce, "reduce", ("sum", "mean", "max", "min"))
    checks.choice(by, "by", ("receivers", "senders"))
    data = checks.floating_rows(data, "data", graph.num_edges, "edge")
    end = EdgeEnd(by == "senders", reduce == "mean")
    nodes = graph.num_senders if end.sender else graph.num_receivers
    shape = (nodes, *data.shape[1:])
    kernel = use_kernel(impl)
    if data.size == 0 or nodes == 0:
        return ffi.zeros(shape, data.dtype, graph, data)
    flat = data.reshape(graph.num_edges, math.prod(data.shape[1:]))
    out: Array
    if kernel:
        graph, flat = ffi.unify_varying(graph, flat)
        if reduce in ("max", "min"):
            out = reduce_extremum_to_nodes((end, reduce), graph, flat)
        else:
            out = reduce_to_nodes(end, graph, flat)
    else:
        rows = edges_of(graph, by_sender=end.sender)
        if rows.order is not None:
            flat = flat[rows.order]
        if reduce in ("sum", "mean"):
            flat = flat.astype(accumulation_dtype(data.dtype))
        segments = csr_row_ids(rows.offsets, graph.num_edges, impl="jax")
        out = segment_reference(flat, segments, rows.offsets, reduce)
    return out.astype(data.dtype).reshape(shape)
