"""Aggregation over a sample of each receiver's edges."""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation import reference
from jaxgnn.ops._core import checks, padding
from jaxgnn.ops._core.rows import in_row_order
from jaxgnn.ops._sampling import kernels
from jaxgnn.ops._sampling.linear import SampledMap, aggregate
from jaxgnn.ops._sampling.rows import sampled_rows, taken_counts
from jaxgnn.ops._sampling.sample import Places, Sample, Strategy, arguments

Normalize = Literal["mean", "rescale", "gcn"]


@jax.named_scope("jaxgnn.sampled_spmm")
def sampled_spmm(
    graph: Graph,
    x: Float[Array, "num_senders *features"],
    weights: Float[Array, "num_edges *heads"] | None = None,
    *,
    sample_size: int | None = None,
    sample_rate: float | None = None,
    strategy: Strategy = "stride",
    key: Array | None = None,
    replace: bool = False,
    rows: Int[ArrayLike, " rows"] | None = None,
    axis_name: str | None = None,
    normalize: Normalize | None = None,
    impl: Impl = None,
) -> Float[Array, "rows *features"]:
    r"""Aggregates the features of a sample of each receiver's senders.

    $$y_i = s_i \sum_{e \in T(i)} w_e \, x_{j(e)}$$

    $T(i)$ are $S_i = \min(S, \lceil r d_i \rceil)$ of the $d_i$ edges of receiver $i$, all of them
    where that is $d_i$. Edges are numbered within the row from 0; place $j < S_i$ takes

    - `"bucket"`: $j$.
    - `"fastrand"`: $577 j \bmod d$: never beyond $577 (S - 1)$; where 577 divides $d$ it repeats.
    - `"stride"`: $(b + a j) \bmod d$ with $a$ coprime with $d$. Without a key $b = 0$ and $a$ is
      the first from $0.618 d + 1$ on. With one both are drawn: each edge has probability $S_i / d$.
    - `"random"`: all subsets alike (Floyd's algorithm); needs a key. With `replace` a row draws $S$
      edges, also where $d \le S$.
    - `"dropedge"`: each edge with probability $r$ = `sample_rate`; needs a key.

    The same key takes the same edges on every platform, whatever the number of threads. Only the
    sampled edges are read. Nothing of the sample is stored for the backward pass, which draws it
    again and sums over the transpose in a fixed order.

    Args:
        graph: the graph; edge values are in its edge order, not the user's
            (`Graph.sort_edge_data`).
        x: features `[num_senders, ..., F]`.
        weights: `[num_edges]` or `[num_edges, heads]`, as those of `spmm`.
        sample_size: $S$, from 1 to 4,096.
        sample_rate: $r$, above 0 and at most 1. At least one of the two; both bound a row. Alone
            with `"random"` or `rows` it may take up to 4,096 edges of a row, and the graph may not
            be traced.
        strategy: which edges a row takes.
        key: a JAX key, where edges are drawn. A training step has a fresh one.
        replace: draw with replacement.
        rows: the receivers to aggregate, repeats allowed, each with a sample of its own; -1, or
            where the values are traced any number out of range, is padding without edges. `None`:
            all receivers.
        axis_name: within `jax.shard_map`, the axis of the mesh over which `rows` are split, each
            device with as many; the graph is on all of them. The edges are those of one device with
            all rows; without it every device draws by the numbers of its own.
        normalize: $s_i$. `None`: 1. `"mean"`: $1 / S_i$. `"rescale"`: $d_i / S_i$, so that the sum
            is unbiased where edges are drawn alike (with `"dropedge"` $S_i$ edges were kept).
            `"gcn"`: the same, and the weights are multiplied by $1 / \sqrt{d_j d_i}$ with
            in-degrees (of square graphs; self-loops as they are).
        impl: `None` (our kernels where the platform has them, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, ..., F]`, or a row for each of `rows`, in the dtype of `x`. A row without
        sampled edges is 0.

    Raises:
        TypeError: `graph` is no `Graph`, or an argument has a wrong type.
        ValueError: a shape does not fit, a number is out of range, or a key is missing or useless.

    Source: `"bucket"`, `"fastrand"`: Liao et al., "ES-SpMM" (2021), section III; `"dropedge"`: Rong
    et al., "DropEdge" (ICLR 2020), section 2.
    """
    sample, places = arguments(
        graph, sample_size, sample_rate, strategy, key, replace, rows, axis_name
    )
    return aggregate_places(sample, places, x, weights, normalize, impl)


def aggregate_places(
    sample: Sample,
    places: Places,
    x: Float[Array, "num_senders *rest"],
    weights: Float[Array, "num_edges *heads"] | None = None,
    normalize: Normalize | None = None,
    impl: Impl = None,
) -> Float[Array, "places *rest"]:
    """`sampled_spmm` of a checked sample, where places may draw by ids."""
    graph = places.graph
    checks.choice(normalize, "normalize", (None, "mean", "rescale", "gcn"))
    x = checks.floating_rows(x, "x", graph.num_senders, "sender")
    dtype = accumulation_dtype(x.dtype)
    heads = 1
    if weights is not None:
        weights = checks.edge_weights(weights, graph.num_edges, x.shape[1:-1])
        heads = math.prod(weights.shape[1:])
        weights = weights.reshape(graph.num_edges, heads).astype(dtype)
    if normalize == "gcn" and not graph.is_square:
        raise ValueError(f"normalize: 'gcn' expected a square graph, got {graph}")
    impl = chosen(impl)
    shape = (places.count, *x.shape[1:])
    if x.size == 0 or places.count == 0 or graph.num_edges == 0:
        return ffi.zeros(shape, x.dtype, places, x, weights)
    places, x, weights = ffi.unify_varying(places, x, weights)
    if normalize == "gcn":
        weights = _gcn_weights(places.graph, dtype, weights)
    x = x.reshape(graph.num_senders, heads, math.prod(x.shape[1:]) // heads)
    width = x.shape[-1]
    mean = normalize == "mean"
    with config.use(impl=impl):
        if impl == "jax":
            listed = sampled_rows(sample, places)
            reduce = "mean" if mean else "sum"
            out = reference.reduce_rows(listed, x, in_row_order(listed, weights), reduce)
        else:
            linear_map = SampledMap(sample, mean=mean)
            out = aggregate(linear_map, places, padding.pad_features(x), weights)
        out = out[..., :width]
        if normalize in ("rescale", "gcn"):
            out = (out.astype(dtype) * _scale(sample, places, dtype)[:, None, None]).astype(x.dtype)
    return out.reshape(shape)


def _scale(sample: Sample, places: Places, dtype: jnp.dtype) -> Float[Array, " places"]:
    """The number of edges over the number of sampled ones."""
    _, degrees = kernels.row_bounds(places)
    taken = jnp.maximum(taken_counts(sample, places), 1)
    return degrees.astype(dtype) / taken.astype(dtype)


def _gcn_weights(
    graph: Graph, dtype: jnp.dtype, weights: Float[Array, "num_edges heads"] | None
) -> Float[Array, "num_edges heads"]:
    """GCN's normalized weights of the full graph."""
    scale = jax.lax.rsqrt(jnp.maximum(graph.in_degrees, 1).astype(dtype))
    normalized = (scale[graph.senders] * scale[graph.receivers])[:, None]
    return normalized if weights is None else normalized * weights
