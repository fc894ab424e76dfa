"""The graph attention layer."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.nn import _inputs
from jaxgnn.nn._dropout import dropout_module, dropout_options
from jaxgnn.nn._features import dense
from jaxgnn.nn._linear import Initializer, count, glorot_kernel, linear, width, width_pair
from jaxgnn.nn.conv import _heads
from jaxgnn.ops import gat_attention
from jaxgnn.ops._attention.gat_attention import gat_attention_with_weights
from jaxgnn.ops._projection.project import add_bias


class GATConv(nnx.Module):
    r"""Convolution that weighs neighbors by an attention.

    $$y_i = \Big\Vert_h \sum_{e = (j \to i)} \alpha_{eh} \, x_j W_h + b, \qquad
      \alpha_{eh} = \mathrm{softmax}_i \, \mathrm{LeakyReLU}
      \big( a_h^\top x_j W_h + a_h'^\top x_i W_h + a_h''^\top z_e W_h'' \big)$$

    with the heads concatenated, or their mean without `concat`; $z_e$ are features of the edges,
    with `edge_dim`. Dropout acts on $\alpha$. With `residual`, $x_i W_r$ is added.

    With `add_self_loops` the graph's self-loops are skipped and each node gets one, whose features
    are `fill_value` (in a rectangular graph, each index that is both a sender's and a receiver's).
    This happens in the call: the graph is taken as it is. A node without edges gets $b$ (and its
    residual).

    The edges' scores are computed as $z_e (W_h'' a_h'')$: a projection from `edge_dim` to the heads
    instead of to the features. There are no other O(E) intermediates.

    In training dropout is on, as after `train()`; `eval()` turns it off.

    Args:
        in_features: width of $x$, or the pair of the senders' and the receivers', which then have
            projections of their own.
        out_features: width of a head.
        heads: their number.
        concat: concatenate the heads, else take their mean.
        negative_slope: of the LeakyReLU.
        dropout: share of the weights $\alpha$ dropped in training.
        add_self_loops: one self-loop a node.
        edge_dim: width of the features of the edges, if there are any.
        fill_value: the features of the added self-loops: a number, an array (`[edge_dim]`, or a row
            for each loop), or the `"mean"`, sum (`"add"`), product (`"mul"`), `"min"` or `"max"` of
            those of the edges that end at the node (self-loops aside; at a node without any 0, of
            the product 1).
        residual: add a linear projection of the receivers' features.
        head_k: average only so many of each head's projected features $x_j W_h$, the largest of the
            node's (MaxK), which takes less time; the scores are those of all of them.
        use_bias: whether to add $b$.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values; by default PyG's (Glorot, zeros).
        rngs: `params` is used, and `dropout` if there is any.

    Raises:
        TypeError: a width or `heads` is no integer, or an option that is `True` or `False` is
            something else.
        ValueError: a width or `heads` below 1, or an option out of range.

    Source: Velickovic et al., "Graph Attention Networks" (ICLR 2018), section 2.1; PyG's
    `GATConv`. The order of the projections: Zhang et al., "Understanding GNN Computational Graph"
    (MLSys 2022), section 4. `head_k`: Peng et al., "MaxK-GNN" (ASPLOS 2024), section 3.1.
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
        residual: bool = False,
        head_k: int | None = None,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = glorot_kernel,
        bias_init: Initializer = jax.nn.initializers.zeros,
        rngs: nnx.Rngs,
    ):
        checks.booleans(
            concat=concat, add_self_loops=add_self_loops, residual=residual, use_bias=use_bias
        )
        heads = count(heads, "heads", "heads")
        out_features = width(out_features, "out_features")
        stored_fill_value = _heads.checked_fill_value(fill_value)
        separate_ends = isinstance(in_features, tuple | list)
        senders, receivers = width_pair(in_features, "in_features")
        total = heads * out_features

        def projection(in_features: int, out_features: int = total) -> nnx.Linear:
            return linear(
                in_features,
                out_features,
                use_bias=False,
                dtype=dtype,
                param_dtype=param_dtype,
                kernel_init=kernel_init,
                rngs=rngs,
            )

        def attention() -> nnx.Param:
            return nnx.Param(kernel_init(rngs.params(), (heads, out_features), param_dtype))

        self.linear = None if separate_ends else projection(senders)
        self.linear_senders = projection(senders) if separate_ends else None
        self.linear_receivers = projection(receivers) if separate_ends else None
        self.attention_senders = attention()
        self.attention_receivers = attention()
        self.linear_edges = None if edge_dim is None else projection(width(edge_dim, "edge_dim"))
        self.attention_edges = None if edge_dim is None else attention()
        joined = total if concat else out_features
        self.linear_residual = projection(receivers, joined) if residual else None
        bias = nnx.Param(bias_init(rngs.params(), (joined,), param_dtype)) if use_bias else None
        self.bias = bias
        self.dropout = dropout_module(dropout, "dropout", rngs)
        self.maxk = _heads.maxk_of_heads(head_k, out_features)
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
        x: Float[Array, "num_nodes *batch in_features"] | tuple[Array, Array | None],
        edge_attr: Float[Array, "num_edges edge_dim"] | Float[Array, " num_edges"] | None = None,
        *,
        return_attention_weights: bool = False,
    ) -> Any:
        """Convolves the features of the nodes.

        Args:
            graph: the graph.
            x: features `[num_nodes, ..., in_features]`, or the pair of the senders' and the
                receivers' (`None`: scores of the senders alone, and no residual). Sparse rows
                (`CBSR`) are made dense.
            edge_attr: features of the edges, `[num_edges, edge_dim]`, or `[num_edges]` for an
                `edge_dim` of 1, in the graph's edge order, not the user's (`Graph.sort_edge_data`).
            return_attention_weights: also return the weights, which hold a number for each edge
                and head.

        Returns:
            `[num_receivers, ..., heads * out_features]`, or `[..., out_features]` without
            `concat`; with `return_attention_weights` a pair of that and `AttentionWeights`.

        Raises:
            TypeError: `graph` is no `Graph`, a dtype is not floating, or
                `return_attention_weights` is neither `True` nor `False`.
            ValueError: a shape that does not fit, or `edge_attr` without `edge_dim`.
        """
        checks.booleans(return_attention_weights=return_attention_weights)
        graph = _inputs.graph_or_substitute(graph)
        pair = _inputs.sender_receiver_pair(graph, x, self.in_features, "GATConv")
        receivers = None if pair[1] is None else dense(pair[1])
        v = self._project(self.linear or self.linear_senders, dense(pair[0]))
        if pair[1] is pair[0] and self.linear is not None:
            at_receivers = v
        elif receivers is not None:
            at_receivers = self._project(self.linear or self.linear_receivers, receivers)
        else:
            at_receivers = None
        score_src = _dot(v, self.attention_senders)
        if at_receivers is None:
            score_dst = jnp.zeros((graph.num_receivers, *score_src.shape[1:]), score_src.dtype)
        else:
            score_dst = _dot(at_receivers, self.attention_receivers)
        batch = v.shape[1:-2]
        edge_bias, loop_bias = self._edge_scores(graph, edge_attr, math.prod(batch))
        averaged = _heads.averaged(self.maxk, graph, v)
        arguments = (graph, averaged, _fold(score_src), _fold(score_dst), edge_bias)
        options: dict[str, Any] = {
            "negative_slope": self.negative_slope,
            **dropout_options(self.dropout),
            "self_loops": self.add_self_loops,
            "loop_bias": loop_bias,
        }
        weights = None
        if return_attention_weights:
            out, by_edge, by_loop = gat_attention_with_weights(*arguments, **options)
            weights = _heads.unfolded_weights(by_edge, by_loop, v.shape[1:-1])
        else:
            out = gat_attention(*arguments, **options)
        out = _heads.join(out.reshape(out.shape[0], *v.shape[1:]), self.concat)
        if self.linear_residual is not None and receivers is not None:
            out = out + self.linear_residual(receivers).astype(out.dtype)
        if self.bias is not None:
            out = add_bias(out, self.bias[...])
        return out if weights is None else (out, weights)

    def _project(self, layer: nnx.Linear | None, x: Array) -> Array:
        assert layer is not None
        return _heads.project(layer, x, self.heads)

    def _edge_scores(
        self, graph: Graph, edge_attr: Any, copies: int
    ) -> tuple[Array | None, Array | None]:
        """The shares of the edges and of the added self-loops in the scores, for each copy of the
        heads."""
        edge_attr = _heads.edge_rows(graph, edge_attr, self.linear_edges, "GATConv")
        if edge_attr is None or self.linear_edges is None or self.attention_edges is None:
            return None, None
        kernel = self.linear_edges.kernel[...]
        dtype = accumulation_dtype(kernel.dtype)
        # The attention's vector meets the kernel first: [edge_dim, heads].
        folded = _dot(
            kernel.astype(dtype).reshape(-1, self.heads, self.out_features), self.attention_edges
        )
        edge_attr = edge_attr.astype(dtype)
        loops = None
        if self.add_self_loops:
            fill_value = _heads.fill_value(self.fill_value)
            loops = jnp.tile(_heads.loop_features(graph, edge_attr, fill_value) @ folded, copies)
        return jnp.tile(edge_attr @ folded, copies), loops


def _dot(rows: Array, vectors: nnx.Param) -> Array:
    """The dot product of each head with its vector, in the accumulation dtype.

    On the CPU it is a GEMM, with the vectors as diagonal blocks: XLA would materialize the vectors
    for every row, and the terms of the sums, before the reduction. A value that is not finite in
    one head of a row then shows in all heads of the row.
    """
    dtype = accumulation_dtype(rows.dtype)
    rows = rows.astype(dtype)
    values = vectors[...].astype(dtype)
    if jax.default_backend() == "cpu":
        heads, features = values.shape
        blocks = jnp.eye(heads, dtype=dtype)[:, None, :] * values[:, :, None]
        flat = rows.reshape(*rows.shape[:-2], heads * features)
        blocks = blocks.reshape(heads * features, heads)
        return jnp.dot(flat, blocks, precision=jax.lax.Precision.HIGHEST)
    values = values.reshape((1,) * (rows.ndim - 2) + values.shape)
    return jnp.sum(rows * values, axis=-1)


def _fold(scores: Array) -> Array:
    """The axes between the nodes and the heads, folded into the heads."""
    return scores.reshape(scores.shape[0], math.prod(scores.shape[1:]))
