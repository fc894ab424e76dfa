"""Edge convolution whose linear part lies on the nodes: neighbors reduced, then shifted."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph, GraphSubstitute
from jaxgnn.ops._aggregation.spmm import spmm
from jaxgnn.ops._core import checks


@jax.named_scope("jaxgnn.edge_conv")
def edge_conv(
    graph: Graph,
    theta: Float[Array, "num_senders *features"],
    phi: Float[Array, "num_receivers *features"],
    *,
    reduce: Literal["max", "mean", "sum"] = "max",
    impl: Impl = None,
) -> Float[Array, "num_receivers *features"]:
    r"""Reduces over each receiver's edges a term of the sender plus a term of the receiver.

    $$y_i = \mathrm{reduce}_{e = (j \to i)} \; (\theta_j + \varphi_i)$$

    A receiver without edges gets 0. $\varphi_i$ is the same for all edges of a row, so it comes out
    of the reduction: $\varphi_i + \max_j \theta_j$, and with the mean alike; the sum has it once
    for each edge. What remains is `spmm` of $\theta$: no O(E) intermediates, forward or backward.
    Rounding is monotonic, so the maximum is bitwise equal to that of the sums on the edges.

    EdgeConv's message $x_i \Phi + (x_j - x_i) \Theta$ is of this form, with
    $\theta_j = x_j \Theta$ and $\varphi_i = x_i (\Phi - \Theta)$: two node-wise
    projections instead of an edge-wise one.

    Derivatives, of any order: those of `spmm`, which keeps $\theta$, the maxima and how many edges
    attained them (arrays of the nodes' size) and shares the gradient equally at ties; for
    $\varphi$ the cotangent of the rows that have edges, times their number for the sum.

    Args:
        graph: the graph.
        theta: the senders' terms, `[num_senders, ..., F]`.
        phi: the receivers' terms, `[num_receivers, ..., F]`, with the axes and dtype of `theta`.
        reduce: `"max"`, `"mean"` or `"sum"`.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, ..., F]` in the dtype of `theta`.

    Raises:
        TypeError: `graph` is no `Graph`, or the dtypes are not floating or differ.
        ValueError: a shape does not fit, or `reduce` or `impl` is unknown.

    Source: Wang et al., "Dynamic Graph CNN for Learning on Point Clouds" (TOG 2019), section 3.2;
    the reorganization: Zhang et al., "Understanding GNN Computational Graph" (MLSys 2022),
    section 4.
    """
    if not isinstance(graph, GraphSubstitute):
        checks.graph_argument(graph)
    checks.choice(reduce, "reduce", ("max", "mean", "sum"))
    theta = checks.floating_rows(theta, "theta", graph.num_senders, "sender")
    phi = checks.floating_rows(phi, "phi", graph.num_receivers, "receiver")
    if phi.dtype != theta.dtype:
        raise TypeError(f"phi: expected the dtype of theta, {theta.dtype}, got {phi.dtype}")
    if phi.shape[1:] != theta.shape[1:]:
        raise ValueError(
            f"phi: expected the feature axes of theta, {theta.shape[1:]}, got {phi.shape[1:]}"
        )
    wide = accumulation_dtype(theta.dtype)
    # Neither term of the sum is rounded for itself: in 16 bits they may cancel, or leave the range.
    terms = theta.astype(wide) if reduce == "sum" else theta
    reduced = spmm(graph, terms, reduce=reduce, impl=impl)
    if graph.num_edges == 0:
        return reduced.astype(theta.dtype)
    degree = graph.in_degrees.reshape(-1, *(1,) * (theta.ndim - 1))
    if reduce == "sum":
        shifted = (reduced + degree.astype(wide) * phi.astype(wide)).astype(theta.dtype)
    else:
        shifted = reduced + phi
    return jnp.where(degree > 0, shifted, jnp.zeros_like(shifted))
