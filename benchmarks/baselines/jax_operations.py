"""The operations in JAX: the framework, and what plain JAX offers in the place of jaxgnn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse
from jaxtyping import Array, Float, Int

from benchmarks.harness import plan
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.jax_programs import call_seconds, compiled, float32_rows, pullback
from benchmarks.harness.job import Unsupported
from benchmarks.harness.operations import Candidate, Framework, Inputs, score_error
from benchmarks.harness.plan import Measurement
from tests.support.oracle_rows import row_error

Edges = tuple[Int[Array, " edges"], Int[Array, " edges"]]


class JaxFramework(Framework):
    """Compiled functions whose operands, the graph among them, are arguments."""

    def __init__(self, device: str, threads: int) -> None:
        super().__init__(device, threads)
        if device == "gpu":
            # BCOO takes cuSPARSE only when asked to.
            jax.config.update("jax_bcoo_cusparse_lowering", True)

    def load(self, graph: StoredGraph) -> None:
        from benchmarks.ours.operations import Ours

        self._on_device: list[tuple[np.ndarray, Array]] = []
        self._stored, self._graph = graph, graph.to_graph()
        self._receivers = jax.device_put(graph.receivers)
        self._ours = Ours(self._graph, graph)

    def candidate(self, m: Measurement, inputs: Inputs) -> Candidate:
        x, backward = self._put_dense(inputs.dense), m.direction == "backward"
        if inputs.weights is not None and backward and m.k is None:
            raise Unsupported("the weighted product is timed forward only")
        weights = None if inputs.weights is None else jax.device_put(inputs.weights)
        edges = (self._graph.senders, self._receivers)
        if m.impl.startswith(plan.OURS):
            return self._ours.candidate(m, x, inputs, weights, edges)
        if m.direction == "select":
            return _selection(m, x)
        nodes, impl = self._graph.num_receivers, m.impl.removesuffix(plan.FTZ)
        if impl == plan.JAX_SDDMM:
            return _scores(x, inputs.dense, self._stored, edges)
        if impl == plan.MAX_SORTED:
            return extremum(m, gather_segment_max(nodes), x, edges, edges)
        if m.k is not None:
            return _kept_product(m, x, inputs.kept, edges)
        if impl in (plan.SORTED, plan.UNSORTED):
            function = gather_segment_sum(nodes, impl == plan.SORTED)
            return compiled(pullback(function) if backward else function, x, *edges, weights)
        if backward:
            raise Unsupported("jax.experimental.sparse is timed forward only")
        values = jnp.ones(self._graph.num_edges, x.dtype)
        indices = jnp.stack([self._receivers, self._graph.senders], axis=1)
        matrix = sparse.BCOO((values, indices), shape=(nodes, nodes), indices_sorted=True)
        return compiled(lambda x, matrix: matrix @ x, x, matrix)

    def _put_dense(self, dense: np.ndarray) -> Array:
        """The matrix on the device, where the last two stay: the features and the cotangent."""
        for host, array in self._on_device:
            if host is dense:
                return array
        array = jax.device_put(dense)
        self._on_device = [*self._on_device[-1:], (dense, array)]
        return array

    def poison(self, shape: tuple[int, int], dtype: str) -> None:
        # Freed at once: the allocator hands the same memory to the result.
        jax.block_until_ready([jnp.full(shape, jnp.nan, dtype) for _ in range(2)])

    def wait(self, result: Any) -> None:
        jax.block_until_ready(result)

    def seconds(self, call: Callable[[], Any], count: int) -> float:
        return call_seconds(call, count, self.device)

    def rows(self, result: Any, rows: np.ndarray) -> np.ndarray:
        return float32_rows(result, rows)


def gather_segment_sum(nodes: int, is_sorted: bool = True) -> Callable:
    def function(x, senders, receivers, weights=None):
        messages = x[senders]
        if weights is not None:
            messages = messages * weights[:, None].astype(x.dtype)
        return jax.ops.segment_sum(messages, receivers, nodes, indices_are_sorted=is_sorted)

    return function


def gather_segment_max(num_receivers: int) -> Callable:
    def function(x, senders, receivers):
        out = jax.ops.segment_max(x[senders], receivers, num_receivers, indices_are_sorted=True)
        return jnp.where(out == -jnp.inf, 0, out)

    return function


def _scores(x: Array, dense: np.ndarray, stored: StoredGraph, edges: Edges) -> Candidate:
    """Dot products of the features with themselves, on the edges."""

    def function(x: Array, senders: Array, receivers: Array) -> Array:
        return jnp.sum(x[senders] * x[receivers], axis=1)

    def error(result: Array) -> float:
        return score_error(stored, dense, np.asarray(result.astype(jnp.float32)))

    return compiled(function, x, *edges, error=error)


def extremum(
    m: Measurement, function: Callable, x: Array, operands: tuple[Any, ...], edges: Edges
) -> Candidate:
    """The maximum of `x`; backward its gradient, given `|x|`, at those rows in reverse.

    The gradient needs the maximum, so that backward is both passes. Its terms are of one sign, so
    that their sums are as accurate as they are themselves. The result is compared with plain
    JAX's in float32 on a few features, for all messages would not fit.
    """
    nodes = x.shape[0]
    reference: Callable = gather_segment_max(nodes)
    if m.direction == "backward":
        reference = _shared_gradient(nodes, m.dtype)
        function = pullback(function, at=lambda cotangent: cotangent[::-1])
        x = jnp.abs(x)

    def error(result: Array) -> float:
        few = x[:, :4].astype(jnp.float32)
        expected = np.asarray(jax.jit(reference)(few, *edges), np.float64)
        return row_error(np.asarray(result[:, :4].astype(jnp.float32)), expected)

    return compiled(function, x, *operands, error=error)


def _shared_gradient(num_receivers: int, dtype: str) -> Callable:
    """A maximum's gradient, shared at ties; the shares are rounded to the dtype, as ours are."""
    maximum, precision = gather_segment_max(num_receivers), jnp.finfo(dtype)

    def rounded(values):  # XLA may leave out a conversion there and back, but not this
        return jax.lax.reduce_precision(values, precision.nexp, precision.nmant)

    def gradient(cotangent, senders, receivers):
        x = cotangent[::-1]
        attained = (x[senders] == maximum(x, senders, receivers)[receivers]).astype(x.dtype)
        ties = jax.ops.segment_sum(attained, receivers, num_receivers, indices_are_sorted=True)
        shares = rounded(cotangent / jnp.maximum(rounded(ties), 1))
        return jax.ops.segment_sum(attained * shares[receivers], senders, x.shape[0])

    return gradient


