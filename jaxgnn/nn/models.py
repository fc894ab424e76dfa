"""Models: stacks of graph convolutions with one signature."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn.graph import Graph
from jaxgnn.nn import _inputs
from jaxgnn.nn._dropout import dropout_module
from jaxgnn.nn._features import Features, dense, map_values
from jaxgnn.nn._linear import count, kaiming_kernel, linear, width
from jaxgnn.nn.conv import (
    AGNNConv,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GMMConv,
    SAGEConv,
    TransformerConv,
)
from jaxgnn.nn.maxk import MaxK, check_activation
from jaxgnn.nn.mlp import MLP, Activation, Norm, norm_layers
from jaxgnn.ops import CBSR
from jaxgnn.ops._core import checks

Jumping = Literal["last", "cat", "max"]


class GNN(nnx.Module):
    r"""A stack of graph convolutions.

    Each layer is a convolution (plus the skip connection with `residual`), and, but for the
    last, normalisation, activation and dropout:

    $$x^{(l+1)} = \mathrm{dropout}(\sigma(\mathrm{norm}(\mathrm{conv}_l(x^{(l)}))))$$

    With `input_layer` a product and $\mathrm{dropout} \circ \sigma$ come before the first
    convolution, so that every one of them aggregates hidden rows.

    Where $\sigma$ is `MaxK`, the convolutions get the kept entries alone (`CBSR`), which dropout
    thins out further, and aggregate them by `maxk_spmm`. A layer without the attribute
    `accepts_sparse = True` gets the dense rows. Dropout before the selection is `MaxK`'s own.

    The last convolution's output is the model's. With `jumping` every layer is a hidden one, and
    a product follows that takes the last layer's output, or all layers' side by side or their
    elementwise maximum. A skip connection adds the layer's input to the convolution's output,
    through a product without bias where the widths differ.

    In training dropout and batch statistics are on, as after `model.train()`; `model.eval()`
    turns them off.

    Args:
        in_features, hidden_features, out_features: widths.
        num_layers: number of convolutions.
        conv: makes a layer; called as `conv(in_features, out_features, dtype=..., param_dtype=...,
            rngs=..., **conv_options)`, it gives a module called as `layer(graph, x, weights)`.
        last_conv: makes the layer whose output is the model's, if that is not `conv`.
        activation: $\sigma$, such as `jax.nn.relu` or `MaxK(32)`.
        dropout: share of the hidden values dropped in training.
        input_dropout: share of the input features dropped in training.
        norm: `None`, `"batch"` (over the nodes) or `"layer"` (over a node's features).
        residual: add skip connections.
        jumping: `None`, `"last"`, `"cat"` or `"max"`.
        input_layer: begin with a product from `in_features` to `hidden_features`.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        rngs: `params` is used, and `dropout` if there is any.
        conv_options: passed on to `conv`.

    Raises:
        TypeError: a width or `num_layers` is no integer.
        ValueError: an option out of range, or `MaxK`'s k above `hidden_features`.

    Source: PyG's `BasicGNN`; the skip connection as in Luo et al., "Classic GNNs are strong
    baselines" (NeurIPS 2024); jumping knowledge: Xu et al. (ICML 2018);
    `MaxK` and the input layer: Peng et al., "MaxK-GNN" (ASPLOS 2024).
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        *,
        conv: Callable[..., Any],
        last_conv: Callable[..., Any] | None = None,
        activation: Activation = jax.nn.relu,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        norm: Norm | None = None,
        residual: bool = False,
        jumping: Jumping | None = None,
        input_layer: bool = False,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
        **conv_options: Any,
    ):
        in_features = width(in_features, "in_features")
        hidden_features = width(hidden_features, "hidden_features")
        out_features = width(out_features, "out_features")
        num_layers = count(num_layers, "num_layers", "layers")
        checks.choice(jumping, "jumping", (None, "last", "cat", "max"))
        check_activation(activation, [hidden_features])
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        first = hidden_features if input_layer else in_features
        last = out_features if jumping is None else hidden_features
        widths = [first, *[hidden_features] * (num_layers - 1), last]
        self.linear_in = linear(in_features, first, **types) if input_layer else None
        makers = [conv] * num_layers
        if jumping is None and last_conv is not None:
            makers[-1] = last_conv
        self.convs = nnx.List(
            make(before, after, **types, **conv_options)
            for make, (before, after) in zip(makers, itertools.pairwise(widths), strict=True)
        )
        hidden = widths[1:-1] if jumping is None else widths[1:]
        self.norms = norm_layers(norm, hidden, **types)
        self.skips = nnx.List(
            None if before == after else linear(before, after, use_bias=False, **types)
            for before, after in itertools.pairwise(widths if residual else [])
        )
        joined = hidden_features * (num_layers if jumping == "cat" else 1)
        self.linear = None if jumping is None else linear(joined, out_features, **types)
        self.input_dropout = dropout_module(input_dropout, "input_dropout", rngs)
        self.dropout = dropout_module(dropout, "dropout", rngs)
        self.activation = activation
        self.residual = residual
        self.jumping = jumping
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.num_layers = num_layers

    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes *batch in_features"] | CBSR,
        weights: Float[Array, " num_edges"] | None = None,
    ) -> Float[Array, "num_nodes *batch out_features"]:
        """The outputs of a square graph's nodes.

        Args:
            graph: a square graph.
            x: features `[num_nodes, ..., in_features]`, or sparse rows of them.
            weights: of the edges, in the graph's order; 1 if not given. `GAT`, `GATv2` and
                `Transformer` take features of the edges instead, `[num_edges, edge_dim]`.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a rectangular graph, or a shape that does not fit.
        """
        graph = _inputs.square_graph(graph, type(self).__name__)
        if isinstance(x, tuple | list):
            raise ValueError(f"x: {type(self).__name__} expected one array, got a pair")
        x = _inputs.features(x, "x", graph.num_senders, "node", self.in_features)
        x = map_values(self.input_dropout, x)
        if self.linear_in is not None:
            x = self._activate(self.linear_in(dense(x)))
        outputs = []
        for i, conv in enumerate(self.convs):
            rows = x if getattr(conv, "accepts_sparse", False) else dense(x)
            out: Array = conv(graph, rows, weights)
            if self.residual:
                skip, before = self.skips[i], dense(x)
                out = out + (before.astype(out.dtype) if skip is None else skip(before))
            if self.linear is None and i == self.num_layers - 1:
                return out
            if self.norms is not None:
                out = self.norms[i](out)
            x = self._after_layer(out)
            outputs.append(x)
        assert self.linear is not None
        if self.jumping == "cat":
            return self.linear(jnp.concatenate([dense(rows) for rows in outputs], axis=-1))
        if self.jumping == "max":
            return self.linear(functools.reduce(_larger, map(dense, outputs)))
        return self.linear(dense(x))

    def _after_layer(self, out: Array) -> Features:
        return self._activate(out)

    def _activate(self, x: Array) -> Features:
        """Activation and dropout; the kept entries alone where there are sparse kernels for them:
        without further axes."""
        sparse = isinstance(self.activation, MaxK) and x.ndim == 2
        return map_values(self.dropout, self.activation.sparse(x) if sparse else self.activation(x))


class GCN(GNN):
    """`GNN` of `GCNConv` layers, whose options it takes."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        **options: Any,
    ):
        super().__init__(
            in_features, hidden_features, out_features, num_layers, conv=GCNConv, **options
        )


class GraphSAGE(GNN):
    """`GNN` of `SAGEConv` layers, whose options it takes."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        **options: Any,
    ):
        super().__init__(
            in_features, hidden_features, out_features, num_layers, conv=SAGEConv, **options
        )


class GIN(GNN):
    """`GNN` of `GINConv` layers, whose options it takes.

    Each holds an `MLP` of two products, with the model's normalisation and an activation between.
    That is the model's, but ReLU where the model's is `MaxK`, whose place is before an
    aggregation.

    Args:
        mlp_activation: the activation in the `MLP`s, if not that.
        options: those of `GNN`, and of the `MLP`s and `GINConv`.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        *,
        activation: Activation = jax.nn.relu,
        mlp_activation: Activation | None = None,
        norm: Norm | None = None,
        **options: Any,
    ):
        if mlp_activation is None:
            mlp_activation = jax.nn.relu if isinstance(activation, MaxK) else activation
        super().__init__(
            in_features,
            hidden_features,
            out_features,
            num_layers,
            conv=functools.partial(_gin_layer, activation=mlp_activation, norm=norm),
            activation=activation,
            norm=norm,
            **options,
        )


class GAT(GNN):
    """`GNN` of `GATConv` layers, whose options it takes.

    The heads of a hidden layer stand side by side in `hidden_features`; those of the layer whose
    output is the model's are averaged.

    Args:
        heads: of each layer; must divide `hidden_features`.
        out_heads: of the layer whose output is the model's, if not that (the paper has 8 and 1 on
            Cora).
        concat: if `False`, every layer averages its heads.
        attention_dropout: share of the attention's weights dropped in training, if not `dropout`.
        options: those of `GNN` and `GATConv`.

    Raises:
        ValueError: heads that do not divide `hidden_features`.
    """

    _layer: ClassVar[type[nnx.Module]] = GATConv

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        *,
        heads: int = 1,
        out_heads: int | None = None,
        concat: bool = True,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        **options: Any,
    ):
        heads = count(heads, "heads", "heads")
        if concat and width(hidden_features, "hidden_features") % heads:
            raise ValueError(
                f"hidden_features: expected a multiple of the {heads} heads, got {hidden_features}"
            )
        rate = dropout if attention_dropout is None else attention_dropout
        layer = functools.partial(_layer_of_heads, self._layer, dropout=rate)
        super().__init__(
            in_features,
            hidden_features,
            out_features,
            num_layers,
            conv=functools.partial(layer, heads=heads, concat=concat),
            last_conv=functools.partial(
                layer, heads=heads if out_heads is None else out_heads, concat=False
            ),
            dropout=dropout,
            **options,
        )


class GATv2(GAT):
    """`GAT` of `GATv2Conv` layers, whose options it takes."""

    _layer = GATv2Conv


class Transformer(GAT):
    """`GAT` of `TransformerConv` layers, whose options it takes."""

    _layer = TransformerConv


class AGNN(GNN):
    """`GNN` of `AGNNConv` layers, which only propagate, between two products.

    Begins with a product and an activation, and ends with a product of the last layer's output
    (or of all layers', by `jumping`). Dropout alone follows a layer, as in the paper; with a `norm`
    that and the activation do, too. It takes no weights of the edges.

    Args:
        jumping: `"last"`, `"cat"` or `"max"`; `None` is `"last"`.
        input_layer: there is one in any case.
        options: those of `GNN` and `AGNNConv`.

    Source: Thekumparampil et al. (2018), section 3.2.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        *,
        jumping: Jumping | None = None,
        input_layer: bool = True,
        **options: Any,
    ):
        del input_layer
        super().__init__(
            in_features,
            hidden_features,
            out_features,
            num_layers,
            conv=_agnn_layer,
            jumping="last" if jumping is None else jumping,
            input_layer=True,
            **options,
        )

    def _after_layer(self, out: Array) -> Features:
        # After ReLU averages are at least 0: it would only read and write them, forward and back.
        return map_values(self.dropout, out) if self.norms is None else self._activate(out)


