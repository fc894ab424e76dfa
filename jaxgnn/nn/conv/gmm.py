"""MoNet's convolution: a mixture of Gaussians of the edges' coordinates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph, own_closure
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import dense
from jaxgnn.nn._linear import Initializer, count, glorot_kernel, linear, promote, width, width_pair
from jaxgnn.nn._sampling import EdgeSample, Strategy
from jaxgnn.ops import gaussian_spmm, sampled_spmm
from jaxgnn.ops._core import divide_by_degree
from jaxgnn.ops._gaussian.weights import edge_weights, weighting_argument
from jaxgnn.ops._projection.project import add_bias, project

Mixture = Literal["mean", "sum"]
Pseudo = Array | tuple[Array, Array]

_EPSILON = 1e-15  # PyG's

_glorot_kernels: Initializer = jax.nn.initializers.variance_scaling(
    1, "fan_avg", "uniform", batch_axis=(0, 1)
)
"""Glorot's of the last two axes, for Gaussians of every pair of features."""


class GMMConv(nnx.Module):
    r"""Convolution whose weights are Gaussians of the edges' coordinates.

    $$y_i = \mathrm{aggr}_{e = (j \to i)} \Big( \sum_k w_k(p_e) \, x_j G_k \Big) + x_i R + b, \qquad
      w_k(p) = \exp \Big( -\tfrac{1}{2} \sum_d
      \frac{(p_d - \mu_{kd})^2}{\sigma_{kd}^2 + 10^{-15}} \Big)$$

    The kernels are summed, as PyG's code does (its docstring divides by their number). The
    coordinates $p_e$ are given for each edge, or are sums of terms of the two ends, which need no
    O(E) intermediates. The projections by $G_k$ come before the aggregation
    (`jaxgnn.gaussian_spmm`, which stores no value for each edge and kernel), or after it if
    `out_features` is not below `in_features`: then it gathers the inputs, one row for all kernels.

    With `separate_gaussians` each pair of an input and an output feature has its own Gaussians.
    The output features are computed one after the other, each by an aggregation of one feature
    under `in_features * kernel_size` kernels, recomputed in the backward pass. The memory is
    `[num_senders, in_features * kernel_size]`, and the time that of
    `in_features * out_features * kernel_size` exponentials an edge.

    With a sample (`sample_size` or `sample_rate`) the mean is over the sampled edges, and a sum is
    rescaled. The weights of all edges, `[num_edges, kernel_size]`, are then materialized, and
    recomputed in the backward pass (with `separate_gaussians` `[num_edges, in_features *
    kernel_size]`). Rows are gathered for the sampled edges alone.

    Args:
        in_features: width of $x$, or the pair of the senders' and the receivers'.
        out_features: width of $y$.
        dim: number of coordinates, up to 16.
        kernel_size: number of Gaussians.
        separate_gaussians: whether each pair of features has its own.
        aggr: `"mean"` or `"sum"`.
        root_weight: whether to add $x_i R$.
        sample_size: the most edges of a node that are aggregated, from 1 to 4,096, as by
            `jaxgnn.sampled_spmm`; `None` for all.
        sample_rate: the largest share of a node's edges, above 0 and at most 1; with `"dropedge"`
            the probability to keep an edge.
        strategy: which: `"bucket"`, `"fastrand"`, `"stride"`, `"random"` or `"dropedge"`. In
            training the last three draw other edges in every call; after `eval()` `"stride"` takes
            the same ones, and `"dropedge"` all edges.
        use_bias: whether to add $b$.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values of $G$ and $R$, and of $b$; by default PyG's
            (Glorot, zeros). $\mu$ and $\sigma$ start by Glorot's too.
        rngs: `params` is used, and `sampling` if edges are drawn.

    Raises:
        TypeError: a width or a number is no integer, or an option that is `True` or `False` is
            something else.
        ValueError: a width or a number below 1, too many coordinates, an unknown `aggr` or
            `strategy`, or a `sample_size` or `sample_rate` out of range.

    Source: Monti et al., "Geometric deep learning on graphs and manifolds using mixture model
    CNNs" (CVPR 2017), section 4; PyG's `GMMConv`.
    """

    accepts_pair = True

    @_inputs.named_options
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        dim: int,
        kernel_size: int,
        *,
        separate_gaussians: bool = False,
        aggr: Mixture = "mean",
        root_weight: bool = True,
        sample_size: int | None = None,
        sample_rate: float | None = None,
        strategy: Strategy = "stride",
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = glorot_kernel,
        bias_init: Initializer = jax.nn.initializers.zeros,
        rngs: nnx.Rngs,
    ):
        checks.choice(aggr, "aggr", ("mean", "sum"))
        checks.booleans(
            separate_gaussians=separate_gaussians, root_weight=root_weight, use_bias=use_bias
        )
        senders, receivers = width_pair(in_features, "in_features")
        out_features = width(out_features, "out_features")
        kernel_size = count(kernel_size, "kernel_size", "kernels")
        checks.integer(dim, "dim", 1, 16)
        layer = functools.partial(
            linear,
            use_bias=False,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            rngs=rngs,
        )
        self.linear = layer(senders, out_features * kernel_size)
        self.linear_root = layer(receivers, out_features) if root_weight else None
        shape, init = (kernel_size, dim), glorot_kernel
        if separate_gaussians:
            shape, init = (senders, out_features, *shape), _glorot_kernels
        self.mu = nnx.Param(init(rngs.params(), shape, param_dtype))
        self.sigma = nnx.Param(init(rngs.params(), shape, param_dtype))
        shape = (out_features,)
        bias = nnx.Param(bias_init(rngs.params(), shape, param_dtype)) if use_bias else None
        self.bias = bias
        self.sample = EdgeSample(sample_size, strategy, rngs, aggr, sample_rate)
        self.in_features = (senders, receivers)
        self.out_features = out_features
        self.dim = dim
        self.kernel_size = kernel_size
        self.separate_gaussians = separate_gaussians
        self.aggr: Mixture = aggr

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes *batch in_features"] | tuple[Array, Array | None],
        pseudo: Float[Array, "num_edges dim"]
        | tuple[Float[Array, "num_receivers dim"], Float[Array, "num_senders dim"]],
        *,
        activation: Literal["tanh"] | None = None,
        sample_size: int | None = None,
        sample_rate: float | None = None,
        strategy: Strategy | None = None,
        key: Array | None = None,
    ) -> Float[Array, "num_receivers *batch out_features"]:
        """Convolves the features of the nodes.

        Args:
            graph: the graph.
            x: features `[num_nodes, ..., in_features]`, or the pair of the senders' and the
                receivers' (`None`: without $x_i R$).
            pseudo: the coordinates `[num_edges, dim]`, in the graph's edge order, not the user's
                (`Graph.sort_edge_data`), or the pair of the receivers' and the senders' terms,
                whose sums they are.
            activation: `"tanh"`: what the coordinates go through first.
            sample_size, sample_rate, strategy: in place of the module's.
            key: of the sample, in place of the one that `rngs` draws.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a shape that does not fit, or an unknown `activation`.
        """
        graph = _inputs.graph_or_substitute(graph)
        senders, receivers = _inputs.sender_receiver_pair(graph, x, self.in_features, "GMMConv")
        senders = dense(senders)
        batch = senders.shape[1:-1]
        sample = self.sample.options(sample_size, sample_rate, strategy, key)
        operation = gaussian_spmm
        if sample is not None:
            operation = functools.partial(_sampled_gaussian_spmm, sample=sample)
        aggregate = functools.partial(operation, graph, activation=activation)
        if self.separate_gaussians:
            out = self._separate(aggregate, senders, pseudo)
        else:
            gaussians = self.mu[...], self._inv_sigma(), pseudo
            if self.in_features[0] <= self.out_features:
                flat = self._flat(senders)
                # Sums are divided after the projection, where rows are narrower, also in the
                # backward pass. In 16 bits the sums might overflow.
                divide_last = self.aggr == "mean" and flat.dtype.itemsize >= 4 and sample is None
                sums = aggregate(flat, *gaussians, reduce="sum" if divide_last else self.aggr)
                out = self._transformed(sums, batch)
                out = divide_by_degree(graph, "receivers" if divide_last else None, out)
            else:
                out = aggregate(self._by_kernel(senders), *gaussians, reduce=self.aggr)
        out = out.reshape(graph.num_receivers, *batch, self.out_features)
        if self.linear_root is not None and receivers is not None:
            out = out + self.linear_root(dense(receivers))
        if self.bias is not None:
            out = add_bias(out, self.bias[...])
        return out

    def _flat(self, x: Array) -> Array:
        """The features of all examples concatenated, in the dtype of the computation."""
        return promote(self.linear, x).reshape(x.shape[0], math.prod(x.shape[1:]))

    def _transformed(self, sums: Array, batch: tuple[int, ...]) -> Array:
        """The sum over the kernels of the projected sums of inputs."""
        pair = (self.kernel_size, self.in_features[0])
        sums = sums.reshape(sums.shape[0], self.kernel_size, *batch, self.in_features[0])
        sums = jnp.moveaxis(sums, 1, -2).reshape(sums.shape[0], *batch, math.prod(pair))
        kernel = self.linear.kernel[...].astype(sums.dtype)
        kernel = kernel.reshape(self.in_features[0], self.kernel_size, self.out_features)
        kernel = jnp.moveaxis(kernel, 1, 0).reshape(math.prod(pair), self.out_features)
        return project(sums, kernel, self.linear.precision)

    def _by_kernel(self, x: Array) -> Array:
        """The projected inputs, `[num_senders, kernel_size, *batch * out_features]`."""
        rows = self.linear(x)
        rows = rows.reshape(*rows.shape[:-1], self.kernel_size, self.out_features)
        rows = jnp.moveaxis(rows, -2, 1)
        return rows.reshape(*rows.shape[:2], math.prod(rows.shape[2:]))

    def _inv_sigma(self) -> Array:
        sigma = self.sigma[...]
        sigma = sigma.astype(accumulation_dtype(sigma.dtype))
        return jax.lax.rsqrt(sigma * sigma + _EPSILON)

    def _separate(self, aggregate: Callable[..., Array], x: Array, pseudo: Pseudo) -> Array:
        """The aggregation of each output feature, `[num_receivers, *batch, out]`."""
        x = promote(self.linear, x)
        x = jnp.moveaxis(x, -1, 1)
        x = x.reshape(*x.shape[:2], 1, math.prod(x.shape[2:]))
        pairs = (self.in_features[0], self.out_features, self.kernel_size)

        @jax.checkpoint
        def feature(parameters):
            weights, mu, inv_sigma = parameters  # [in_features, kernel_size] and [..., dim]
            rows = x * weights[None, :, :, None]
            rows = rows.reshape(x.shape[0], weights.size, x.shape[-1])
            means, inv_sigmas = mu.reshape(-1, self.dim), inv_sigma.reshape(-1, self.dim)
            with own_closure():
                return aggregate(rows, means, inv_sigmas, pseudo, reduce=self.aggr)

        kernel = self.linear.kernel[...].astype(x.dtype).reshape(pairs)
        parameters = kernel, self.mu[...], self._inv_sigma()
        out = jax.lax.map(feature, jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), parameters))
        return jnp.moveaxis(out, 0, -1)


