"""The rule for MoNet: rows under Gaussians of the edges' coordinates."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.algebra._edges import Applied, EdgeInput, Edges, NodeGather
from jaxgnn.algebra._plans import Plan, Request, maybe_recomputed, split_by_end
from jaxgnn.ops import gaussian_spmm
from jaxgnn.ops._gaussian.weights import MAX_DIMS

_TANH = (jnp.tanh, jax.lax.tanh, jax.nn.tanh)


def gaussian_mixture(request: Request) -> Plan | None:
    r"""$\sum_e \sum_k w_k(p_e) \, x_{jk}$, and $\sum_e w_k(p_e) \, x_j$ of a row for all kernels:
    `gaussian_spmm`.

    The coordinates of the edges may be sums of the two ends', and go through a tanh.
    """
    matched = _match(request.edges)
    if matched is None or request.reduce not in ("sum", "mean"):
        return None
    gaussians, x, rows = matched
    mu, inv_sigma = gaussians.parameters
    if not 1 <= mu.shape[1] <= MAX_DIMS:
        return None
    (coordinates,) = gaussians.operands
    activation = None
    if isinstance(coordinates, Applied) and coordinates.function in _TANH:
        activation, (coordinates,) = "tanh", coordinates.operands
    source, target, rest = split_by_end(coordinates, accumulation_dtype(coordinates.dtype))

    def pseudo() -> Array | tuple[Array, Array]:
        if rest:
            return request.values(coordinates)
        graph, dims = x.graph, mu.shape[1]
        receivers = jnp.zeros((graph.num_receivers, dims)) if target is None else target
        return receivers, jnp.zeros((graph.num_senders, dims)) if source is None else source

    def run() -> Array:
        out = gaussian_spmm(
            x.graph,
            rows,
            mu,
            inv_sigma,
            pseudo(),
            reduce="sum" if request.reduce == "sum" else "mean",
            activation=activation,
            impl=request.impl,
        )
        shape = (x.graph.num_receivers, *request.edges.features)
        return out.reshape(shape).astype(request.dtype)

    through = f"tanh({coordinates.text})" if activation else coordinates.text
    text = f"gaussian_spmm({request.reduce}) of {x.text} under gaussian({through})"
    found = Plan(text, run, ("in backward the kernel recomputes: Gaussians",))
    computed = rest and not isinstance(coordinates, EdgeInput)
    return maybe_recomputed(request, found, [coordinates]) if computed else found


def _match(e: Edges) -> tuple[Applied, NodeGather, Array] | None:
    """The Gaussians, the senders' rows, and those as `gaussian_spmm` takes them."""
    if not isinstance(e, Applied) or e.name not in ("weighted_sum", "*"):
        return None
    gaussians = [o for o in e.operands if isinstance(o, Applied) and o.name == "gaussian"]
    rows = [o for o in e.operands if isinstance(o, NodeGather) and o.sender]
    if len(gaussians) != 1 or len(rows) != 1:
        return None
    kernels, x = gaussians[0].features[0], rows[0]
    width = math.prod(x.features[1:])
    if e.name == "weighted_sum":
        return gaussians[0], x, x.x.reshape(x.x.shape[0], kernels, width)
    if len(x.features) < 2 or x.features[0] != 1:
        return None
    return gaussians[0], x, x.x.reshape(x.x.shape[0], width)
