"""The graph convolution of Kipf and Welling."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._core import checks
from jaxgnn._core.arguments import unwrap
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph, GraphSubstitute, self_loop_mask
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import aggregate, dense, gathered, map_values
from jaxgnn.nn._linear import Initializer, aggregate_and_transform, glorot_kernel, linear
from jaxgnn.nn._sampling import EdgeSample, Strategy
from jaxgnn.ops import CBSR, segment_reduce


class GCNConv(nnx.Module):
    r"""Graph convolution with symmetric normalization.

    $$y_i = \sum_{e = (j \to i)} \frac{w_e}{\sqrt{d_j d_i}} \, x_j W + b,
      \qquad d_i = \sum_{e \to i} w_e$$

    over the edges with exactly one self-loop at each node: a node without one gets a loop of
    weight 1; of several, the last in the edge order stays. Both ends are normalized by their
    *in*-degree; a degree of 0 gives 0. All of this happens in the call, on arrays of the nodes:
    the graph is taken as it is, and no normalized edge weights are formed. The normalization
    runs in float32 (float64 for float64) whatever the dtype.

    The projection by $W$ comes before the aggregation if it makes the rows narrower. Sparse rows
    (`CBSR`, what `MaxK` leaves) are aggregated first, by `maxk_spmm`.

    Args:
        in_features, out_features: widths of $x$ and $y$.
        improved: added self-loops weigh 2. Only in a call with `weights`: without, PyG makes them
            1 too, and so does this.
        add_self_loops: make the self-loops one a node; the default is `normalize`.
        normalize: divide by the degrees; else $y_i = \sum_e w_e x_j W + b$.
        sample_size: the most edges of a node that are aggregated, from 1 to 4,096, the sum
            rescaled (`jaxgnn.sampled_spmm`); `None` for all.
        sample_rate: the largest share of a node's edges, above 0 and at most 1; with `"dropedge"`
            the probability to keep an edge.
        strategy: which: `"bucket"`, `"fastrand"`, `"stride"`, `"random"` or `"dropedge"`. In
            training the last three draw other edges in every call; after `eval()` `"stride"` takes
            the same ones, and `"dropedge"` all edges.
        use_bias: whether to add $b$.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values; by default PyG's (Glorot, zeros).
        rngs: `params` is used, and `sampling` if edges are drawn.

    Raises:
        TypeError: a width is no integer, or an option that is `True` or `False` is something else.
        ValueError: a width below 1, or `add_self_loops` without `normalize`.

    Source: Kipf and Welling, "Semi-supervised classification with graph convolutional networks"
    (ICLR 2017), equation 2; PyG's `GCNConv`.
    """

    accepts_sparse = True

    @_inputs.named_options
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        improved: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
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
        if add_self_loops is None:
            add_self_loops = normalize
        checks.booleans(improved=improved, normalize=normalize, add_self_loops=add_self_loops)
        if add_self_loops and not normalize:
            raise ValueError("add_self_loops: expected normalize=True with it, got False")
        self.linear = linear(
            in_features,
            out_features,
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            rngs=rngs,
        )
        self.sample = EdgeSample(sample_size, strategy, rngs, sample_rate=sample_rate)
        self.in_features = in_features
        self.out_features = out_features
        self.improved = improved
        self.add_self_loops = add_self_loops
        self.normalize = normalize
        self.transform_first = out_features < in_features

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes *batch in_features"] | CBSR,
        weights: Float[Array, " num_edges"] | None = None,
        *,
        sample_size: int | None = None,
        sample_rate: float | None = None,
        strategy: Strategy | None = None,
        key: Array | None = None,
        scale: Float[Array, " num_nodes"] | None = None,
        degrees: Int[Array, " num_nodes"] | None = None,
    ) -> Float[Array, "num_nodes *batch out_features"]:
        """Convolves the features of a square graph's nodes.

        Args:
            graph: a square graph.
            x: features `[num_nodes, ..., in_features]`, or sparse rows of them.
            weights: of the edges, in the graph's edge order, not the user's
                (`Graph.sort_edge_data`); 1 if not given.
            sample_size, sample_rate, strategy: in place of the module's.
            key: of the sample, in place of the one that `rngs` draws.
            scale: $d^{-1/2}$ of each node, in place of the graph's own degrees: for a part of a
                larger graph, whose `node_scale` has it.
            degrees: the edges that enter each node from others in the graph of which this is a
                sample (`Blocks.with_degrees`): the degrees to divide by, and each node's sum over
                fewer edges is rescaled to as many.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a rectangular graph, a shape that does not fit, or `degrees` with `weights`,
                with `scale` or without `normalize`.
        """
        if not isinstance(graph, GraphSubstitute):
            graph = _inputs.square_graph(graph, "GCNConv")
        _inputs.check_no_pair(x, "GCNConv", "; see SAGEConv or GINConv")
        x = gathered(_inputs.features(x, "x", graph.num_senders, "node", self.in_features))
        if weights is not None:
            weights = checks.edge_weights(weights, graph.num_edges, ())
        if degrees is not None:
            degrees = self._degrees_argument(degrees, graph, weights, scale)
        sample = self.sample.options(sample_size, sample_rate, strategy, key)
        return aggregate_and_transform(
            self.linear,
            lambda h: self._aggregate(graph, h, weights, sample, scale, degrees),
            x,
            transform_first=self.transform_first,
        )

    def node_scale(
        self, graph: Graph, weights: Float[Array, " num_edges"] | None, dtype: DTypeLike
    ) -> Float[Array, " num_nodes"] | None:
        r"""$d^{-1/2}$ of each node of a square graph, `None` without `normalize`; in the dtype of
        the sums over rows of this dtype."""
        if not self.normalize:
            return None
        dtype = accumulation_dtype(jnp.promote_types(dtype, self.linear.kernel.dtype))
        return _normalization(graph, weights, self._loop_weight(weights), dtype)[2]

    @property
    def accepts_degrees(self) -> bool:
        """Whether a call may have `degrees`."""
        return self.normalize

    def _degrees_argument(self, degrees: Any, graph: Graph, weights: Any, scale: Any) -> Array:
        if weights is not None or scale is not None or not self.normalize:
            raise ValueError("degrees: expected normalize, and neither weights nor scale with it")
        degrees = jnp.asarray(unwrap(degrees))
        if degrees.shape != (graph.num_receivers,):
            raise ValueError(
                f"degrees: expected the shape ({graph.num_receivers},), got {degrees.shape}"
            )
        return degrees

    def _loop_weight(self, weights: Array | None) -> float | None:
        if not self.add_self_loops:
            return None
        return 2.0 if self.improved and weights is not None else 1.0

    def _aggregate(
        self,
        graph: Graph,
        x: Array | CBSR,
        weights: Array | None,
        sample: dict[str, Any] | None,
        scale: Array | None,
        degrees: Array | None,
    ) -> Array:
        if not self.normalize:
            return aggregate(graph, x, weights, sample=sample)
        loop_weight = self._loop_weight(weights)
        return normalized_aggregate(graph, x, weights, loop_weight, sample, scale, degrees)


def normalized_aggregate(
    graph: Graph,
    x: Float[Array, "num_nodes *batch features"] | CBSR,
    weights: Float[Array, " num_edges"] | None,
    loop_weight: float | None,
    sample: dict[str, Any] | None = None,
    scale: Float[Array, " num_nodes"] | None = None,
    degrees: Int[Array, " num_nodes"] | None = None,
) -> Float[Array, "num_nodes *batch features"]:
    r"""$D^{-1/2} \hat A D^{-1/2} x$ without forming the normalized weights.

    $\hat A$ differs from $A$ on its diagonal only. With $\ell_i$ the difference and
    $s = d^{-1/2}$,

    $$y_i = s_i \Big( \sum_{e = (j \to i)} w_e s_j x_j + \ell_i s_i x_i \Big).$$

    Args:
        graph: a square graph.
        x: features, dense or sparse.
        weights: of the edges; 1 if not given.
        loop_weight: weight of the self-loop of a node that has none; `None` leaves the graph's
            self-loops as they are.
        sample: of the edges, as for `aggregate`; the self-loop that is added is not among them.
        scale: $s$, if it is not the graph's.
        degrees: the edges from other nodes in the graph of which this is a sample; without weights.
    """
    dtype = accumulation_dtype(x.dtype)
    weights, difference, own = _normalization(graph, weights, loop_weight, dtype)
    more = None
    if degrees is not None:
        difference, own, more = _of_sample(graph, difference, degrees.astype(dtype))
    scale = _column(own if scale is None else scale.astype(dtype), len(x.shape))
    x = map_values(lambda rows: (scale * rows.astype(dtype)).astype(rows.dtype), x)
    if x.dtype == jnp.float16:
        # The sum of a hub's neighbors is in range only after the receiver's factor.
        out = aggregate(graph, x, weights, "mean", sample).astype(dtype)
        count = graph.in_degrees.astype(dtype)
        out = out * _column(count if more is None else count * more, out.ndim)
    else:
        out = aggregate(graph, x, weights, sample=sample).astype(dtype)
        if more is not None:
            out = out * _column(more, out.ndim)
    if difference is not None:
        out = out + _column(difference, out.ndim) * dense(x).astype(dtype)
    return (scale * out).astype(x.dtype)


def _normalization(
    graph: Graph,
    weights: Float[Array, " num_edges"] | None,
    loop_weight: float | None,
    dtype: DTypeLike,
) -> tuple[
    Float[Array, " num_edges"] | None,
    Float[Array, " num_nodes"] | None,
    Float[Array, " num_nodes"],
]:
    r"""The weights of $\hat A$ off the loops that are replaced, $\ell$ (`None`: 0) and $s$."""
    difference = None
    if weights is not None:
        weights = weights.astype(dtype)
    if loop_weight is not None:
        assert graph.self_loops is not None
        fill = jnp.asarray(loop_weight, dtype)
        if weights is None:
            kept, loops = jnp.ones((), dtype), graph.self_loops.astype(dtype)
        else:
            kept, loops = jnp.zeros((), dtype), jnp.zeros((), dtype)
            weights = jnp.where(_repeated_self_loop(graph), jnp.zeros((), dtype), weights)
        difference = jnp.where(graph.self_loops == 0, fill, kept - loops)
    degree = graph.in_degrees.astype(dtype) if weights is None else segment_reduce(graph, weights)
    if difference is not None:
        degree = degree + difference
    return weights, difference, _inverse_root(degree)


def _of_sample(
    graph: Graph,
    difference: Float[Array, " num_nodes"] | None,
    degrees: Float[Array, " num_nodes"],
) -> tuple[Float[Array, " num_nodes"], Float[Array, " num_nodes"], Float[Array, " num_nodes"]]:
    r"""$\ell$, $s$ and the factor of each node's sum, of a sample of a graph's edges.

    A node has $d$ edges from others in that graph, $d'$ of them here, and $\lambda$ self-loops
    here, $\lambda + \ell$ in $\hat A$. The sum over all of its edges here times $d / d'$ has
    $\lambda d / d'$ of them.
    """
    assert graph.self_loops is not None
    loops = graph.self_loops.astype(degrees.dtype)
    others = graph.in_degrees.astype(degrees.dtype) - loops
    more = jnp.where(others > 0, degrees / jnp.maximum(others, 1), jnp.ones_like(degrees))
    kept = loops if difference is None else loops + difference
    return kept - more * loops, _inverse_root(degrees + kept), more


def _inverse_root(degree: Float[Array, " num_nodes"]) -> Float[Array, " num_nodes"]:
    r"""$d^{-1/2}$, and 0 of 0."""
    # The inner `where` keeps the derivative at degree 0 finite.
    isolated = degree == 0
    scale = jax.lax.rsqrt(jnp.where(isolated, jnp.ones_like(degree), degree))
    return jnp.where(isolated, jnp.zeros_like(degree), scale)


def _repeated_self_loop(graph: Graph) -> Bool[Array, " num_edges"]:
    """Which edges are self-loops that another one of the same node follows in its row."""
    if isinstance(graph, GraphSubstitute):
        return graph.repeated_self_loops
    if graph.num_edges == 0:
        return jnp.zeros(0, bool)
    assert graph.self_loops is not None
    loops = self_loop_mask(graph)
    # Equal edges are neighbors in the edge order, except for those of sampled blocks.
    again = loops[1:] & (graph.senders[1:] == graph.senders[:-1])
    followed = jnp.append(loops[:-1] & again, jnp.zeros(1, bool))
    repeats = jnp.sum(jnp.maximum(graph.self_loops - 1, 0))
    sorted_loops = jnp.sum(followed, dtype=repeats.dtype) == repeats

    def not_the_last(graph: Graph, loops: Array) -> Array:
        assert graph.self_loops is not None
        edges = jnp.arange(graph.num_edges, dtype=graph.row_offsets.dtype)
        last = (graph.self_loops * 0).astype(edges.dtype)  # varies over a mesh as the graph does
        at = jnp.where(loops, graph.senders, graph.num_senders)
        last = last.at[at].max(edges, mode="drop")
        return loops & (edges != last[graph.senders])

    return jax.lax.cond(sorted_loops, lambda *_: followed, not_the_last, graph, loops)


def _column(values: Array, ndim: int) -> Array:
    return values.reshape(values.shape + (1,) * (ndim - 1))