def _sampled_gaussian_spmm(
    graph: Graph,
    x: Array,
    mu: Array,
    inv_sigma: Array,
    pseudo: Pseudo,
    *,
    reduce: Mixture,
    activation: Literal["tanh"] | None,
    sample: dict[str, Any],
) -> Array:
    """`gaussian_spmm` over a sample: the mean over it, or the rescaled sum."""
    checks.choice(activation, "activation", (None, "tanh"))
    shared_input = x.ndim == 2
    kernels = mu.shape[0]
    dtype = accumulation_dtype(x.dtype)
    weighting = weighting_argument(graph, mu, inv_sigma, pseudo, kernels, dtype)
    normalize = "mean" if reduce == "mean" else "rescale"

    @jax.checkpoint
    def aggregate(x: Array, weighting: Any) -> Array:
        with own_closure():
            weights = edge_weights(graph, weighting, tanh=activation == "tanh")
            if shared_input:
                rows = jnp.broadcast_to(x[:, None], (x.shape[0], kernels, x.shape[1]))
                return sampled_spmm(graph, rows, weights, normalize=normalize, **sample)
            # The kernels' results are summed before they are rounded.
            rows = x.astype(dtype)
            out = sampled_spmm(graph, rows, weights, normalize=normalize, **sample)
            return jnp.sum(out, axis=1).astype(x.dtype)

    return aggregate(x, weighting)
