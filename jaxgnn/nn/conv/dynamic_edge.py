"""The edge convolution on the nearest neighbors in the space of the features."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn._core import checks
from jaxgnn._core.arguments import unwrap
from jaxgnn.nn import _inputs
from jaxgnn.nn._linear import count
from jaxgnn.nn.conv.edge import EdgeConv
from jaxgnn.ops import knn_graph


class DynamicEdgeConv(nnx.Module):
    r"""`EdgeConv` on the graph of the `k` nearest neighbors of each point's features.

    The graph is made in the call (`jaxgnn.knn_graph`, on the device), from the features as they
    are then; a point is one of its own neighbors, as in PyG. No gradient flows through the
    choice of the neighbors.

    Args:
        in_features: width of $x$.
        out_features: width of $y$.
        k: number of neighbors.
        options: those of `EdgeConv`: `aggr`, `mlp`, `use_bias`, `dtype`, `param_dtype`,
            `kernel_init`, `bias_init`, `rngs`.

    Raises:
        TypeError: a width or `k` is no integer, or `mlp` no module.
        ValueError: a width or `k` below 1, a width that is not that of `mlp`, or an unknown
            `aggr`.

    Source: Wang et al., "Dynamic Graph CNN for Learning on Point Clouds" (TOG 2019), section 3.3;
    PyG's `DynamicEdgeConv`.
    """

    @_inputs.named_options
    def __init__(self, in_features: int, out_features: int, k: int, **options: Any):
        self.k = count(k, "k", "neighbors")
        self.conv = EdgeConv(in_features, out_features, **options)
        self.in_features = in_features
        self.out_features = out_features

    @_inputs.named_arguments
    def __call__(
        self,
        x: Float[Array, "num_points in_features"] | Float[Array, "clouds num_points in_features"],
        batch: Int[Array, " num_points"] | None = None,
    ) -> Float[Array, "*points out_features"]:
        """Convolves the features of the points.

        Args:
            x: `[num_points, in_features]`, or of clouds of one size
                `[clouds, num_points, in_features]`.
            batch: the cloud of each point, integers, for clouds of any sizes; best sorted. Batch
                statistics in an `mlp` then count the edges that pad small clouds.

        Returns:
            An array like `x`, with rows of `out_features`.

        Raises:
            TypeError: `x` is not floating, or `batch` not of integers.
            ValueError: a shape that does not fit.
        """
        x = unwrap(x)
        if not isinstance(x, jax.Array | np.ndarray):
            raise TypeError(f"x: expected an array, got {type(x).__name__}")
        if x.ndim not in (2, 3) or x.shape[-1] != self.in_features:
            raise ValueError(
                f"x: expected the shape (num_points, {self.in_features}) or (clouds, num_points, "
                f"{self.in_features}), got {x.shape}"
            )
        x = checks.floating(x, "x")
        padding_node = batch is not None
        graph = knn_graph(x, self.k, batch=batch, padding_node=padding_node, loop=True)
        rows = x.reshape(-1, self.in_features)
        if batch is None:
            return self.conv(graph, rows).reshape(*x.shape[:-1], self.out_features)
        padded = jnp.concatenate([rows, jnp.zeros_like(rows, shape=(1, self.in_features))])
        return self.conv(graph, padded)[:-1]
