"""The second graph attention layer."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn.graph import Graph
from jaxgnn.nn import _inputs
from jaxgnn.nn._dropout import dropout_module, dropout_options
from jaxgnn.nn._features import dense
from jaxgnn.nn._linear import Initializer, count, glorot_kernel, linear, width, width_pair
from jaxgnn.nn.conv import _heads
from jaxgnn.ops import gatv2_attention
from jaxgnn.ops._attention.gatv2_attention import gatv2_attention_with_weights
from jaxgnn.ops._projection.project import add_bias


class GATv2Conv(nnx.Module):
    r"""Convolution that weighs neighbors by an attention that looks at both ends at once.

    $$y_i = \Big\Vert_h \sum_{e = (j \to i)} \alpha_{eh} \, l_{jh} + b, \qquad
      \alpha_{eh} = \mathrm{softmax}_i \; a_h^\top \mathrm{LeakyReLU}
      (l_{jh} + r_{ih} + z_e W_h''), \qquad
      l_j = x_j W + c, \quad r_i = x_i W' + c'$$

    with the heads concatenated, or their mean without `concat`; $z_e$ are features of the edges,
    with `edge_dim`. Dropout acts on $\alpha$. With `residual`, $x_i W_r$ is added. Self-loops are
    those of `GATConv`.

    There are no O(E) intermediates, except with features of the edges: then their projections and
    the scores' terms are stored, `[num_edges, heads, features]` each.

    Args:
        in_features: width of $x$, or the pair of the senders' and the receivers'.
        out_features: width of a head.
        heads: their number.
        concat: concatenate the heads, else take their mean.
        negative_slope: of the LeakyReLU.
        dropout: share of the weights $\alpha$ dropped in training.
        add_self_loops: one self-loop a node.
        edge_dim: width of the features of the edges, if there are any.
        fill_value: the features of the added self-loops, as in `GATConv`.
        share_weights: one linear projection for both ends.
        residual: add a linear projection of the receivers' features.
        use_bias: whether to add $b$, $c$ and $c'$.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values of the kernels and of $b$; by default PyG's (Glorot,
            zeros).
        rngs: `params` is used, and `dropout` if there is any.

    Raises:
        TypeError: a width or `heads` is no integer, or an option that is `True` or `False` is
            something else.
        ValueError: a width or `heads` below 1, or an option out of range.

    Source: Brody et al., "How attentive are graph attention networks?" (ICLR 2022), section 3.2;
    PyG's `GATv2Conv`.
    """

    accepts_pair = True

    @_inputs.named_options
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: _heads.FillValue = "mean",
        share_weights: bool = False,
        residual: bool = False,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = glorot_kernel,
        bias_init: Initializer = jax.nn.initializers.zeros,
        rngs: nnx.Rngs,
    ):
        checks.booleans(
            concat=concat,
            add_self_loops=add_self_loops,
            share_weights=share_weights,
            residual=residual,
            use_bias=use_bias,
        )
        heads = count(heads, "heads", "heads")
        out_features = width(out_features, "out_features")
        stored_fill_value = _heads.checked_fill_value(fill_value)
        senders, receivers = width_pair(in_features, "in_features")
        if share_weights and senders != receivers:
            raise ValueError(
                f"in_features: share_weights=True expected one width, got {in_features!r}"
            )
        total = heads * out_features
        joined = total if concat else out_features

        def projection(in_features: int, out_features: int, use_bias: bool = False) -> nnx.Linear:
            return linear(
                in_features,
                out_features,
                use_bias=use_bias,
                dtype=dtype,
                param_dtype=param_dtype,
                kernel_init=kernel_init,
                rngs=rngs,
            )

        self.linear_senders = projection(senders, total, use_bias)
        self.linear_receivers = None if share_weights else projection(receivers, total, use_bias)
        self.attention = nnx.Param(kernel_init(rngs.params(), (heads, out_features), param_dtype))
        edge_projection = (
            None if edge_dim is None else projection(width(edge_dim, "edge_dim"), total)
        )
        self.linear_edges = edge_projection
        self.linear_residual = projection(receivers, joined) if residual else None
        bias = nnx.Param(bias_init(rngs.params(), (joined,), param_dtype)) if use_bias else None
        self.bias = bias
        self.dropout = dropout_module(dropout, "dropout", rngs)
        self.in_features = (senders, receivers)
        self.out_features = out_features
        self.heads = heads
        self.concat = concat
        self.negative_slope = checks.number(negative_slope, "negative_slope", -math.inf, math.inf)
        self.add_self_loops = add_self_loops
        self.edge_dim = edge_dim
        self.fill_value = stored_fill_value

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes *batch in_features"] | tuple[Array, Array],
        edge_attr: Float[Array, "num_edges edge_dim"] | Float[Array, " num_edges"] | None = None,
        *,
        return_attention_weights: bool = False,
    ) -> Any:
        """Convolves the features of the nodes.

        Args:
            graph: the graph.
            x: features `[num_nodes, ..., in_features]`, or the pair of the senders' and the
                receivers'. Sparse rows (`CBSR`) are made dense.
            edge_attr: features of the edges, `[num_edges, edge_dim]`, or `[num_edges]` for an
                `edge_dim` of 1, in the graph's edge order, not the user's (`Graph.sort_edge_data`).
            return_attention_weights: also return the weights, a number for each edge and head.

        Returns:
            `[num_receivers, ..., heads * out_features]`, or `[..., out_features]` without
            `concat`; with `return_attention_weights` a pair of that and `AttentionWeights`.

        Raises:
            TypeError: `graph` is no `Graph`, a dtype is not floating, or
                `return_attention_weights` is neither `True` nor `False`.
            ValueError: a shape that does not fit, a missing half of the pair, or `edge_attr`
                without `edge_dim`.
        """
        checks.booleans(return_attention_weights=return_attention_weights)
        graph = _inputs.graph_or_substitute(graph)
        senders, receivers = _inputs.sender_receiver_pair(graph, x, self.in_features, "GATv2Conv")
        if receivers is None:
            raise ValueError("x: GATv2Conv expected x[1], got None")
        left = _heads.project(self.linear_senders, dense(senders), self.heads)
        if self.linear_receivers is None and senders is receivers:
            right = left
        else:
            layer = self.linear_receivers or self.linear_senders
            right = _heads.project(layer, dense(receivers), self.heads).astype(left.dtype)
        shape = left.shape[1:-1]
        copies = math.prod(shape[:-1])
        edge, loops = self._edge_terms(graph, edge_attr, copies)
        vectors = jnp.tile(self.attention[...], (copies, 1))
        arguments = (graph, _heads.fold(left), _heads.fold(right), vectors)
        options: dict[str, Any] = {
            "edge": edge,
            "loop_edge": loops,
            "negative_slope": self.negative_slope,
            **dropout_options(self.dropout),
            "self_loops": self.add_self_loops,
        }
        weights = None
        if return_attention_weights:
            out, by_edge, by_loop = gatv2_attention_with_weights(*arguments, **options)
            weights = _heads.unfolded_weights(by_edge, by_loop, shape)
        else:
            out = gatv2_attention(*arguments, **options)
        out = _heads.join(out.reshape(out.shape[0], *left.shape[1:]), self.concat)
        if self.linear_residual is not None:
            out = out + self.linear_residual(dense(receivers)).astype(out.dtype)
        if self.bias is not None:
            out = add_bias(out, self.bias[...])
        return out if weights is None else (out, weights)

    def _edge_terms(
        self, graph: Graph, edge_attr: Any, copies: int
    ) -> tuple[Array | None, Array | None]:
        """The terms of the edges and of the added self-loops, for each copy of the heads."""
        layer = self.linear_edges
        edge_attr = _heads.edge_rows(graph, edge_attr, layer, "GATv2Conv")
        if edge_attr is None or layer is None:
            return None, None

        def terms(rows: Array) -> Array:
            return jnp.tile(_heads.project(layer, rows, self.heads), (1, copies, 1))

        loops = None
        if self.add_self_loops:
            fill_value = _heads.fill_value(self.fill_value)
            loops = terms(_heads.loop_features(graph, edge_attr, fill_value))
        return terms(edge_attr), loops