def _selection(m: Measurement, x: Array) -> Candidate:
    if m.impl == plan.COPY:
        # A copy with its signs changed: XLA would leave a plain one out of a loop.
        return compiled(jnp.negative, x, rows=lambda result, rows: -float32_rows(result, rows))
    assert m.k is not None
    k = m.k
    return compiled(lambda x: tuple(jax.lax.top_k(x, k)), x, rows=scattered_rows(m.width))


def scattered_rows(width: int) -> Callable[[tuple[Array, Array], np.ndarray], np.ndarray]:
    """Reads rows of kept values and their columns as dense ones."""

    def rows(result: tuple[Array, Array], rows: np.ndarray) -> np.ndarray:
        values, indices = (float32_rows(part, rows) for part in result)
        dense = np.zeros((rows.size, width), np.float32)
        np.put_along_axis(dense, indices.astype(np.int64), values, axis=1)
        return dense

    return rows


def _kept_product(m: Measurement, x: Array, kept: np.ndarray | None, edges: Edges) -> Candidate:
    """Dense rows with zeros, their gather over the edges, a sorted segment sum."""
    assert kept is not None
    indices, nodes = jnp.asarray(kept), x.shape[0]
    total = gather_segment_sum(nodes)

    def function(values: Float[Array, "nodes k"], indices: Array, *edges: Array) -> Array:
        at = jnp.arange(nodes)[:, None], indices.astype(jnp.int32)
        return total(jnp.zeros((nodes, m.width), values.dtype).at[at].set(values), *edges)

    return kept_product(m, function, x, indices, edges)


def kept_product(
    m: Measurement,
    function: Callable,
    x: Array,
    indices: Array,
    operands: tuple[Any, ...],
    wrap: Callable[[Callable], Callable] = lambda call: call,
) -> Candidate:
    """A product of the values that the rows of `x` keep, or its gradient for the values alone;
    `wrap` makes what is timed of either."""
    if m.direction == "forward":
        values = jnp.take_along_axis(x, indices.astype(jnp.int32), axis=1)
        return compiled(wrap(function), values, indices, *operands)
    gradient = pullback(function, at=lambda cotangent: jnp.zeros(indices.shape, cotangent.dtype))
    return compiled(wrap(gradient), x, indices, *operands)
