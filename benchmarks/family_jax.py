"""jaxgnn's kernel, and what plain JAX offers in its place."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

from benchmarks import plan
from benchmarks.families import Candidate, Family, Unsupported
from benchmarks.graphs import StoredGraph
from benchmarks.plan import Measurement
from jaxgnn import Graph, spmm


class JaxFamily(Family):
    """Compiled functions whose operands, the graph among them, are arguments."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        if device == "gpu":
            # BCOO and BCSR take cuSPARSE only when asked to.
            jax.config.update("jax_bcoo_cusparse_lowering", True)
        self._on_device: list[tuple[np.ndarray, jax.Array]] = []

    def load(self, graph: StoredGraph) -> None:
        self._stored = graph
        self._on_device = []
        self._graph = graph.to_graph()
        self._receivers = jax.device_put(
            np.repeat(np.arange(graph.num_nodes, dtype=np.int32), np.diff(graph.row_offsets))
        )
        self._ordered: tuple[Graph, dict[str, Any]] | None = None
        from benchmarks.attention_jax import AttentionCandidates  # made of this module's parts
        from benchmarks.maxk_jax import MaxKCandidates

        self._maxk = MaxKCandidates(self._graph, self._receivers)
        self._attention = AttentionCandidates(self._graph, graph)

    def candidate(
        self,
        measurement: Measurement,
        dense: np.ndarray,
        weights: np.ndarray | None,
        kept: np.ndarray | None,
    ) -> Candidate:
        x = self._put_dense(dense)
        if measurement.k is not None or measurement.direction == "select":
            return self._maxk.candidate(measurement, x, kept)
        if measurement.impl == plan.GAT:
            return self._attention.candidate(measurement, x, dense)
        if measurement.impl in (plan.MAX, plan.MAX_SORTED):
            from benchmarks import extremum_jax  # made of this module's parts

            return extremum_jax.candidate(measurement, self._graph, self._receivers, x)
        backward = measurement.direction == "backward"
        weights_ = None
        if weights is not None:
            if backward:
                raise Unsupported("the weighted product is timed forward only")
            weights_ = jax.device_put(weights)
        impl = measurement.impl.removesuffix(plan.FTZ)
        if impl in (plan.OURS, plan.ORDERED):
            structure, facts = self._graph, None
            if impl == plan.ORDERED:
                if self._ordered is None:
                    self._ordered = preprocessed(structure, "with_row_schedule")
                structure, facts = self._ordered
            ours = compiled(_vjp(_ours) if backward else _ours, x, structure, weights_)
            return ours if facts is None else dataclasses.replace(ours, facts=facts)
        if impl in (plan.SORTED, plan.UNSORTED, plan.SHUFFLED):
            function = gather_segment_sum(self._graph.num_receivers, impl == plan.SORTED)
            operands = (self._graph.senders, self._receivers, weights_)
            if impl == plan.SHUFFLED:
                operands = _shuffled(operands, self._graph.num_edges)
            return compiled(_vjp(function) if backward else function, x, *operands)
        if backward:
            raise Unsupported("jax.experimental.sparse is timed forward only")
        return compiled(lambda x, matrix: matrix @ x, x, self._matrix(impl, weights_, x.dtype))

    def _matrix(self, impl: str, weights: jax.Array | None, dtype: Any) -> Any:
        graph = self._graph
        shape = (graph.num_receivers, graph.num_senders)
        values = jnp.ones(graph.num_edges, dtype) if weights is None else weights.astype(dtype)
        if impl == plan.BCSR:
            operands = (values, graph.senders, graph.row_offsets)
            return sparse.BCSR(operands, shape=shape, indices_sorted=True)
        indices = jnp.stack([self._receivers, graph.senders], axis=1)
        return sparse.BCOO((values, indices), shape=shape, indices_sorted=True)

    def _put_dense(self, dense: np.ndarray) -> jax.Array:
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
        if self.device == "cpu":
            return super().seconds(call, count)
        # One stream runs what was enqueued in order: wait for the last.
        start = time.perf_counter()
        for _ in range(count):
            result = call()
        jax.block_until_ready(result)
        return time.perf_counter() - start

    def rows(self, result: Any, rows: np.ndarray) -> np.ndarray:
        return np.asarray(result[jnp.asarray(rows)].astype(jnp.float32))


def preprocessed(graph: Graph, method: str) -> tuple[Graph, dict[str, Any]]:
    """What a method that makes a graph faster returns, and what that took.

    Raises:
        Unsupported: graphs have no such method.
    """
    make: Callable[[], Graph] | None = getattr(graph, method, None)
    if make is None:
        raise Unsupported(f"Graph has no {method}")
    start = time.perf_counter()
    made = jax.block_until_ready(make())
    seconds = time.perf_counter() - start
    before = {id(leaf) for leaf in jax.tree.leaves(graph)}
    new = {id(leaf): leaf for leaf in jax.tree.leaves(made) if id(leaf) not in before}
    return made, {
        "preprocessing_seconds": round(seconds, 4),
        "preprocessing_bytes": sum(leaf.nbytes for leaf in new.values()),
    }


def _ours(x, graph, weights):
    return spmm(graph, x, weights, impl="kernel")


def gather_segment_sum(num_receivers: int, indices_are_sorted: bool) -> Callable:
    def function(x, senders, receivers, weights):
        messages = x[senders]
        if weights is not None:
            messages = messages * weights[:, None].astype(x.dtype)
        return jax.ops.segment_sum(
            messages, receivers, num_receivers, indices_are_sorted=indices_are_sorted
        )

    return function


def _shuffled(
    operands: tuple[jax.Array | None, ...], num_edges: int
) -> tuple[jax.Array | None, ...]:
    """The same edges in an arbitrary order, as an edge list that nobody sorted has them."""
    order = np.random.default_rng(0).permutation(num_edges)
    return tuple(None if o is None else jax.device_put(np.asarray(o)[order]) for o in operands)


def _vjp(function: Callable) -> Callable:
    """The gradient for `x` of a square product: the cotangent takes the place of `x`."""

    def pullback(cotangent, *operands):
        # The product is linear: where it is differentiated does not matter, and unused results
        # of the forward pass are not computed.
        at = jnp.zeros_like(cotangent)
        return jax.vjp(lambda x: function(x, *operands), at)[1](cotangent)[0]

    return pullback


def repeat(function: Callable, steps: int) -> Callable:
    """`steps` times `function(x, *operands)` in one program, each after the one before.

    A step's `x` is handed out together with the result of the step before: XLA can neither take
    the product out of the loop nor drop one, and nothing is computed to that end.
    """

    def run(x, *operands):
        def step(_, carry):
            x = carry[0]
            return jax.lax.optimization_barrier((x, function(x, *operands)))

        # The count is known when this is compiled: XLA then enqueues step after step, where it
        # would else read the loop's condition on the host before each.
        return jax.lax.fori_loop(1, steps, step, step(0, (x,)))[1]

    return run


def compiled(function: Callable, *operands: Any) -> Candidate:
    """A call of the compiled function with these operands."""
    program = jax.jit(function).lower(*operands).compile()

    def repeated(steps: int) -> Callable[[], Any]:
        loop = jax.jit(repeat(function, steps)).lower(*operands).compile()
        return lambda: loop(*operands)

    return Candidate(
        lambda: program(*operands), peak_bytes=program_bytes(program), repeated=repeated
    )


def program_bytes(program: Any) -> int | None:
    """Memory of a compiled function with its operands and results, as XLA accounts for it."""
    memory = program.memory_analysis()
    if memory is None:
        return None
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )
