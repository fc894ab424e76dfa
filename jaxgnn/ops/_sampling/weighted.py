"""Weights by which edges are drawn, made ready: logarithms for a race, prefix sums or alias tables.

All are integers, so that every platform draws the same edges.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, Int32, UInt32

from jaxgnn._core import ffi
from jaxgnn._core.arguments import unwrap
from jaxgnn._core.checks import EDGE_ORDER
from jaxgnn.graph import Graph
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.philox import multiply_words
from jaxgnn.ops._sampling.alias import alias_table
from jaxgnn.ops._sampling.draws import Words
from jaxgnn.ops._sampling.race import ZERO_WEIGHT, fixed_log2

Kind = Literal["race", "sums", "alias"]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["table", "counts"], meta_fields=["kind"]
)
@dataclasses.dataclass(frozen=True)
class DrawWeights:
    """Weights of a graph's edges as draws read them: what `draw_weights` returns.

    They belong to the graph that they were made for. A pytree.

    Attributes:
        table: without replacement the logarithms, in steps of $2^{-23}$, the smallest integer for
            0; with replacement the threshold and the alias of each edge's cell, or the low and high
            words of the sums of all edges' integer weights so far.
        counts: how many edges of each row have a positive weight.
        kind: what the table is: `"race"`, `"alias"` or `"sums"`; static.
    """

    table: Int32[Array, " num_edges"] | UInt32[Array, " 2*num_edges"]
    counts: Int[Array, " num_receivers"]
    kind: Kind


def _on_host(weights: Any) -> np.ndarray:
    try:
        return np.asarray(weights)
    except ValueError:
        raise ValueError("weights: expected one an edge, got rows of unlike lengths") from None


def ready_weights(
    graph: Graph, weights: Any, replace: bool, *, many: bool = False
) -> DrawWeights | None:
    """The weights checked and made ready, in O(edges); those that are ready stay as they are.

    Draws with replacement are by prefix sums, which the device computes, or, if `many` draws are to
    come, by alias tables. The host builds these, so that traced weights have prefix sums. Traced
    weights that are negative or not finite in float32 count as 0.
    """
    if weights is None:
        return None
    if isinstance(weights, DrawWeights):
        return _checked(graph, weights, replace)
    known = None if isinstance(unwrap(weights), Tracer) else _on_host(unwrap(weights))
    fits = known is not None and known.shape == (graph.num_edges,)
    if known is not None and fits and jnp.issubdtype(known.dtype, jnp.floating):
        weights = known = _narrowed(graph, known)  # before JAX narrows float64 itself
    weights = checks.floating(weights, "weights")
    if weights.shape != (graph.num_edges,):
        raise ValueError(
            f"weights: expected the shape ({graph.num_edges},), got {weights.shape}{EDGE_ORDER}"
        )
    if many and replace and known is not None and not isinstance(graph.row_offsets, Tracer):
        table, counts = alias_table(np.asarray(graph.row_offsets), known)
        return DrawWeights(jnp.asarray(table), jnp.asarray(counts), "alias")
    kind: Kind = "sums" if replace else "race"
    if graph.num_edges == 0:
        empty = jnp.zeros(0, jnp.uint32 if replace else jnp.int32)
        return DrawWeights(empty, jnp.zeros(graph.num_receivers, jnp.int32), kind)
    graph, weights = ffi.unify_varying(graph, jax.lax.stop_gradient(weights))
    return _made_ready(graph, weights, kind)


def _narrowed(graph: Graph, weights: np.ndarray) -> np.ndarray:
    """The weights, checked: those of float64 in float32 where they fit, else each row's scaled by
    a power of 2.

    Draws depend on the ratios within a row alone. What is beyond float32 even so stays above 0.
    """
    for wrong in weights[~((weights >= 0) & np.isfinite(weights))][:1]:
        raise ValueError(f"weights: expected finite numbers of at least 0, got {wrong}")
    if weights.dtype != np.float64:
        return weights
    with np.errstate(over="ignore", under="ignore"):
        narrow = weights.astype(np.float32)
    misfit = ~np.isfinite(narrow) | ((weights > 0) & (narrow == 0))
    if not misfit.any():
        return narrow
    if isinstance(graph.row_offsets, Tracer):
        wrong = weights[misfit][0]
        raise ValueError(f"weights: expected numbers in float32's range, got {wrong}")
    rows = np.asarray(graph.receivers)
    highest = np.full(graph.num_receivers, -(2**15), np.int32)
    np.maximum.at(highest, rows[weights > 0], np.frexp(weights[weights > 0])[1])
    with np.errstate(under="ignore"):
        scaled = np.ldexp(weights, -highest[rows]).astype(np.float32)
    smallest = np.finfo(np.float32).smallest_subnormal
    return np.where(weights > 0, np.maximum(scaled, smallest), np.float32(0))


def _checked(graph: Graph, weights: DrawWeights, replace: bool) -> DrawWeights:
    kinds = ("sums", "alias") if replace else ("race",)
    if weights.kind not in kinds:
        raise ValueError(
            f"weights: expected what is made ready for replace={replace}, got {weights.kind!r}"
        )
    table, counts = (graph.num_edges * (1 + replace),), (graph.num_receivers,)
    if weights.table.shape != table or weights.counts.shape != counts:
        shapes = f"{weights.table.shape} and {weights.counts.shape}"
        raise ValueError(f"weights: expected tables of shapes {table} and {counts}, got {shapes}")
    return weights


@functools.partial(jax.jit, static_argnums=2)
def _made_ready(graph: Graph, weights: Array, kind: Kind) -> DrawWeights:
    mantissas, exponents, positive = _split(weights.astype(jnp.float32))
    before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(positive, dtype=jnp.int32)])
    counts = jnp.diff(before[graph.row_offsets])
    if kind == "race":
        logs = fixed_log2(mantissas) + exponents * (1 << 23)
        return DrawWeights(jnp.where(positive, logs, ZERO_WEIGHT), counts, kind)
    # 32 bits below the largest weight of the row, whose exponent all share.
    zeros = jax.lax.clz(mantissas)
    highest = jnp.where(positive, exponents - zeros.astype(jnp.int32), ZERO_WEIGHT)
    largest = jax.ops.segment_max(
        highest, graph.receivers, graph.num_receivers, indices_are_sorted=True
    )
    shift = (largest[graph.receivers] - highest).astype(jnp.uint32)
    scaled = jnp.where(shift < 32, (mantissas << zeros) >> jnp.minimum(shift, 31), 0)
    scaled = jnp.where(positive, jnp.maximum(scaled, 1), 0).astype(jnp.uint32)
    low = jnp.cumsum(scaled, dtype=jnp.uint32)
    # A sum of words wrapped where it is less than what was added last.
    high = jnp.cumsum(low < scaled, dtype=jnp.uint32)
    return DrawWeights(jnp.stack([low, high], axis=1).reshape(-1), counts, kind)


def _split(weights: Array) -> tuple[Words, Int32[Array, "*shape"], Bool[Array, "*shape"]]:
    """Integers and exponents of 2 that make float32 numbers, and which are finite and above 0.

    By their bits: platforms may take the smallest numbers for 0.
    """
    bits = jax.lax.bitcast_convert_type(weights, jnp.int32)
    positive = (bits > 0) & (bits < 0x7F800000)
    exponents = bits >> 23
    mantissas = (bits & 0x7FFFFF) | jnp.where(exponents > 0, 0x800000, 0)
    mantissas = jnp.where(positive, mantissas, 1).astype(jnp.uint32)
    return mantissas, jnp.maximum(exponents, 1) - 150, positive


def edges_by_sums(
    table: UInt32[Array, " 2*num_edges"],
    begins: Int[Array, "*draws"],
    degrees: Words,
    words: Words,
) -> Words:
    """The number in the row of the edge that each word draws: `replaced_edge`, in JAX.

    Rows have at least one edge; those without a positive weight draw any.
    """
    sums = table.reshape(-1, 2)
    count = sums.shape[0]

    def sum_up_to(edge: Array) -> tuple[Words, Words]:
        low, high = sums[jnp.clip(edge, 0, count - 1)].T
        return low, high

    low, high = sum_up_to(begins - 1)
    before = jnp.where(begins > 0, low, 0), jnp.where(begins > 0, high, 0)
    last = (begins + degrees.astype(begins.dtype)) - 1
    total_low, total_high = _difference(sum_up_to(last), before)
    # The word's share of the total: the product of 32 and 64 bits without the lowest 32.
    top, middle = multiply_words(total_high, words)
    at_low = middle + multiply_words(total_low, words)[0]
    at_high = top + (at_low < middle).astype(jnp.uint32)

    def halve(bounds: tuple[Words, Words]) -> tuple[Words, Words]:
        first, end = bounds
        half = first + (end - first) // 2
        found = _difference(sum_up_to(begins + half.astype(begins.dtype)), before)
        beyond = (found[1] > at_high) | ((found[1] == at_high) & (found[0] > at_low))
        searching = first < end
        return (
            jnp.where(searching & ~beyond, half + 1, first),
            jnp.where(searching & beyond, half, end),
        )

    bounds = jnp.zeros_like(degrees), degrees - 1
    return jax.lax.while_loop(lambda bounds: jnp.any(bounds[0] < bounds[1]), halve, bounds)[0]


def _difference(a: tuple[Words, Words], b: tuple[Words, Words]) -> tuple[Words, Words]:
    low = a[0] - b[0]
    return low, a[1] - b[1] - (a[0] < b[0]).astype(jnp.uint32)
