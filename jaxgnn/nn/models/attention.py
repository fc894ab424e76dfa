"""Models of attention layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Array

from jaxgnn._core import checks
from jaxgnn.graph import Graph
from jaxgnn.nn._dropout import drop
from jaxgnn.nn._features import Features
from jaxgnn.nn._linear import count
from jaxgnn.nn.conv import AGNNConv, GATConv, GATv2Conv, TransformerConv
from jaxgnn.nn.mlp import Activation, Norm
from jaxgnn.nn.models.gnn import GNN


def _of_heads(
    layer: Callable[..., Any],
    in_features: int,
    out_features: int,
    *,
    heads: int,
    concat: bool,
    **options: Any,
) -> Any:
    """A layer whose heads together have `out_features` where they are concatenated."""
    features = out_features // heads if concat else out_features
    return layer(in_features, features, heads=heads, concat=concat, **options)


class GAT(GNN):
    """`GNN` of `GATConv` layers, whose options it takes.

    The heads of a hidden layer are concatenated to `hidden_features`; those of the layer whose
    output is the model's are averaged. `head_k` is of the hidden layers alone.

    Args:
        heads: of each layer, 1 if not given; must divide `hidden_features`.
        out_heads: of the layer whose output is the model's, if not that (the paper has 8 and 1 on
            Cora); with `jumping` there is none, and it does nothing.
        concat: if `False`, every layer averages its heads.
        attention_dropout: share of the attention's weights dropped in training, if not `dropout`.
        options: those of `GNN` and `GATConv`.

    Raises:
        TypeError: `heads` or `out_heads` is no integer, or `attention_dropout` no number.
        ValueError: heads below 1 or that do not divide `hidden_features`, or `attention_dropout`
            out of range.
    """

    _conv = staticmethod(functools.partial(_of_heads, GATConv))

    @classmethod
    def _layer_options(
        cls,
        hidden_features: int,
        *,
        activation: Activation,
        dropout: float,
        norm: Norm | None,
        heads: int = 1,
        out_heads: int | None = None,
        concat: bool = True,
        attention_dropout: float | None = None,
        **conv_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        del activation, norm
        heads = count(heads, "heads", "heads")
        checks.boolean(concat, "concat")
        if concat and hidden_features % heads:
            raise ValueError(
                f"hidden_features: expected a multiple of the {heads} heads, got {hidden_features}"
            )
        if attention_dropout is not None:
            checks.number(attention_dropout, "attention_dropout", 0, 1)
        conv_options["dropout"] = dropout if attention_dropout is None else attention_dropout
        out_heads = heads if out_heads is None else count(out_heads, "out_heads", "heads")
        out_options = {name: conv_options[name] for name in conv_options if name != "head_k"}
        return (
            {"heads": heads, "concat": concat, **conv_options},
            {"heads": out_heads, "concat": False, **out_options},
        )


class GATv2(GAT):
    """`GAT` of `GATv2Conv` layers, whose options it takes (no `head_k`)."""

    _conv = staticmethod(functools.partial(_of_heads, GATv2Conv))


class Transformer(GAT):
    """`GAT` of `TransformerConv` layers, whose options it takes."""

    _conv = staticmethod(functools.partial(_of_heads, TransformerConv))


def _agnn_layer(in_features: int, out_features: int, *, rngs: nnx.Rngs, **options: Any) -> AGNNConv:
    del in_features, out_features, rngs
    return AGNNConv(**options)


class AGNN(GNN):
    """`GNN` of `AGNNConv` layers, which only propagate, between two linear layers.

    Begins with a linear layer and an activation, and ends with a linear layer on the last layer's
    output (or on all layers', by `jumping`). Dropout alone follows a layer, as in the paper; with
    a `norm` that and the activation do, too. It takes no weights of the edges.

    Args:
        jumping: `"last"`, `"cat"` or `"max"`; `None` is `"last"`.
        input_layer: there is one in any case.
        options: those of `GNN` and `AGNNConv`.

    Source: Thekumparampil et al. (2018), section 3.2.
    """

    _conv = staticmethod(_agnn_layer)
    _propagates_only = True
    _default_jumping = "last"

    def _after_layer(
        self, out: Array, graph: Graph | None = None, norm: nnx.LayerNorm | None = None
    ) -> Features:
        # Averages of what ReLU left are at least 0: another ReLU would only read and write them.
        if self.norms is None:
            return drop(self.dropout, out, graph)
        return self._activate(out, graph, norm)
