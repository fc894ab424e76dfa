"""The graph transformer layer."""

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
from jaxgnn.nn._linear import Initializer, count, kaiming_kernel, linear, width, width_pair
from jaxgnn.nn.conv import _heads
from jaxgnn.ops import dot_attention, gather_edges, segment_reduce
from jaxgnn.ops._attention.dot_attention import dot_attention_with_weights


class TransformerConv(nnx.Module):
    r"""Convolution that weighs neighbors by dot products of queries and keys.

    $$y_i = \Big\Vert_h \sum_{e = (j \to i)} \alpha_{eh} \, (v_{jh} + z_e W_h'') + x_i W_s + b,
      \qquad \alpha_{eh} = \mathrm{softmax}_i \,
      \frac{\langle q_{ih}, k_{jh} + z_e W_h'' \rangle}{\sqrt{F}}$$

    with queries, keys and values that are linear projections of the nodes' features, and the heads
    concatenated, or their mean without `concat`; $z_e$ are features of the edges, with `edge_dim`.
    Dropout acts on $\alpha$. With `beta`, a gate $g = \sigma([m, r, m - r] w)$ joins the sum $m$
    and $r = x_i W_s + b$: $g r + (1 - g) m$.

    Without features of the edges there are no O(E) intermediates, except with `head_k` the scores,
    `[num_edges, heads]`, while a pass runs. With features the weights,
    `[num_edges, heads]`, and each head's weights times the features are stored, but nothing of the
    width of a head: $\langle q_i, z_e W'' \rangle = \langle q_i W''^\top, z_e \rangle$ and
    $\sum_e \alpha_e z_e W'' = (\sum_e \alpha_e z_e) W''$.

    Args:
        in_features: width of $x$, or the pair of the senders' and the receivers'.
        out_features: width of a head, $F$.
        heads: their number.
        concat: concatenate the heads, else take their mean.
        beta: join by a gate.
        dropout: share of the weights $\alpha$ dropped in training.
        edge_dim: width of the features of the edges, if there are any.
        head_k: average only so many of each head's values $v_j$, the largest of the node's (MaxK).
            They are dense where edges have features or weights are returned.
        use_bias: whether the projections of the nodes' features have a bias.
        root_weight: add $x_i W_s + b$; without it there is no gate.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values; by default PyTorch's, as in PyG.
        rngs: `params` is used, and `dropout` if there is any.

    Raises:
        TypeError: a width or `heads` is no integer, or an option that is `True` or `False` is
            something else.
        ValueError: a width or `heads` below 1, or an option out of range.

    Source: Shi et al., "Masked label prediction: unified message passing model for semi-supervised
    classification" (IJCAI 2021), section 3.1; PyG's `TransformerConv`. `head_k`: Peng et al.,
    "MaxK-GNN" (ASPLOS 2024), section 3.1.
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
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        head_k: int | None = None,
        use_bias: bool = True,
        root_weight: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = kaiming_kernel,
        bias_init: Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        checks.booleans(concat=concat, beta=beta, use_bias=use_bias, root_weight=root_weight)
        heads = count(heads, "heads", "heads")
        out_features = width(out_features, "out_features")
        senders, receivers = width_pair(in_features, "in_features")
        total = heads * out_features
        joined = total if concat else out_features

        def projection(before: int, after: int = total, use_bias: bool = use_bias) -> nnx.Linear:
            return linear(
                before,
                after,
                use_bias=use_bias,
                dtype=dtype,
                param_dtype=param_dtype,
                kernel_init=kernel_init,
                bias_init=bias_init,
                rngs=rngs,
            )

        self.linear_key = projection(senders)
        self.linear_query = projection(receivers)
        self.linear_value = projection(senders)
        edge_projection = (
            None if edge_dim is None else projection(width(edge_dim, "edge_dim"), use_bias=False)
        )
        self.linear_edges = edge_projection
        self.linear_skip = projection(receivers, joined) if root_weight else None
        gated = beta and root_weight
        self.linear_beta = projection(3 * joined, 1, use_bias=False) if gated else None
        self.dropout = dropout_module(dropout, "dropout", rngs)
        self.maxk = _heads.maxk_of_heads(head_k, out_features)
        self.in_features = (senders, receivers)
        self.out_features = out_features
        self.heads = heads
        self.concat = concat
        self.edge_dim = edge_dim

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
            return_attention_weights: also return the weights, one for each edge and head.

        Returns:
            `[num_receivers, ..., heads * out_features]`, or `[..., out_features]` without
            `concat`; with `return_attention_weights` a pair of that and `AttentionWeights`.

        Raises:
            TypeError: `graph` is no `Graph`, a dtype is not floating, or
                `return_attention_weights` is neither `True` nor `False`.
            ValueError: a shape that does not fit, a missing half of the pair, `edge_attr`
                without `edge_dim`, or the other way round.
        """
        checks.booleans(return_attention_weights=return_attention_weights)
        graph = _inputs.graph_or_substitute(graph)
        pair = _inputs.sender_receiver_pair(graph, x, self.in_features, "TransformerConv")
        if pair[1] is None:
            raise ValueError("x: TransformerConv expected x[1], got None")
        senders, receivers = dense(pair[0]), dense(pair[1])
        key = _heads.project(self.linear_key, senders, self.heads)
        value = _heads.project(self.linear_value, senders, self.heads)
        query = _heads.project(self.linear_query, receivers, self.heads).astype(key.dtype)
        flat = _heads.fold(query)
        shape = value.shape[1:]
        if edge_attr is None and self.edge_dim is not None:
            raise ValueError(
                f"edge_attr: TransformerConv with edge_dim={self.edge_dim} expected features of "
                "the edges, got None"
            )
        edge_attr = _heads.edge_rows(graph, edge_attr, self.linear_edges, "TransformerConv")
        bias = None if edge_attr is None else self._edge_scores(graph, flat, edge_attr)
        averaged = _heads.averaged(self.maxk, graph, value)
        arguments = (graph, flat, _heads.fold(key), averaged, bias)
        options = dropout_options(self.dropout)
        weights = None
        if edge_attr is None and not return_attention_weights:
            out = dot_attention(*arguments, **options)
        else:
            out, by_edge, _ = dot_attention_with_weights(*arguments, **options)
            weights = _heads.unfolded_weights(by_edge, None, shape[:-1])
            if edge_attr is not None:
                out = out + self._edge_values(graph, by_edge, edge_attr).astype(out.dtype)
        out = _heads.join(out.reshape(out.shape[0], *shape), self.concat)
        if self.linear_skip is not None:
            skip = self.linear_skip(receivers).astype(out.dtype)
            if self.linear_beta is None:
                out = out + skip
            else:
                gate = self.linear_beta(jnp.concatenate([out, skip, out - skip], axis=-1))
                gate = jax.nn.sigmoid(gate).astype(out.dtype)
                out = gate * skip + (1 - gate) * out
        return (out, weights) if return_attention_weights else out

    def _edge_kernel(self, dtype: Any) -> Float[Array, "edge_dim heads features"]:
        assert self.linear_edges is not None
        kernel = self.linear_edges.kernel[...].astype(dtype)
        return kernel.reshape(kernel.shape[0], self.heads, self.out_features)

    def _edge_scores(
        self, graph: Graph, query: Float[Array, "num_receivers _ features"], edge_attr: Array
    ) -> Float[Array, "num_edges _"]:
        """The edges' terms of the scores, one copy of a head after the other."""
        dtype = accumulation_dtype(query.dtype)
        kernel, edge_attr = self._edge_kernel(dtype), edge_attr.astype(dtype)
        scale = 1 / math.sqrt(self.out_features)

        def of_head(head: int) -> Array:
            own = query[:, head].astype(dtype) @ kernel[:, head % self.heads].T
            return jnp.sum(gather_edges(graph, receivers=own) * edge_attr, axis=1)

        if query.shape[1] == 0:  # an axis of x has no entries
            return jnp.zeros((graph.num_edges, 0), dtype)
        return scale * jnp.stack([of_head(head) for head in range(query.shape[1])], axis=1)

    def _edge_values(
        self, graph: Graph, weights: Float[Array, "num_edges _"], edge_attr: Array
    ) -> Float[Array, "num_receivers _ features"]:
        """The edges' terms of the sums."""
        kernel, edge_attr = self._edge_kernel(weights.dtype), edge_attr.astype(weights.dtype)

        def of_head(head: int) -> Array:
            summed = segment_reduce(graph, weights[:, head, None] * edge_attr)
            return summed @ kernel[:, head % self.heads]

        if weights.shape[1] == 0:
            return jnp.zeros((graph.num_receivers, 0, self.out_features), weights.dtype)
        return jnp.stack([of_head(head) for head in range(weights.shape[1])], axis=1)
