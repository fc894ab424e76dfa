"""From nodes to edges and back: the incidence map and its transpose, closed under derivatives."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn import _ffi
from jaxgnn.graph import Graph
from jaxgnn.ops._rows import edges_of, reduce_rows


class End(NamedTuple):
    """Which end of the edges, and whether to divide by the number of edges there."""

    sender: bool
    mean: bool = False


def degree(graph: Graph, end: End) -> Array:
    """Number of edges at each node of that end, at least 1, int32."""
    return jnp.maximum(graph.out_degrees if end.sender else graph.in_degrees, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def spread(
    end: End, graph: Graph, x: Float[Array, "nodes width"]
) -> Float[Array, "num_edges width"]:
    """Copies each node's row to its edges, divided by their number if `end.mean`."""
    if end.mean:
        dtype = _ffi.accumulation_dtype(x.dtype)
        x = (x.astype(dtype) / degree(graph, end).astype(dtype)[:, None]).astype(x.dtype)
    return x[graph.senders if end.sender else graph.receivers]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def collect(
    end: End, graph: Graph, data: Float[Array, "num_edges width"]
) -> Float[Array, "nodes width"]:
    """Sums the rows of each node's edges, or takes their mean if `end.mean`."""
    rows = edges_of(graph, by_sender=end.sender)
    return reduce_rows(rows, data[:, None, :], None, "mean" if end.mean else "sum")[:, 0, :]


def _spread_fwd(end, graph, x):
    return spread(end, graph, x), graph


def _spread_bwd(end, graph, cotangent):
    return None, collect(end, graph, cotangent)


def _collect_fwd(end, graph, data):
    return collect(end, graph, data), graph


def _collect_bwd(end, graph, cotangent):
    return None, spread(end, graph, cotangent)


spread.defvjp(_spread_fwd, _spread_bwd)
collect.defvjp(_collect_fwd, _collect_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def collect_extremum(
    how: tuple[End, str], graph: Graph, data: Float[Array, "num_edges width"]
) -> Float[Array, "nodes width"]:
    """Elementwise `"max"` or `"min"` of the rows of each node's edges; 0 where there are none."""
    end, reduce = how
    rows = edges_of(graph, by_sender=end.sender)
    return reduce_rows(rows, data[:, None, :], None, reduce)[:, 0, :]


def _collect_extremum_fwd(how, graph, data):
    out = collect_extremum(how, graph, data)
    return out, (graph, data, out)


def _collect_extremum_bwd(how, residuals, cotangent):
    graph, data, out = residuals
    end = End(how[0].sender)
    dtype = _ffi.accumulation_dtype(data.dtype)
    attained = data == jax.lax.stop_gradient(spread(end, graph, out))
    ties = jnp.maximum(collect(end, graph, attained.astype(dtype)), jnp.ones((), dtype))
    shares = (cotangent.astype(dtype) / ties).astype(cotangent.dtype)
    return None, jnp.where(attained, spread(end, graph, shares), jnp.zeros((), data.dtype))


collect_extremum.defvjp(_collect_extremum_fwd, _collect_extremum_bwd)
