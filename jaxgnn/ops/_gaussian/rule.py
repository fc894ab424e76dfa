"""Sums under Gaussian weights as one differentiable map, and as a composition of simpler
operations."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.spmm import spmm
from jaxgnn.ops._core.degree import divide_by_degree
from jaxgnn.ops._core.recomputed import recomputed
from jaxgnn.ops._gaussian import kernels
from jaxgnn.ops._gaussian.kernels import Gaussians, Weighting
from jaxgnn.ops._gaussian.weights import edge_weights


class Operands(NamedTuple):
    """What the sums are computed from.

    Attributes:
        graph: the graph.
        x: what is summed: rows for each kernel, or a row for all of them.
        weighting: what the weights are computed from.
    """

    graph: Graph
    x: Float[Array, "num_senders kernels width"] | Float[Array, "num_senders width"]
    weighting: Weighting


def _forward(static: Gaussians, operands: Operands) -> tuple[Array, tuple[()]]:
    return kernels.sums(static, *operands, transpose=False), ()


def _gradients(
    static: Gaussians, operands: Operands, out: Array, residuals: tuple[()], cotangent: Array
) -> tuple[Array, Weighting]:
    r"""The gradients, from weights recomputed in the backward pass.

    With $g_{ek} = w_{ek} \langle dy_i, x_{jk} \rangle$ and $s_k$ = `inv_sigma`, by coordinate,

    $$dx_{jk} = \sum_e w_{ek} \, dy_i, \qquad dp_e = -\sum_k g_{ek} (p_e - \mu_k) s_k^2, \qquad
      d\mu_k = \sum_e g_{ek} (p_e - \mu_k) s_k^2, \qquad
      ds_k = -\sum_e g_{ek} (p_e - \mu_k)^2 s_k,$$

    of a mean with $dy_i$ divided by the number of edges. Of a row for all kernels it is
    $g_{ek} = w_{ek} \langle dy_{ik}, x_j \rangle$ and $dx_j = \sum_{ek} w_{ek} \, dy_{ik}$.
    """
    del out, residuals
    graph, x, weighting = operands
    cotangent = divide_by_degree(graph, "receivers" if static.reduce == "mean" else None, cotangent)
    dx = kernels.sums(static, graph, cotangent, weighting, transpose=True)
    return dx, kernels.weighting_gradients(static, graph, x, cotangent, weighting)


def composition(static: Gaussians, operands: Operands, impl: Impl = None) -> Array:
    """The sums composed of operations on edges; it materializes `[num_edges, kernels]` weights."""
    graph, x, weighting = operands
    weights = edge_weights(graph, weighting, tanh=static.tanh, impl=impl)
    reduce = "mean" if static.reduce == "mean" else "sum"
    shared_input = x.ndim == 2
    rows = x.astype(weighting.mu.dtype)
    if shared_input:
        rows = jnp.broadcast_to(rows[:, None], (x.shape[0], weighting.mu.shape[0], x.shape[1]))
    out = spmm(graph, rows, weights, reduce=reduce, impl=impl)
    return (out if shared_input else jnp.sum(out, axis=1)).astype(x.dtype)


gaussian_aggregate = recomputed(kernels.TARGETS, _forward, _gradients, composition)
"""The sums, or means, of the weighted rows: `[num_receivers, width]` over the kernels, too, of rows
for each; `[num_receivers, kernels, width]` of a row for all."""
