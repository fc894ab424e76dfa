"""The Gaussian weights of the edges: what they are computed from, checked, and as an array."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.gather_edges import gather_edges
from jaxgnn.ops._core import checks
from jaxgnn.ops._gaussian.kernels import MAX_DIMS, Weighting


def weighting_argument(
    graph: Graph, mu: Any, inv_sigma: Any, pseudo: Any, kernels: int | None, dtype: Any
) -> Weighting:
    """The operands of the weights, checked; `kernels` is their number if `x` determines it."""
    mu = checks.floating(mu, "mu")
    rows, dims = mu.shape if mu.ndim == 2 else (0, 0)
    count: int = max(rows, 1) if kernels is None else kernels
    if mu.shape != (count, dims) or not 1 <= dims <= MAX_DIMS:
        shape = f"({'kernels' if kernels is None else kernels}, dims)"
        raise ValueError(
            f"mu: expected the shape {shape} with 1 to {MAX_DIMS} dims, a row for each kernel, "
            f"got {mu.shape}"
        )
    inv_sigma = checks.matrix(inv_sigma, "inv_sigma", count, dims)
    edges = receivers = senders = None
    if isinstance(pseudo, tuple | list):
        if len(pseudo) != 2:
            raise ValueError(
                f"pseudo: expected an array or a pair (receivers, senders), "
                f"got {len(pseudo)} entries"
            )
        receivers = checks.matrix(pseudo[0], "pseudo[0]", graph.num_receivers, dims).astype(dtype)
        senders = checks.matrix(pseudo[1], "pseudo[1]", graph.num_senders, dims).astype(dtype)
    else:
        edges = checks.matrix(pseudo, "pseudo", graph.num_edges, dims).astype(dtype)
    return Weighting(mu.astype(dtype), inv_sigma.astype(dtype), edges, receivers, senders)


def edge_weights(
    graph: Graph, weighting: Weighting, *, tanh: bool, impl: Impl = None
) -> Float[Array, "num_edges kernels"]:
    """The weights, materialized."""
    places = weighting.edges
    if places is None:
        places = gather_edges(graph, weighting.senders, weighting.receivers, "add", impl=impl)
    if tanh:
        places = jnp.tanh(places)
    distances = (places[:, None, :] - weighting.mu[None]) * weighting.inv_sigma[None]
    return jnp.exp(-0.5 * jnp.sum(distances * distances, axis=-1))
