"""GIN with features of the edges."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxgnn import algebra
from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph, GraphSubstitute
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import dense
from jaxgnn.nn._linear import Initializer, kaiming_kernel, linear
from jaxgnn.nn._linear import width as count_features
from jaxgnn.nn.conv.gin import epsilon
from jaxgnn.nn.mlp import MLP
from jaxgnn.ops import gather_edges, segment_reduce
from jaxgnn.ops._projection.project import add_bias


class GINEConv(nnx.Module):
    r"""`GINConv` whose messages add the features of the edges.

    $$y_i = h \Big( (1 + \varepsilon) \, x_i + \sum_{e = (j \to i)} \mathrm{ReLU}(x_j + z_e) \Big)$$

    With `edge_dim` $z_e$ is a linear projection of the edge's features to the width of $x$;
    without, they have that width. The messages are computed on the edges, and again in the backward
    pass (`jaxgnn.algebra`).

    Args:
        nn: $h$, applied to the rows: an `MLP`, any module, or a function.
        eps: $\varepsilon$, or its initial value.
        train_eps: make $\varepsilon$ a parameter.
        edge_dim: width of the edges' features, to be projected.
        in_features: width of $x$; needed with `edge_dim` where `nn` is no `MLP`.
        dtype: of the projection and the messages; by default that of `x`.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values of the projection; by default PyTorch's.
        rngs: `params` is used, with `edge_dim`.

    Raises:
        TypeError: `nn` cannot be called, `eps` is no number, a width no integer, or a dtype not
            floating.
        ValueError: `eps` is not finite, `edge_dim` without `in_features` or `rngs`, a width below
            1, or `in_features` that are not those of an `MLP`.

    Source: Hu et al., "Strategies for pre-training graph neural networks" (ICLR 2020); PyG's
    `GINEConv`.
    """

    @_inputs.named_options
    def __init__(
        self,
        nn: Callable[[Array], Array],
        *,
        eps: float = 0.0,
        train_eps: bool = False,
        edge_dim: int | None = None,
        in_features: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = kaiming_kernel,
        bias_init: Initializer | None = None,
        rngs: nnx.Rngs | None = None,
    ):
        if not callable(nn):
            raise TypeError(f"nn: expected a module or a function, got {type(nn).__name__}")
        if dtype is not None:
            checks.floating_dtype(dtype, "dtype")
        if in_features is not None:
            in_features = count_features(in_features, "in_features")
        if isinstance(nn, MLP):
            if in_features not in (None, nn.features[0]):
                raise ValueError(
                    f"in_features: expected that of nn, {nn.features[0]}, got {in_features}"
                )
            in_features = nn.features[0]
        if edge_dim is not None and (in_features is None or rngs is None):
            raise ValueError("edge_dim: expected in_features (or an MLP) and rngs with it")
        self.nn = nn
        self.eps = epsilon(eps, train_eps, param_dtype)
        self.linear = None
        if edge_dim is not None and in_features is not None and rngs is not None:
            projection = linear(
                count_features(edge_dim, "edge_dim"),
                in_features,
                dtype=dtype,
                param_dtype=param_dtype,
                kernel_init=kernel_init,
                bias_init=bias_init,
                rngs=rngs,
            )
            self.linear = nnx.data(projection)
        self.in_features, self.edge_dim, self.dtype = in_features, edge_dim, dtype

    accepts_node_mask = True

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes in_features"] | tuple[Array, Array | None],
        edge_attr: Float[Array, "num_edges edge_features"],
        *,
        node_mask: Bool[Array, " num_receivers"] | None = None,
    ) -> Float[Array, "num_receivers out_features"]:
        """Convolves the features of the nodes.

        Args:
            graph: the graph.
            x: features `[num_nodes, in_features]`, or the pair of the senders' and the receivers'
                of the same width (`None`: the sum over the edges alone).
            edge_attr: features of the edges, in the graph's edge order, not the user's
                (`Graph.sort_edge_data`).
            node_mask: the receivers that are no padding, for batch normalization in an `MLP`.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a shape that does not fit.
        """
        graph = _inputs.graph_or_substitute(graph)
        pair = _inputs.sender_receiver_pair(
            graph, x, (self.in_features, self.in_features), "GINEConv"
        )
        senders = dense(pair[0])
        dtype = senders.dtype if self.dtype is None else jnp.dtype(self.dtype)
        senders = checks.floating(senders.astype(dtype), "x")
        if pair[1] is not None and pair[0].shape[1:] != pair[1].shape[1:]:
            raise ValueError(
                f"x[1]: expected the feature axes of x[0], {pair[0].shape[1:]}, "
                f"got {pair[1].shape[1:]}"
            )
        width = senders.shape[-1] if self.edge_dim is None else self.edge_dim
        edges = checks.floating(edge_attr, "edge_attr")
        if senders.ndim != 2 or edges.shape != (graph.num_edges, width):
            raise ValueError(
                f"x, edge_attr: expected the shapes (nodes, features) and ({graph.num_edges}, "
                f"{width}){checks.EDGE_ORDER}, got {senders.shape} and {edges.shape}"
            )
        projection = None
        if self.linear is not None:
            edges = _inputs.real_edges(graph, edges)
            kernel, bias = self.linear.kernel[...], self.linear.bias
            assert bias is not None
            projection = kernel.astype(dtype), bias[...]
        if isinstance(graph, GraphSubstitute):
            node_mask = graph.node_mask if node_mask is None else node_mask
            if isinstance(self.nn, nnx.Module):
                _inputs.check_inner_module(self.nn, "GINEConv")
            total = _over_parts(graph, senders, edges.astype(dtype), projection)
        else:
            values = algebra.edge_values(graph, edges.astype(dtype))
            if projection is not None:
                values = algebra.linear(values, *projection)
            message = algebra.apply_edge(jax.nn.relu, algebra.scatter(graph, senders) + values)
            total = algebra.gather(message)
        if pair[1] is not None:
            wide = accumulation_dtype(total.dtype)
            factor = 1 + jnp.asarray(self.eps).astype(wide)
            # One rounding, after the sum, and eps's gradient is summed before its own.
            root = dense(pair[1]).astype(dtype).astype(wide)
            total = (total.astype(wide) + factor * root).astype(total.dtype)
        return self.nn(total, mask=node_mask) if isinstance(self.nn, MLP) else self.nn(total)


@jax.checkpoint
def _over_parts(
    graph: Graph, senders: Array, edges: Array, projection: tuple[Array, Array] | None
) -> Array:
    """The sum of the messages on a sharded graph, by operations that exchange what they need."""
    if projection is not None:
        edges = add_bias(edges @ projection[0], projection[1])
    return segment_reduce(graph, jax.nn.relu(gather_edges(graph, senders) + edges), "sum")
