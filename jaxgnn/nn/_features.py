"""Features of nodes, dense or sparse, and the functions that take both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jaxtyping import Array, Float

from jaxgnn.graph import Graph
from jaxgnn.ops import CBSR, maxk_spmm, sampled_spmm, spmm
from jaxgnn.ops._aggregation.spmm import Reduce

Features = Array | CBSR
"""An array `[num_nodes, ..., width]`, or the sparse rows of one `[num_nodes, width]`."""

Tree = TypeVar("Tree")
"""`Features`, or a pair of them of which one may be `None`."""


def dense(x: Features) -> Array:
    """The array."""
    return x.to_dense() if isinstance(x, CBSR) else x


def map_values(function: Callable[[Array], Array], x: Tree) -> Tree:
    """Applies `function`, which maps 0 to 0, to every array, and to the entries of sparse rows."""

    def apply(rows: Features) -> Features:
        if isinstance(rows, CBSR):
            return dataclasses.replace(rows, values=function(rows.values))
        return function(rows)

    return jax.tree.map(apply, x, is_leaf=lambda leaf: isinstance(leaf, CBSR))


def aggregate(
    graph: Graph,
    x: Features,
    weights: Float[Array, " num_edges"] | None = None,
    reduce: Reduce = "sum",
    sample: dict[str, Any] | None = None,
) -> Float[Array, "num_receivers *batch features"]:
    """`spmm`, or of sparse rows `maxk_spmm` where the reduction is linear.

    With `sample`, arguments of `sampled_spmm`, the mean over that sample, or the rescaled sum.
    """
    if sample is not None:
        normalize = "mean" if reduce == "mean" else "rescale"
        return sampled_spmm(graph, dense(x), weights, normalize=normalize, **sample)
    if isinstance(x, CBSR) and (reduce == "sum" or reduce == "mean"):
        return maxk_spmm(graph, x, weights, reduce=reduce)
    return spmm(graph, dense(x), weights, reduce=reduce)
