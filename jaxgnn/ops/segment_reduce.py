"""Reduction of edge values to nodes."""

from __future__ import annotations

import math
from typing import Literal

from jaxtyping import Array, Float

from jaxgnn import _ffi
from jaxgnn.graph import Graph
from jaxgnn.ops import _check
from jaxgnn.ops._incidence import End, collect, collect_extremum
from jaxgnn.ops._rows import edges_of
from jaxgnn.ops.expand_rows import expand_rows
from jaxgnn.ops.spmm import Reduce, segment_reference


def segment_reduce(
    graph: Graph,
    data: Float[Array, "num_edges *features"],
    reduce: Reduce = "sum",
    *,
    by: Literal["receivers", "senders"] = "receivers",
    impl: _ffi.Impl = None,
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
    _check.graph_argument(graph)
    _check.choice(reduce, "reduce", ("sum", "mean", "max", "min"))
    _check.choice(by, "by", ("receivers", "senders"))
    data = _check.floating_rows(data, "data", graph.num_edges, "edge")
    end = End(by == "senders", reduce == "mean")
    nodes = graph.num_senders if end.sender else graph.num_receivers
    shape = (nodes, *data.shape[1:])
    kernel = _ffi.use_kernel(impl)
    if data.size == 0 or nodes == 0:
        return _ffi.zeros(shape, data.dtype, graph, data)
    flat = data.reshape(graph.num_edges, math.prod(data.shape[1:]))
    out: Array
    if kernel:
        graph, flat = _ffi.unify_varying(graph, flat)
        if reduce in ("max", "min"):
            out = collect_extremum((end, reduce), graph, flat)
        else:
            out = collect(end, graph, flat)
    else:
        rows = edges_of(graph, by_sender=end.sender)
        if rows.order is not None:
            flat = flat[rows.order]
        if reduce in ("sum", "mean"):
            flat = flat.astype(_ffi.accumulation_dtype(data.dtype))
        segments = expand_rows(rows.offsets, graph.num_edges, impl="jax")
        out = segment_reference(flat, segments, rows.offsets, reduce)
    return out.astype(data.dtype).reshape(shape)
