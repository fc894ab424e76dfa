"""Propagation by an attention of cosines."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn.graph import Graph
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import dense
from jaxgnn.nn._linear import check_dtypes
from jaxgnn.nn.conv import _heads
from jaxgnn.ops import cosine_attention


class AGNNConv(nnx.Module):
    r"""Averages the neighbors' features by an attention with one parameter.

    $$y_i = \sum_{e = (j \to i)} \alpha_e \, x_j, \qquad
      \alpha_e = \mathrm{softmax}_i \, \big( \beta \cos(x_i, x_j) \big)$$

    Self-loops are those of `GATConv`. There are no O(E) intermediates.

    Args:
        requires_grad: make $\beta$ a parameter, which begins at 1; else it is 1.
        add_self_loops: one self-loop a node.
        dtype: of the computation; by default that of `x`.
        param_dtype: of the parameter.

    Raises:
        TypeError: an option that is no boolean, or a dtype that is not floating.

    Source: Thekumparampil et al., "Attention-based graph neural network for semi-supervised
    learning" (2018), section 3.2; PyG's `AGNNConv`.
    """

    @_inputs.named_options
    def __init__(
        self,
        *,
        requires_grad: bool = True,
        add_self_loops: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
    ):
        checks.boolean(requires_grad, "requires_grad")
        checks.boolean(add_self_loops, "add_self_loops")
        check_dtypes(dtype, param_dtype)
        self.beta = nnx.Param(jnp.ones(1, param_dtype)) if requires_grad else None
        self.add_self_loops = add_self_loops
        self.dtype = dtype

    @_inputs.named_arguments
    def __call__(
        self, graph: Graph, x: Float[Array, "num_nodes *batch features"], weights: None = None
    ) -> Float[Array, "num_nodes *batch features"]:
        """Propagates the features of the nodes.

        Args:
            graph: a square graph.
            x: features `[num_nodes, ..., features]`. Sparse rows (`CBSR`) are made dense.
            weights: there are none: `None`, for the signature that convolutions share.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a rectangular graph, a shape that does not fit, or weights.
        """
        graph = _inputs.square_graph(graph, "AGNNConv", substitutes=True)
        if weights is not None:
            raise ValueError("weights: AGNNConv has none, expected None")
        rows = dense(_inputs.features(x, "x", graph.num_senders, "node"))
        rows = checks.floating(rows if self.dtype is None else rows.astype(self.dtype), "x")
        beta = 1.0 if self.beta is None else self.beta[...][0]
        folded = _heads.fold(rows[..., None, :])
        out = cosine_attention(graph, folded, beta, self_loops=self.add_self_loops)
        return out.reshape(rows.shape)
