"""Expressions evaluated on the edges, and what of them is stored for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.algebra import _cost
from jaxgnn.algebra._edges import (
    Applied,
    Dropout,
    EdgeInput,
    Edges,
    NodeGather,
    SegmentNormalize,
    SparseGather,
)
from jaxgnn.graph import own_closure
from jaxgnn.ops import gather_edges, sddmm, segment_reduce
from jaxgnn.ops._core import keep_factors

EDGES = "jaxgnn_edges"
"""The name (`jax.ad_checkpoint.checkpoint_name`) of values on edges."""

NODES = _cost.NODES
"""The name of the results of `gather`, `aggregate` and `apply_vertex`."""

recompute_edges = jax.checkpoint_policies.save_only_these_names(NODES)
"""A policy for `jax.checkpoint` that stores the nodes' values and recomputes the edges'."""


def recomputed(function: Callable[[], Array], policy: _cost.Policy = recompute_edges) -> Array:
    """`function()`, recomputed in the backward pass, which stores what it closes over, and what the
    policy says."""

    def run() -> Array:
        with own_closure():
            return function()

    return jax.checkpoint(run, policy=policy)()  # pyright: ignore[reportCallIssue]


def on_edges(edges: Edges, impl: Impl, *, fuse: bool) -> Float[Array, "num_edges *features"]:
    """The values, each expression computed once; with `fuse` dot products by `sddmm`."""
    computed: dict[int, Array] = {}

    def value(e: Edges) -> Array:
        if id(e) not in computed:
            computed[id(e)] = checkpoint_name(compute(e), EDGES)
            if isinstance(e, Applied):
                computed[id(e)] = checkpoint_name(computed[id(e)], _cost.cost_name(e))
        return computed[id(e)]

    def compute(e: Edges) -> Array:
        if isinstance(e, NodeGather):
            ends = (e.x, None) if e.sender else (None, e.x)
            return gather_edges(e.graph, *ends, impl=impl)
        if isinstance(e, SparseGather):
            return gather_edges(e.graph, e.rows.to_dense(impl=impl), impl=impl)
        if isinstance(e, EdgeInput):
            return e.values
        if isinstance(e, Dropout):
            return _dropped(e, value(e.operand))
        if isinstance(e, SegmentNormalize):
            return _normalized(e, value(e.operand), impl)
        assert isinstance(e, Applied)
        ends = dot_ends(e) if fuse else None
        if ends is not None:
            return sddmm(e.graph, ends[0].x, ends[1].x, impl=impl)
        return e.function(*map(value, e.operands))

    return value(edges)


def dot_ends(e: Edges) -> tuple[NodeGather, NodeGather] | None:
    """Receivers and senders of a dot product of the two ends."""
    if not isinstance(e, Applied) or e.name != "dot":
        return None
    ends = {o.sender: o for o in e.operands if isinstance(o, NodeGather)}
    return (ends[False], ends[True]) if len(ends) == 2 else None


def _dropped(e: Dropout, values: Array) -> Array:
    shape, dtype = values.shape, accumulation_dtype(values.dtype)
    kept = keep_factors(e.philox_key, 0, shape[0], math.prod(shape[1:]), e.drop_below, dtype)
    return (values.astype(dtype) * kept.reshape(shape)).astype(e.dtype)


def _normalized(e: SegmentNormalize, values: Array, impl: Impl) -> Array:
    wide = values.astype(accumulation_dtype(values.dtype))
    reduce = "sum" if e.method == "softmax" else e.method
    if e.method == "softmax":
        largest = segment_reduce(e.graph, jax.lax.stop_gradient(wide), "max", impl=impl)
        # Of a row all of whose edges are masked: no NaN from the difference of two infinities.
        largest = jnp.where(largest == -jnp.inf, jnp.zeros_like(largest), largest)
        largest = checkpoint_name(largest, NODES)
        wide = jnp.exp(wide - gather_edges(e.graph, receivers=largest, impl=impl))
    total = segment_reduce(e.graph, wide, reduce, impl=impl)
    if e.method == "softmax":
        total = jnp.where(total == 0, jnp.ones_like(total), total)
    total = checkpoint_name(total, NODES)
    return (wide / gather_edges(e.graph, receivers=total, impl=impl)).astype(e.dtype)