class EdgeConvNet(GNN):
    """`GNN` of `EdgeConv` layers, whose options it takes, each a product on the nodes.

    It takes no weights of the edges.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        **options: Any,
    ):
        super().__init__(
            in_features, hidden_features, out_features, num_layers, conv=EdgeConv, **options
        )


class MoNet(GNN):
    r"""`GNN` of `GMMConv` layers, whose options it takes, on coordinates made of the degrees.

    The coordinates of an edge are $\tanh(A (d_i^{-1/2}, d_j^{-1/2}) + b)$ with $A$ and $b$ of each
    layer, $d_i$ the edges that end at the receiver and $d_j$ those that start at the sender: shares
    of the two ends, so that nothing of the size of the edges is formed. It takes no weights of the
    edges.

    Args:
        dim: number of coordinates.
        kernel_size: number of Gaussians.
        options: those of `GNN` and `GMMConv`.

    Source: Monti et al., "Geometric deep learning on graphs and manifolds using mixture model
    CNNs" (CVPR 2017), section 5.2.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        *,
        dim: int = 2,
        kernel_size: int = 3,
        **options: Any,
    ):
        super().__init__(
            in_features,
            hidden_features,
            out_features,
            num_layers,
            conv=functools.partial(_DegreeGMMConv, dim=dim, kernel_size=kernel_size),
            **options,
        )


