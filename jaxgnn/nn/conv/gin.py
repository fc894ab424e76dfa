"""The graph isomorphism network's convolution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph, GraphSubstitute
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import Features, aggregate, cast, dense
from jaxgnn.nn._linear import aggregate_and_transform
from jaxgnn.nn._sampling import EdgeSample, Strategy
from jaxgnn.nn.mlp import MLP
from jaxgnn.ops import CBSR


def epsilon(eps: Any, train: bool, param_dtype: DTypeLike) -> nnx.Param | float:
    r"""$\varepsilon$, checked: a parameter or a number."""
    checks.boolean(train, "train_eps")
    dtype = checks.floating_dtype(param_dtype, "param_dtype")
    if isinstance(eps, jax.Array | np.ndarray) and eps.ndim == 0:
        is_traced = isinstance(eps, Tracer)
        if is_traced and train and not jnp.issubdtype(eps.dtype, jnp.complexfloating):
            return nnx.Param(eps.astype(dtype))
        eps = eps if is_traced else eps.item()
    eps = checks.number(eps, "eps", -math.inf, math.inf)
    return nnx.Param(jnp.asarray(eps, dtype)) if train else eps


class GINConv(nnx.Module):
    r"""Convolution as discriminating as the Weisfeiler–Lehman test.

    $$y_i = h \Big( (1 + \varepsilon) \, x_i + \sum_{e = (j \to i)} w_e x_j \Big)$$

    If $h$ is a `jaxgnn.nn.MLP`, its first layer comes before the aggregation if it makes the
    rows narrower. Sparse rows (`CBSR`, what `MaxK` leaves) are aggregated first, by `maxk_spmm`.

    Args:
        nn: $h$, applied to the rows: an `MLP`, any module, or a function.
        eps: $\varepsilon$, or its initial value.
        train_eps: make $\varepsilon$ a parameter.
        sample_size: the most edges of a node that are aggregated, from 1 to 4,096, the sum
            rescaled (`jaxgnn.sampled_spmm`); `None` for all.
        sample_rate: the largest share of a node's edges, above 0 and at most 1; with `"dropedge"`
            the probability to keep an edge.
        strategy: which: `"bucket"`, `"fastrand"`, `"stride"`, `"random"` or `"dropedge"`. In
            training the last three draw other edges in every call; after `eval()` `"stride"` takes
            the same ones, and `"dropedge"` all edges.
        dtype: of the aggregation; by default that of `x` (of $h$'s first layer where that
            comes first). `nn` has its own.
        param_dtype: of the parameter $\varepsilon$.
        rngs: `sampling` is used, if edges are drawn.

    Raises:
        TypeError: `nn` cannot be called, `eps` is no number, or a dtype is not floating.
        ValueError: `eps` is not finite, or an option of the sample out of range.

    Source: Xu et al., "How powerful are graph neural networks?" (ICLR 2019), equation 4.1; PyG's
    `GINConv`.
    """

    accepts_pair = True
    accepts_sparse = True
    accepts_node_rows = True
    accepts_node_mask = True

    @_inputs.named_options
    def __init__(
        self,
        nn: Callable[[Array], Array],
        *,
        eps: float = 0.0,
        train_eps: bool = False,
        sample_size: int | None = None,
        sample_rate: float | None = None,
        strategy: Strategy = "stride",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        if not callable(nn):
            raise TypeError(f"nn: expected a module or a function, got {type(nn).__name__}")
        if dtype is not None:
            checks.floating_dtype(dtype, "dtype")
        self.nn = nn
        self.eps = epsilon(eps, train_eps, param_dtype)
        self.sample = EdgeSample(sample_size, strategy, rngs, sample_rate=sample_rate)
        self.dtype = dtype
        self.transform_first = isinstance(nn, MLP) and nn.features[1] < nn.features[0]

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes *batch in_features"] | CBSR | tuple[Features, Features | None],
        weights: Float[Array, " num_edges"] | None = None,
        *,
        sample_size: int | None = None,
        sample_rate: float | None = None,
        strategy: Strategy | None = None,
        key: Array | None = None,
        node_mask: Bool[Array, " num_receivers"] | None = None,
    ) -> Float[Array, "num_receivers *batch out_features"]:
        """Convolves the features of the nodes.

        Args:
            graph: the graph.
            x: features `[num_nodes, ..., in_features]`, or sparse rows of them, or the pair of
                the senders' and the receivers' of the same width (`None`: the sum over the
                edges alone).
            weights: of the edges, in the graph's edge order, not the user's
                (`Graph.sort_edge_data`); 1 if not given.
            sample_size, sample_rate, strategy: in place of the module's.
            key: of the sample, in place of the one that `rngs` draws.
            node_mask: the receivers that are no padding, for batch normalization in an `MLP`.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a shape that does not fit.
        """
        graph = _inputs.graph_or_substitute(graph)
        width = self.nn.features[0] if isinstance(self.nn, MLP) else None
        pair = _inputs.sender_receiver_pair(graph, x, (width, width), "GINConv")
        if pair[1] is not None and pair[0].shape[1:] != pair[1].shape[1:]:
            raise ValueError(
                f"x[1]: expected the feature axes of x[0], {pair[0].shape[1:]}, "
                f"got {pair[1].shape[1:]}"
            )
        if weights is not None:
            weights = checks.edge_weights(weights, graph.num_edges, ())
        if isinstance(graph, GraphSubstitute):
            node_mask = graph.node_mask if node_mask is None else node_mask
            if isinstance(self.nn, nnx.Module):
                _inputs.check_inner_module(self.nn, "GINConv")
        sample = self.sample.options(sample_size, sample_rate, strategy, key)
        # One array for both ends stays one, to be multiplied once.
        rows = pair[0] if pair[1] is pair[0] else pair
        if not isinstance(self.nn, MLP):
            return self.nn(self._aggregate(graph, rows, weights, sample))
        hidden = aggregate_and_transform(
            self.nn.linears[0],
            lambda h: self._aggregate(graph, h, weights, sample),
            rows,
            transform_first=self.transform_first,
        )
        return self.nn.after_first(hidden, mask=node_mask)

    def _aggregate(
        self,
        graph: Graph,
        x: Features | tuple[Features, Features | None],
        weights: Array | None,
        sample: dict[str, Any] | None,
    ) -> Array:
        senders, receivers = x if isinstance(x, tuple) else (x, x)
        dtype = senders.dtype if self.dtype is None else self.dtype
        senders = cast(senders, dtype)
        out = aggregate(graph, senders, weights, sample=sample)
        if receivers is None:
            return out
        wide = accumulation_dtype(out.dtype)
        eps = self.eps[...] if isinstance(self.eps, nnx.Param) else jnp.asarray(self.eps)
        scale = 1 + eps.astype(wide)
        # One rounding, after the sum; the root's row is cast like the senders' rows.
        root = dense(receivers).astype(dtype).astype(wide)
        return (out.astype(wide) + scale * root).astype(out.dtype)
