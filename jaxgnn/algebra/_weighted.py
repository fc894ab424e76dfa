"""The rule for rows of the senders under weights of the edges, dense and sparse."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn.algebra._edges import EdgeInput, Edges, SparseGather
from jaxgnn.algebra._plans import Plan, Request, match_weighted_rows, maybe_recomputed
from jaxgnn.ops import maxk_spmm, spmm


def weighted_rows(request: Request) -> Plan | None:
    r"""$\mathrm{reduce}_e \, w_e x_j$: `spmm`; of sparse rows `maxk_spmm`."""
    found = match_weighted_rows(request)
    if found is None:
        return None
    weight, x = found
    if isinstance(x, SparseGather):
        return _weighted_sparse_rows(request, weight, x)
    # A weight for each entry is one for each head, of width 1.
    rows = x.x[..., None] if weight is not None and weight.features == x.features != () else x.x

    def run() -> Array:
        weights = None if weight is None else _numbers(request, weight)
        out = spmm(x.graph, rows, weights, reduce=request.reduce, impl=request.impl)
        return out.reshape(x.graph.num_receivers, *x.features).astype(request.dtype)

    return _with_weight(request, weight, Plan(f"spmm({request.reduce}) of {x.text}", run))


def _numbers(request: Request, weight: Edges) -> Array:
    """The values of a weight; a mask as 0 and 1."""
    values = request.values(weight)
    return values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(request.wide)


def _weighted_sparse_rows(request: Request, weight: Edges | None, x: SparseGather) -> Plan | None:
    reduce = request.reduce
    if (reduce != "sum" and reduce != "mean") or len(x.features) != 1:
        return None
    if weight is not None and weight.features:
        return None

    def run() -> Array:
        weights = None if weight is None else _numbers(request, weight)
        out = maxk_spmm(x.graph, x.rows, weights, reduce=reduce, impl=request.impl)
        return out.astype(request.dtype)

    return _with_weight(request, weight, Plan(f"maxk_spmm({reduce}) of {x.text}", run))


def _with_weight(request: Request, weight: Edges | None, fused: Plan) -> Plan:
    """`fused`; a weight that is computed is recomputed in the backward pass."""
    if weight is None:
        return fused
    fused = fused._replace(text=f"{fused.text} weighted by {weight.text}")
    return fused if isinstance(weight, EdgeInput) else maybe_recomputed(request, fused, [weight])
