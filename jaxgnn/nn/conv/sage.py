"""GraphSAGE's convolution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn.graph import Graph
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import Features, aggregate, dense, unit_rows
from jaxgnn.nn._linear import (
    Initializer,
    aggregate_and_transform,
    kaiming_kernel,
    linear,
    linear_pair,
    promoted,
    width_pair,
)
from jaxgnn.nn._sampling import EdgeSample, Strategy
from jaxgnn.ops import CBSR
from jaxgnn.ops._aggregation.spmm import Reduce


class SAGEConv(nnx.Module):
    r"""Convolution that keeps a node apart from its neighbors.

    $$y_i = \mathrm{aggr}_{e = (j \to i)} (w_e x_j) \, W_1 + b + x_i W_2$$

    `"mean"` divides by the number of edges, also when they are weighted. A node without incoming
    edges aggregates to 0. With `project`, $x_j$ is first replaced by
    $\mathrm{relu}(x_j W_3 + b_3)$; with `normalize`, $y_i$ is divided by its length.

    For `"mean"` and `"sum"` the projection by $W_1$ comes before the aggregation if it makes the
    rows narrower. Sparse rows (`CBSR`, what `MaxK` leaves) are then aggregated first, by
    `maxk_spmm`; the other options take their dense form.

    Args:
        in_features: width of $x$, or the pair of the senders' and the receivers'.
        out_features: width of $y$.
        aggr: `"mean"`, `"sum"`, `"max"` or `"min"`.
        root_weight: whether to add $x_i W_2$.
        normalize: divide each row of $y$ by its Euclidean length (at least $10^{-12}$).
        project: transform the senders' features first.
        sample_size: the most edges of a node that are aggregated, from 1 to 4,096, as by
            `jaxgnn.sampled_spmm`; `None` for all.
        sample_rate: the largest share of a node's edges, above 0 and at most 1; with `"dropedge"`
            the probability to keep an edge.
        strategy: which: `"bucket"`, `"fastrand"`, `"stride"`, `"random"` or `"dropedge"`. In
            training the last three draw other edges in every call; after `eval()` `"stride"` takes
            the same ones, and `"dropedge"` all edges.
        use_bias: whether to add $b$.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values; by default PyG's, uniform on
            $\pm 1 / \sqrt{F_\mathrm{in}}$.
        rngs: `params` is used, and `sampling` if edges are drawn.

    Raises:
        TypeError: a width is no integer, or an option that is `True` or `False` is something else.
        ValueError: a width below 1, or an unknown `aggr` or `strategy`, or a `sample_size` with a
            maximum.

    Source: Hamilton et al., "Inductive representation learning on large graphs" (NeurIPS 2017),
    algorithm 1; PyG's `SAGEConv`.
    """

    accepts_pair = True
    accepts_sparse = True
    accepts_node_rows = True

    @_inputs.named_options
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        aggr: Reduce = "mean",
        root_weight: bool = True,
        normalize: bool = False,
        project: bool = False,
        sample_size: int | None = None,
        sample_rate: float | None = None,
        strategy: Strategy = "stride",
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = kaiming_kernel,
        bias_init: Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        checks.choice(aggr, "aggr", ("mean", "sum", "max", "min"))
        checks.booleans(
            root_weight=root_weight, normalize=normalize, project=project, use_bias=use_bias
        )
        senders, receivers = width_pair(in_features, "in_features")

        def layer(in_features: int, out_features: int, use_bias: bool) -> nnx.Linear:
            return linear(
                in_features,
                out_features,
                use_bias=use_bias,
                dtype=dtype,
                param_dtype=param_dtype,
                kernel_init=kernel_init,
                bias_init=bias_init,
                rngs=rngs,
            )

        self.linear_project = layer(senders, senders, True) if project else None
        self.linear_neighbors = layer(senders, out_features, use_bias)
        self.linear_root = layer(receivers, out_features, False) if root_weight else None
        self.sample = EdgeSample(sample_size, strategy, rngs, aggr, sample_rate)
        self.in_features = (senders, receivers)
        self.out_features = out_features
        self.aggr: Reduce = aggr
        self.normalize = normalize
        self.transform_first = aggr in ("mean", "sum") and out_features < senders

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
    ) -> Float[Array, "num_receivers *batch out_features"]:
        """Convolves the features of the nodes.

        Args:
            graph: the graph.
            x: features `[num_nodes, ..., in_features]`, or sparse rows of them, or the pair of
                the senders' and the receivers' (`None`: without $x_i W_2$).
            weights: of the edges, in the graph's edge order, not the user's
                (`Graph.sort_edge_data`); 1 if not given.
            sample_size, sample_rate, strategy: in place of the module's.
            key: of the sample, in place of the one that `rngs` draws.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a shape that does not fit.
        """
        graph = _inputs.graph_or_substitute(graph)
        senders, receivers = _inputs.sender_receiver_pair(graph, x, self.in_features, "SAGEConv")
        if weights is not None:
            weights = checks.edge_weights(weights, graph.num_edges, ())
        sample = self.sample.options(sample_size, sample_rate, strategy, key)
        if self.linear_project is not None:
            senders = jax.nn.relu(self.linear_project(dense(senders)))
        root = None if receivers is None else self.linear_root
        neighbors = self.linear_neighbors
        sparse = isinstance(senders, CBSR) or isinstance(receivers, CBSR)
        if (
            root is not None
            and isinstance(x, tuple | list)
            and not (self.transform_first or sparse)
        ):
            # Both ends' rows are few beside the edges, or written here: as one array.
            around = aggregate(graph, promoted(neighbors, senders), weights, self.aggr, sample)
            assert receivers is not None
            out = linear_pair(neighbors, root, around, dense(receivers))
            return unit_rows(out) if self.normalize else out
        out = aggregate_and_transform(
            neighbors,
            lambda h: aggregate(graph, h, weights, self.aggr, sample),
            senders,
            transform_first=self.transform_first,
        )
        if root is not None:
            assert receivers is not None
            out = out + root(dense(receivers))
        return unit_rows(out) if self.normalize else out
