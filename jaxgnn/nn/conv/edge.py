"""The edge convolution of point clouds."""

from __future__ import annotations

import functools
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn.graph import Graph, GraphSubstitute
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import dense
from jaxgnn.nn._linear import Initializer, kaiming_kernel, linear, width
from jaxgnn.nn._recompute import recomputed
from jaxgnn.nn.mlp import MLP
from jaxgnn.ops import edge_conv, gather_edges, segment_reduce
from jaxgnn.ops._projection.project import add_bias, project

EdgeReduce = Literal["max", "mean", "sum"]


class EdgeConv(nnx.Module):
    r"""Convolution over the differences to a node's neighbors.

    $$y_i = \mathrm{aggr}_{e = (j \to i)} \; h \big( [x_i, \; x_j - x_i] \big)$$

    A node without incoming edges gets 0. Without `mlp`, $h$ is a linear layer:
    $x_i W_1 + (x_j - x_i) W_2 + b$ is then $\theta_j + \varphi_i$ with $\theta_j = x_j W_2$ and
    $\varphi_i = x_i (W_1 - W_2) + b$, two projections on the nodes and one aggregation
    (`jaxgnn.edge_conv`), without O(E) intermediates.

    With `mlp`, $h$ is that module. It computes values on the edges, `[num_edges, ...]` of each of
    its widths at a time. They are recomputed in the backward pass, so that only arrays of the
    nodes' size are stored. The first layer of a `jaxgnn.nn.MLP` is hoisted to the nodes as above;
    any other module gets the rows $[x_i, x_j - x_i]$ of the edges.

    Args:
        in_features: width of $x$.
        out_features: width of $y$.
        aggr: `"max"`, `"mean"` or `"sum"`.
        mlp: $h$, a module from `2 * in_features` to `out_features`; a linear layer if not given,
            and the options below are for that.
        use_bias: whether to add $b$.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values; by default PyTorch's, uniform on
            $\pm 1 / \sqrt{2 F_\mathrm{in}}$.
        rngs: `params` is used.

    Raises:
        TypeError: a width is no integer, or `mlp` no module.
        ValueError: a width below 1 or not that of `mlp`, or an unknown `aggr`.

    Source: Wang et al., "Dynamic Graph CNN for Learning on Point Clouds" (TOG 2019), section 3;
    PyG's `EdgeConv`. The reorganization and recomputation: Zhang et al., "Understanding GNN
    Computational Graph" (MLSys 2022), sections 4 and 6.
    """

    accepts_pair = True

    @_inputs.named_options
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        aggr: EdgeReduce = "max",
        mlp: nnx.Module | None = None,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = kaiming_kernel,
        bias_init: Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        checks.choice(aggr, "aggr", ("max", "mean", "sum"))
        widths = (2 * width(in_features, "in_features"), width(out_features, "out_features"))
        if mlp is not None and not isinstance(mlp, nnx.Module):
            raise TypeError(f"mlp: expected an nnx.Module, got {type(mlp).__name__}")
        if isinstance(mlp, MLP) and (mlp.features[0], mlp.features[-1]) != widths:
            raise ValueError(
                f"mlp: expected one from 2 * in_features = {widths[0]} to out_features = "
                f"{widths[1]}, got the widths {mlp.features}"
            )
        first = mlp
        while isinstance(first, nnx.Sequential) and first.layers:  # the layer that takes the rows
            first = first.layers[0]
        if isinstance(first, nnx.Linear) and first.in_features != widths[0]:
            raise ValueError(
                f"mlp: expected one from 2 * in_features = {widths[0]}, got one from "
                f"{first.in_features}"
            )
        layer = None
        if mlp is None:
            layer = linear(
                *widths,
                use_bias=use_bias,
                dtype=dtype,
                param_dtype=param_dtype,
                kernel_init=kernel_init,
                bias_init=bias_init,
                rngs=rngs,
            )
        self.linear = layer
        self.mlp = mlp
        self.aggr: EdgeReduce = aggr
        self.in_features = in_features
        self.out_features = out_features

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes *batch in_features"] | tuple[Array, Array],
        weights: None = None,
    ) -> Float[Array, "num_receivers *batch out_features"]:
        """Convolves the features of the nodes.

        Args:
            graph: the graph.
            x: features `[num_nodes, ..., in_features]`, or the pair of the senders' and the
                receivers', of one width.
            weights: there are none: `None`, for the signature that convolutions share.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a shape that does not fit, a missing half of the pair, or weights.
        """
        graph = _inputs.graph_or_substitute(graph)
        if weights is not None:
            raise ValueError("weights: EdgeConv has none, expected None")
        widths = (self.in_features, self.in_features)
        pair = _inputs.sender_receiver_pair(graph, x, widths, "EdgeConv")
        if pair[1] is None:
            raise ValueError("x: EdgeConv expected x[1], got None")
        senders, receivers = dense(pair[0]), dense(pair[1])
        layer = self.linear
        if isinstance(self.mlp, MLP) and len(self.mlp.linears) == 1:
            layer = self.mlp.linears[0]
        if layer is not None:
            theta, phi = _node_terms(layer, senders, receivers)
            return edge_conv(graph, theta, phi, reduce=self.aggr)
        assert self.mlp is not None
        if isinstance(graph, GraphSubstitute):
            _inputs.check_inner_module(self.mlp, "EdgeConv")
        out = recomputed(
            functools.partial(_on_edges, aggr=self.aggr), self.mlp, graph, senders, receivers
        )
        if out.shape[-1] != self.out_features:
            raise ValueError(
                f"mlp: expected one to out_features = {self.out_features}, got {out.shape[-1]}"
            )
        return out


def _node_terms(layer: nnx.Linear, senders: Array, receivers: Array) -> tuple[Array, Array]:
    r"""$\theta$ and $\varphi$ of the projection $[x_i, x_j - x_i] W + b$."""
    own, difference = jnp.split(layer.kernel[...], 2)
    # The kernels are subtracted in their own dtype, which may be the wider one.
    senders, receivers, own, difference = dtypes.promote_dtype(
        (senders, receivers, own - difference, difference), dtype=layer.dtype
    )
    theta = project(senders, difference, layer.precision)
    phi = project(receivers, own, layer.precision)
    if layer.bias is not None:
        phi = add_bias(phi, layer.bias[...])
    return theta, phi


def _on_edges(
    mlp: nnx.Module, graph: Graph, senders: Array, receivers: Array, aggr: EdgeReduce
) -> Array:
    """The module on every edge, reduced. The reduction is recomputed too, as the derivative of a
    maximum needs its operands."""
    if isinstance(mlp, MLP):
        theta, phi = _node_terms(mlp.linears[0], senders, receivers)
        mask = graph.edge_mask if isinstance(graph, GraphSubstitute) else None
        messages = mlp.after_first(gather_edges(graph, theta, phi, "add"), mask=mask)
    else:
        own = gather_edges(graph, receivers=receivers)
        difference = gather_edges(graph, senders, receivers, "sub")
        messages = mlp(jnp.concatenate([own, difference], axis=-1))  # pyright: ignore[reportCallIssue]
    return segment_reduce(graph, messages, aggr)
