"""Features of nodes, dense, sparse or not gathered yet, and the functions that take them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph, NodeRows
from jaxgnn.ops import CBSR, maxk_spmm, sampled_spmm, spmm
from jaxgnn.ops._aggregation.spmm import Reduce
from jaxgnn.ops._sampling.gather import aggregate_nodes

Features = Array | CBSR | NodeRows
"""An array `[num_nodes, ..., width]`, the sparse rows of one `[num_nodes, width]`, or the rows of
blocks' nodes."""

Tree = TypeVar("Tree")
"""`Features`, or a pair of them of which one may be `None`."""


def dense(x: Features) -> Array:
    """The array."""
    if isinstance(x, NodeRows):
        return x.__jax_array__()
    return x.to_dense() if isinstance(x, CBSR) else x


def gathered(x: Features) -> Array | CBSR:
    """Nodes' rows as the array, all else as it is."""
    return dense(x) if isinstance(x, NodeRows) else x


def map_values(function: Callable[[Array], Array], x: Tree) -> Tree:
    """Applies `function`, which maps 0 to 0, to every array, and to the entries of sparse rows."""

    def apply(rows: Features) -> Features:
        if isinstance(rows, CBSR):
            return dataclasses.replace(rows, values=function(rows.values))
        return function(dense(rows))

    return jax.tree.map(apply, x, is_leaf=lambda leaf: isinstance(leaf, CBSR | NodeRows))


def cast(x: Features, dtype: DTypeLike) -> Features:
    """The features in a dtype. Those that have it are left as they are."""
    return x if x.dtype == dtype else map_values(lambda rows: rows.astype(dtype), x)


def first_rows(x: Features, count: int) -> Features:
    """The first rows, which are those of a layer's receivers."""
    if isinstance(x, NodeRows):
        return x.first(count)
    return jax.tree.map(lambda array: array[:count], x)


def aggregate(
    graph: Graph,
    x: Features,
    weights: Float[Array, " num_edges"] | None = None,
    reduce: Reduce = "sum",
    sample: dict[str, Any] | None = None,
) -> Float[Array, "num_receivers *batch features"]:
    """`spmm`, or where the reduction is linear that of sparse rows or of nodes' rows.

    With `sample`, arguments of `sampled_spmm`, the mean over that sample, or the rescaled sum.
    """
    if sample is not None:
        normalize = "mean" if reduce == "mean" else "rescale"
        return sampled_spmm(graph, dense(x), weights, normalize=normalize, **sample)
    if isinstance(x, CBSR) and (reduce == "sum" or reduce == "mean"):
        return maxk_spmm(graph, x, weights, reduce=reduce)
    if isinstance(x, NodeRows) and (reduce == "sum" or reduce == "mean"):
        return aggregate_nodes(graph, x, weights, mean=reduce == "mean")
    return spmm(graph, dense(x), weights, reduce=reduce)


def unit_rows(x: Array) -> Array:
    """Each row divided by its Euclidean length, or by 1e-12 if that is more."""
    wide = x.astype(accumulation_dtype(x.dtype))
    squares = jnp.sum(wide * wide, axis=-1, keepdims=True)
    # The maximum is taken of the squares: the root's derivative at 0 is infinite.
    return (wide * jax.lax.rsqrt(jnp.maximum(squares, jnp.full_like(squares, 1e-24)))).astype(
        x.dtype
    )