class NodeMLP(GNN):
    """`GNN` without the graph: a perceptron on each node's features, the baseline to beat."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        **options: Any,
    ):
        super().__init__(
            in_features, hidden_features, out_features, num_layers, conv=_NodeLinear, **options
        )


def _larger(x: Array, y: Array) -> Array:
    """The maximum, whose derivative goes to `x` at ties, as PyTorch's over a new axis does.

    That of `jnp.maximum` asks which operand equals the result, and XLA may have computed that one
    anew, with other rounding: then neither does.
    """
    return jnp.where((x >= y) | jnp.isnan(x), x, y)


def _gin_layer(
    in_features: int,
    out_features: int,
    *,
    activation: Activation,
    norm: Norm | None,
    eps: float = 0.0,
    train_eps: bool = False,
    dtype: DTypeLike | None,
    param_dtype: DTypeLike,
    rngs: nnx.Rngs,
    **options: Any,
) -> GINConv:
    mlp = MLP(
        [in_features, out_features, out_features],
        activation=activation,
        norm=norm,
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
        **options,
    )
    return GINConv(mlp, eps=eps, train_eps=train_eps, dtype=dtype, param_dtype=param_dtype)


def _layer_of_heads(
    layer: Callable[..., Any],
    in_features: int,
    out_features: int,
    *,
    heads: int,
    concat: bool,
    **options: Any,
) -> Any:
    own = out_features // heads if concat else out_features
    return layer(in_features, own, heads=heads, concat=concat, **options)


def _agnn_layer(in_features: int, out_features: int, *, rngs: nnx.Rngs, **options: Any) -> AGNNConv:
    del in_features, out_features, rngs
    return AGNNConv(**options)


class _DegreeGMMConv(nnx.Module):
    """A `GMMConv` whose coordinates are a learnt function of the ends' degrees."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        dim: int,
        kernel_size: int,
        dtype: DTypeLike | None,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        types = {"param_dtype": param_dtype, "rngs": rngs}
        self.linear = linear(2, dim, **types)
        self.conv = GMMConv(
            in_features, out_features, dim, kernel_size, dtype=dtype, **types, **options
        )

    def __call__(self, graph: Graph, x: Array, weights: None = None) -> Array:
        if weights is not None:
            raise ValueError("weights: MoNet has none, expected None")
        of_receivers, of_senders = self.linear.kernel[...]
        bias = self.linear.bias
        assert bias is not None

        def shares(degree: Array, row: Array) -> Array:
            degree = jnp.maximum(degree, 1).astype(row.dtype)
            return jax.lax.rsqrt(degree)[:, None] * row[None]

        receivers = shares(graph.in_degrees, of_receivers) + bias[...][None]
        pseudo = receivers, shares(graph.out_degrees, of_senders)
        return self.conv(graph, x, pseudo, activation="tanh")


class _NodeLinear(nnx.Module):
    """A product that takes a graph and does not look at it."""

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


MODELS: dict[str, type[GNN]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "gin": GIN,
    "gat": GAT,
    "gatv2": GATv2,
    "agnn": AGNN,
    "transformer": Transformer,
    "edgeconv": EdgeConvNet,
    "monet": MoNet,
    "mlp": NodeMLP,
}
"""Models by name; each is called as `MODELS[name](in_features, hidden_features, out_features,
num_layers, *, dropout=..., ..., rngs=rngs)`."""
