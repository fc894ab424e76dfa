"""Models of convolutions without attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from jaxgnn._core import checks
from jaxgnn.graph import Graph
from jaxgnn.nn._linear import kaiming_kernel, linear
from jaxgnn.nn._sampling import EdgeSample, Strategy
from jaxgnn.nn.conv import EdgeConv, GCNConv, GINConv, GINEConv, GMMConv, SAGEConv
from jaxgnn.nn.maxk import MaxK
from jaxgnn.nn.mlp import MLP, Activation, Norm
from jaxgnn.nn.models.gnn import GNN
from jaxgnn.ops._sampling.sample import STRATEGIES


class GCN(GNN):
    """`GNN` of `GCNConv` layers, whose options it takes."""

    _conv = GCNConv


class GraphSAGE(GNN):
    """`GNN` of `SAGEConv` layers, whose options it takes."""

    _conv = SAGEConv


def _gin_layer(
    in_features: int,
    out_features: int,
    *,
    activation: Activation,
    norm: Any,
    eps: float = 0.0,
    train_eps: bool = False,
    edge_dim: int | None = None,
    sample_size: int | None = None,
    sample_rate: float | None = None,
    strategy: Strategy = "stride",
    dtype: DTypeLike | None,
    param_dtype: DTypeLike,
    rngs: nnx.Rngs,
    **options: Any,
) -> GINConv | GINEConv:
    mlp = MLP(
        [in_features, out_features, out_features],
        activation=activation,
        norm=norm,
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
        **options,
    )
    types: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
    if edge_dim is not None:
        if sample_size is not None or sample_rate is not None:
            raise ValueError("edge_dim: expected no sample_size and no sample_rate with it")
        checks.choice(strategy, "strategy", STRATEGIES)
        if strategy != "stride":
            raise ValueError(
                f"strategy: expected 'stride', the default, with edge_dim, got {strategy!r}"
            )
        return GINEConv(mlp, eps=eps, train_eps=train_eps, edge_dim=edge_dim, **types)
    return GINConv(
        mlp,
        eps=eps,
        train_eps=train_eps,
        sample_size=sample_size,
        sample_rate=sample_rate,
        strategy=strategy,
        **types,
    )


class GIN(GNN):
    """`GNN` of `GINConv` layers, whose options it takes.

    Each holds an `MLP` of two linear layers, with the model's normalization (if that is not
    `"graph"`) and an activation between. That is the model's, but ReLU where the model's is `MaxK`,
    whose place is before an aggregation. With `edge_dim` the layers are `GINEConv`, and the model
    takes features of the edges in the place of weights.

    Args:
        mlp_activation: the activation in the `MLP`s, if not that.
        edge_dim: width of the edges' features.
        options: those of `GNN`, and of the `MLP`s and `GINConv`.

    Raises:
        ValueError: `edge_dim` with a sample or a strategy.
    """

    _conv = staticmethod(_gin_layer)

    @classmethod
    def _layer_options(
        cls,
        hidden_features: int,
        *,
        activation: Activation,
        dropout: float,
        norm: Norm | None,
        mlp_activation: Activation | None = None,
        **conv_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        del hidden_features, dropout
        if mlp_activation is None:
            mlp_activation = jax.nn.relu if isinstance(activation, MaxK) else activation
        inner = None if norm == "graph" else norm
        options = {"activation": mlp_activation, "norm": inner, **conv_options}
        return options, options


class EdgeConvNet(GNN):
    """`GNN` of `EdgeConv` layers, whose options it takes, each a linear map computed on the nodes.

    It takes no weights of the edges.
    """

    _conv = EdgeConv


class _DegreeGMMConv(nnx.Module):
    """A `GMMConv` whose coordinates are a learned function of the ends' degrees."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        dim: int = 2,
        kernel_size: int = 3,
        dtype: DTypeLike | None,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        checks.integer(dim, "dim", 1, 16)
        types = {"param_dtype": param_dtype, "rngs": rngs}
        self.linear = linear(2, dim, **types)
        self.conv = GMMConv(
            in_features, out_features, dim, kernel_size, dtype=dtype, **types, **options
        )

    @property
    def sample(self) -> EdgeSample:
        return self.conv.sample

    def node_scale(
        self, graph: Graph, weights: None, dtype: DTypeLike
    ) -> tuple[Int[Array, " num_nodes"], Int[Array, " num_nodes"]]:
        """The degrees of each node, as receiver and as sender."""
        del weights, dtype
        return graph.in_degrees, graph.out_degrees

    def __call__(
        self,
        graph: Graph,
        x: Array,
        weights: None = None,
        *,
        scale: tuple[Array, Array] | None = None,
        **sample: Any,
    ) -> Array:
        if weights is not None:
            raise ValueError("weights: MoNet has none, expected None")
        of_receivers, of_senders = self.linear.kernel[...]
        bias = self.linear.bias
        assert bias is not None

        def coordinates(degree: Array, row: Array) -> Array:
            degree = jnp.maximum(degree, 1).astype(row.dtype)
            return jax.lax.rsqrt(degree)[:, None] * row[None]

        in_degrees, out_degrees = (graph.in_degrees, graph.out_degrees) if scale is None else scale
        receivers = coordinates(in_degrees, of_receivers) + bias[...][None]
        pseudo = receivers, coordinates(out_degrees, of_senders)
        return self.conv(graph, x, pseudo, activation="tanh", **sample)


class MoNet(GNN):
    r"""`GNN` of `GMMConv` layers, whose options it takes, on coordinates made of the degrees.

    The coordinates of an edge are $\tanh(A (d_i^{-1/2}, d_j^{-1/2}) + b)$ with $A$ and $b$ of each
    layer, $d_i$ the edges that end at the receiver and $d_j$ those that start at the sender: sums
    of a term of each end, so that there are no O(E) intermediates without a sample. It takes no
    weights of the edges.

    Args:
        dim: number of coordinates, 2 if not given.
        kernel_size: number of Gaussians, 3 if not given.
        options: those of `GNN` and `GMMConv`.

    Source: Monti et al., "Geometric deep learning on graphs and manifolds using mixture model
    CNNs" (CVPR 2017), section 5.2.
    """

    _conv = _DegreeGMMConv


class _NodeLinear(nnx.Module):
    """A linear layer that takes a graph and ignores it."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        kernel_init: Any = kaiming_kernel,
        **options: Any,
    ):
        self.linear = linear(in_features, out_features, kernel_init=kernel_init, **options)

    def __call__(self, graph: Graph, x: Array, weights: Array | None = None) -> Array:
        del graph, weights
        return self.linear(x)


class NodeMLP(GNN):
    """`GNN` without the graph: an MLP on each node's features, the baseline to beat."""

    _conv = _NodeLinear
