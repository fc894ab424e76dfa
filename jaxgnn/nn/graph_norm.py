"""Normalization of each graph's nodes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph, graph_argument
from jaxgnn.nn._linear import check_dtypes, width
from jaxgnn.ops import readout, spmm


class GraphNorm(nnx.Module):
    r"""Normalizes each feature over the nodes of each graph, with a learned share of the mean.

    $$y_i = \gamma \, \frac{x_i - \alpha \mu_g}{\sqrt{\sigma_g^2 + \epsilon}} + \beta, \qquad
      \mu_g = \underset{i \in g}{\mathrm{mean}} \, x_i, \qquad
      \sigma_g^2 = \underset{i \in g}{\mathrm{mean}} \, (x_i - \alpha \mu_g)^2$$

    Means are readouts, and reach the nodes by the transpose of the readout. Padding nodes belong to
    a graph of their own, so that they do not count. Rows of 16 bits are computed in float32.

    Args:
        features: width of $x$.
        epsilon: $\epsilon$.
        dtype: of the result; by default that of `x`.
        param_dtype: of the parameters `scale`, `bias` and `mean_scale`, which are $\gamma$, $\beta$
            and $\alpha$.
        rngs: as for every module; nothing is drawn.

    Raises:
        TypeError, ValueError: an option out of range.

    Source: Cai et al., "GraphNorm" (ICML 2021), equation 6; PyG's `GraphNorm`.
    """

    def __init__(
        self,
        features: int,
        *,
        epsilon: float = 1e-5,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        check_dtypes(dtype, param_dtype)
        self.features = width(features, "features")
        self.epsilon = checks.number(epsilon, "epsilon", 0, float("inf"))
        self.dtype = dtype
        self.scale = nnx.Param(jnp.ones(features, param_dtype))
        self.bias = nnx.Param(jnp.zeros(features, param_dtype))
        self.mean_scale = nnx.Param(jnp.ones(features, param_dtype))

    def __call__(
        self, x: Float[Array, "num_nodes features"], membership: Graph | None = None
    ) -> Float[Array, "num_nodes features"]:
        """The normalized rows.

        Args:
            x: a row for each node.
            membership: the graph of each node (`GraphBatch.membership`); one graph if not given.

        Raises:
            TypeError: `membership` is no `Graph`, or `x` is not floating.
            ValueError: a shape that does not fit.
        """
        x = checks.floating(x, "x")
        rows = x.shape[0]
        if membership is not None:
            rows = graph_argument(membership, "membership").num_senders
        if x.shape != (rows, self.features):
            raise ValueError(f"x: expected the shape ({rows}, {self.features}), got {x.shape}")
        dtype = x.dtype if self.dtype is None else self.dtype
        wide = np.promote_types(accumulation_dtype(x.dtype), accumulation_dtype(dtype))
        scale, bias, mean_scale = (
            parameter[...].astype(wide)[None]
            for parameter in (self.scale, self.bias, self.mean_scale)
        )

        def mean(values: Array) -> Array:
            """The mean of each node's graph, at the node."""
            if membership is None:
                return values.sum(axis=0, keepdims=True) / max(rows, 1)
            return spmm(membership, readout(membership, values, "mean"), transpose=True)

        centered = x.astype(wide) - mean(x.astype(wide)) * mean_scale
        deviation = jnp.sqrt(mean(centered * centered) + jnp.asarray(self.epsilon, wide))
        return (scale * centered / deviation + bias).astype(dtype)
