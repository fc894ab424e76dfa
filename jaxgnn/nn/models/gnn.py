"""The model that all others are: a stack of graph convolutions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Blocks, Graph, GraphSubstitute, NodeRows
from jaxgnn.graph.batch import GraphBatch
from jaxgnn.nn import _inputs
from jaxgnn.nn._activation import activate
from jaxgnn.nn._blocks import convolve, layer_graphs
from jaxgnn.nn._dropout import drop, dropout_module
from jaxgnn.nn._features import Features, dense, first_rows
from jaxgnn.nn._linear import count, linear, linear_of_rows, promote, width
from jaxgnn.nn._recompute import recomputed
from jaxgnn.nn._sampling import SampleSize, Strategy, calls_of_layers, of_layers
from jaxgnn.nn.graph_norm import GraphNorm
from jaxgnn.nn.maxk import MaxK, check_activation, normalizes
from jaxgnn.nn.mlp import Activation, Norm, norm_layers, normalize
from jaxgnn.ops import CBSR

Jumping = Literal["last", "cat", "max"]


class GNN(nnx.Module):
    r"""A stack of graph convolutions.

    Each layer is a convolution (plus the skip connection with `residual`). Normalization,
    activation and dropout follow each but the last:

    $$x^{(l+1)} = \mathrm{dropout}(\sigma(\mathrm{norm}(\mathrm{conv}_l(x^{(l)}))))$$

    With `input_layer` a linear layer and $\mathrm{dropout} \circ \sigma$ come before the first
    convolution, so that every convolution aggregates hidden rows.

    Where $\sigma$ is `MaxK`, the convolutions get the kept entries alone (`CBSR`), after dropout,
    and aggregate them by `maxk_spmm`: those of `GCN`, `GraphSAGE` and `GIN`. A layer without the
    attribute `accepts_sparse = True`, as every other one, gets the dense rows. Dropout before the
    selection is `MaxK`'s own.

    The last convolution's output is the model's. With `jumping` every layer is a hidden one, and
    a linear layer follows. It takes the last layer's output, all layers' outputs concatenated, or
    their elementwise maximum. A skip connection adds the layer's input to the convolution's
    output, through a linear projection without bias where the widths differ.

    Every model is one of these. A subclass names its convolution, and maps the model's options to
    those of its layers where they differ (`_layer_options`).

    In training dropout and batch statistics are on, as after `model.train()`; `model.eval()`
    turns them off.

    Args:
        in_features, hidden_features, out_features: widths (PyG has the number of layers second to
            last). All that follows is named.
        num_layers: number of convolutions.
        conv: makes a layer; called as `conv(in_features, out_features, dtype=..., param_dtype=...,
            rngs=..., **conv_options)`, it gives a module called as `layer(graph, x, weights)`.
            Required of `GNN`; the other models have their own.
        last_conv: makes the layer whose output is the model's, if that is not `conv`; with
            `jumping` there is none.
        activation: $\sigma$, such as `jax.nn.relu` or `MaxK(32)`.
        dropout: share of the hidden values dropped in training.
        input_dropout: share of the input features dropped in training.
        norm: `None`, `"batch"` (over the nodes), `"layer"` (over a node's features) or `"graph"`
            (`GraphNorm`, over the nodes of each graph of a batch; not of blocks or shards).
        residual: add skip connections.
        jumping: `None`, `"last"`, `"cat"` or `"max"`.
        input_layer: begin with a linear layer from `in_features` to `hidden_features`.
        recompute: the backward pass computes normalization, activation and dropout again: of each
            hidden layer the convolution's output and the next one's input are kept, and nothing
            between them.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        rngs: `params` is used, and `dropout` if there is any.
        conv_options: passed on to `conv`; a `sample_size` may be a sequence, one a layer.

    Raises:
        TypeError: a width or `num_layers` is no integer, an option that is `True` or `False` is
            something else, or `conv` or `last_conv` cannot be called.
        ValueError: an option out of range, `MaxK`'s k above `hidden_features`, or `last_conv` with
            `jumping`.

    Source: PyG's `BasicGNN`; the skip connection as in Luo et al., "Classic GNNs are strong
    baselines" (NeurIPS 2024); jumping knowledge: Xu et al. (ICML 2018);
    `MaxK` and the input layer: Peng et al., "MaxK-GNN" (ASPLOS 2024).
    """

    _conv: ClassVar[Callable[..., Any] | None] = None
    """A subclass's `conv`."""

    _propagates_only: ClassVar[bool] = False
    """Its layers keep the width of their input: `input_layer`."""

    _default_jumping: ClassVar[Jumping | None] = None
    """`jumping` if not given."""

    @_inputs.named_options
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int,
        conv: Callable[..., Any] | None = None,
        last_conv: Callable[..., Any] | None = None,
        activation: Activation = jax.nn.relu,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        norm: Norm | None = None,
        residual: bool = False,
        jumping: Jumping | None = None,
        input_layer: bool = False,
        recompute: bool = False,
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
        checks.booleans(residual=residual, input_layer=input_layer, recompute=recompute)
        conv = self._conv if conv is None else conv
        if not callable(conv):
            raise TypeError(f"conv: expected what makes a layer, got {type(conv).__name__}")
        input_layer = input_layer or self._propagates_only
        jumping = self._default_jumping if jumping is None else jumping
        if last_conv is not None:
            if not callable(last_conv):
                got = type(last_conv).__name__
                raise TypeError(f"last_conv: expected what makes a layer, got {got}")
            if jumping is not None:
                raise ValueError(f"last_conv: expected None with {jumping=}, got {last_conv!r}")
        hidden_options, last_options = self._layer_options(
            hidden_features, activation=activation, dropout=dropout, norm=norm, **conv_options
        )
        check_activation(activation, [hidden_features])
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        first = hidden_features if input_layer else in_features
        last = out_features if jumping is None else hidden_features
        widths = [first, *[hidden_features] * (num_layers - 1), last]
        self.linear_in = linear(in_features, first, **types) if input_layer else None
        layers = [functools.partial(conv, **hidden_options)] * num_layers
        if jumping is None:
            layers[-1] = functools.partial(last_conv or conv, **last_options)
        if isinstance(conv_options.get("sample_size"), Sequence):
            sizes = of_layers(conv_options["sample_size"], num_layers)
            layers = [
                functools.partial(layer, sample_size=size)
                for layer, size in zip(layers, sizes, strict=True)
            ]
        self.convs = nnx.List(
            layer(before, after, **types)
            for layer, (before, after) in zip(layers, itertools.pairwise(widths), strict=True)
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
        self.recompute = recompute
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.num_layers = num_layers

    @classmethod
    def _layer_options(
        cls,
        hidden_features: int,
        *,
        activation: Activation,
        dropout: float,
        norm: Norm | None,
        **conv_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options of a layer, and of the layer whose output is the model's."""
        del hidden_features, activation, dropout, norm
        return conv_options, conv_options

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph | GraphSubstitute | Blocks | GraphBatch,
        x: Float[Array, "num_nodes *batch in_features"] | CBSR | NodeRows,
        weights: Float[Array, " num_edges"] | Float[Array, "num_edges edge_dim"] | None = None,
        *,
        sample_size: SampleSize = None,
        sample_rate: float | None = None,
        strategy: Strategy | None = None,
        key: Array | None = None,
    ) -> Float[Array, "num_nodes *batch out_features"]:
        """The outputs of a square graph's or a batch's nodes, or of the seeds of sampled blocks.

        Args:
            graph: a square graph, also one over several devices
                (`jaxgnn.distributed.ShardedGraph`); or `Blocks` of as many hops as there are
                layers; or a `GraphBatch` of square graphs, whose padding batch normalization leaves
                out. In blocks sampled without `deduplicate` a self-loop of the graph is an edge
                from another place: layers that put one self-loop at each node (`GCNConv` without
                degrees, `GATConv`, `GATv2Conv`, `AGNNConv`) then have it and their own: sample from
                a graph without (`jaxgnn.transform.remove_self_loops`).
            x: features `[num_nodes, ..., in_features]`, or sparse rows of them; of blocks
                `blocks.take(features)`, or `blocks.rows(features)`.
            weights: of the edges, in the graph's edge order, not the user's
                (`Graph.sort_edge_data`); 1 if not given. `GAT`, `GATv2`, `Transformer` and a
                `GIN` with `edge_dim` take features of the edges instead, `[num_edges, edge_dim]`.
                Of blocks `blocks.take_edges(weights)`.
            sample_size: of each layer, one for all or one a layer, where its convolution takes it;
                by default what the model was made with.
            sample_rate, strategy, key: of the samples, likewise, for all layers.

        Raises:
            TypeError: `graph` is none of these, or a dtype is not floating.
            ValueError: a rectangular graph, blocks of another number of hops, or a shape that does
                not fit.
        """
        masked = isinstance(graph, Blocks | GraphBatch | GraphSubstitute)
        mask = graph.node_mask if masked else None
        membership = graph.membership if isinstance(graph, GraphBatch) else None
        graph = graph.graph if isinstance(graph, GraphBatch) else graph
        if not isinstance(graph, Graph) and self.norms and isinstance(self.norms[0], GraphNorm):
            got = type(graph).__name__
            raise ValueError(f'graph: norm="graph" expected all nodes of a graph, got {got}')
        graphs = layer_graphs(graph, weights, self.convs, type(self).__name__)
        blocks = graph if isinstance(graph, Blocks) else None
        outputs_of = graph.num_seeds if isinstance(graph, Blocks) else graphs[-1].num_receivers
        _inputs.check_no_pair(x, type(self).__name__)
        x = _inputs.features(x, "x", graphs[0].num_senders, "node", self.in_features)
        x = self._before_layers(x, graphs[0])
        calls = calls_of_layers(self.convs, sample_size, sample_rate, strategy, key)
        outputs = []
        for i, layer_graph in enumerate(graphs):
            of_nodes = mask, membership, blocks
            x = self._layer(i, layer_graph, x, weights, *of_nodes, **calls[i])
            outputs.append(first_rows(x, outputs_of))
        if self.linear is None:
            return dense(outputs[-1])
        if self.jumping == "cat":
            x = jnp.concatenate([dense(rows) for rows in outputs], axis=-1)
        elif self.jumping == "max":
            x = functools.reduce(_larger, map(dense, outputs))
        else:
            x = dense(outputs[-1])
        return linear_of_rows(self.linear, x, graphs[-1])

    def _before_layers(self, x: Features, graph: Graph | None = None) -> Features:
        """What the first layer takes."""
        if self.input_dropout.rate > 0:
            x = drop(self.input_dropout, x, graph)
        if self.linear_in is not None:
            x = self._activate(linear_of_rows(self.linear_in, dense(x), graph), graph)
        return x

    def _layer(
        self,
        i: int,
        graph: Graph,
        x: Features,
        weights: Any = None,
        mask: Bool[Array, " places"] | None = None,
        membership: Graph | None = None,
        blocks: Blocks | None = None,
        **call: Any,
    ) -> Features:
        """The receivers' rows after a layer: the next one's input, or the model's output."""
        conv = self.convs[i]
        kind = "accepts_node_rows" if isinstance(x, NodeRows) else "accepts_sparse"
        if mask is not None and getattr(conv, "accepts_node_mask", False):
            call["node_mask"] = mask[: graph.num_receivers]
        with jax.named_scope(f"layer_{i}_{type(conv).__name__}"):  # for profiles and `jaxgnn info`
            rows = x if getattr(conv, kind, False) else dense(x)
            try:
                out = convolve(conv, graph, rows, weights, blocks, **call)
            except (TypeError, ValueError) as error:
                if not str(error).startswith("edge_attr: "):
                    raise
                # The layer's name of the argument that is `weights` here.
                message = str(error).replace("edge_attr", "weights", 1)
                raise type(error)(message) from None
        if self.residual:
            skip, before = self.skips[i], dense(first_rows(x, graph.num_receivers))
            out = out + (before.astype(out.dtype) if skip is None else skip(before))
        if self.linear is None and i == self.num_layers - 1:
            return out

        def after(model: GNN, out: Array) -> Features:
            norm = None if model.norms is None else model.norms[i]
            if norm is not None and not normalizes(model.activation, norm):
                out, norm = normalize(norm, out, mask, membership), None
            return model._after_layer(out, graph, norm)

        return recomputed(after, self, out) if self.recompute else after(self, out)

    def _join(self, i: int, before: Array | None, x: Features) -> Array:
        """The outputs of the layers up to this one, as far as `jumping` needs them: with the last
        layer the model's output. `"cat"` adds the layers' terms of the linear layer."""
        last = i == self.num_layers - 1
        rows = dense(x)
        if self.linear is None:
            return rows
        if self.jumping == "cat":
            joined = _linear_term(self.linear, i, rows)
            joined = joined if before is None else before + joined
            if not last:
                return joined
            dtype = promote(self.linear, rows).dtype
            assert self.linear.bias is not None
            return (joined + self.linear.bias[...].astype(joined.dtype)).astype(dtype)
        if self.jumping == "max" and before is not None:
            rows = _larger(before, rows)
        return self.linear(rows) if last else rows

    def _after_layer(
        self, out: Array, graph: Graph | None = None, norm: nnx.LayerNorm | None = None
    ) -> Features:
        """What follows a layer, and its normalization but for a `norm` that `MaxK` applies."""
        return self._activate(out, graph, norm)

    def _activate(
        self, x: Array, graph: Graph | None = None, norm: nnx.LayerNorm | None = None
    ) -> Features:
        """Activation and dropout. `MaxK` gives sparse rows where they have kernels: without
        further axes; of a sharded graph's nodes each device's own."""
        if not isinstance(self.activation, MaxK):
            return drop(self.dropout, activate(self.activation, x), graph)
        out = self.activation.sparse(x, norm=norm, graph=graph)
        return drop(self.dropout, out if x.ndim == 2 else out.to_dense(), graph)


def _linear_term(
    layer: nnx.Linear, i: int, rows: Float[Array, "*rows width"]
) -> Float[Array, "*rows out_features"]:
    """The term of the `i`-th of several arrays that a linear layer takes concatenated, in the
    accumulation dtype."""
    rows = promote(layer, rows)
    width = rows.shape[-1]
    kernel = layer.kernel[...].astype(rows.dtype)[i * width : (i + 1) * width]
    dtype = accumulation_dtype(rows.dtype)
    return jnp.matmul(rows, kernel, precision=layer.precision, preferred_element_type=dtype)


def _larger(x: Array, y: Array) -> Array:
    """The maximum, whose derivative goes to `x` at ties, as PyTorch's over a new axis does.

    The derivative of `jnp.maximum` compares each operand with the result. XLA may recompute the
    operand with other rounding, and then neither is equal.
    """
    return jnp.where((x >= y) | jnp.isnan(x), x, y)
