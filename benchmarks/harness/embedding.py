"""The jobs of the embedding of two sampled hops, of a batch of sources or of all nodes."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks.baselines import jax_embedding
from benchmarks.harness import graphs, plan
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.jax_programs import call_seconds, compiled, program_bytes
from benchmarks.harness.job import Job, checked
from benchmarks.ours import embedding as ours

BATCH = 65_536
# Sources that ours embeds at once: on a CPU what a batch writes is to stay in the cache.
_AT_ONCE = {"cpu": 512, "gpu": BATCH}
_WIDTH = 64
_HIDDEN = 128
_CHECKED = 1000
# Of rows of length 1; a GPU multiplies in TF32.
_TOLERANCE = {("cpu", "float32"): 1e-4, ("gpu", "float32"): 1e-2}
_HALF_TOLERANCE = 5e-2


@dataclasses.dataclass(frozen=True)
class Embedding:
    """An embedding to time: of one batch of sources, or with `whole` of all nodes."""

    impl: str
    case: str
    children: int  # and as many leaves
    dtype: str
    whole: bool

    @property
    def framework(self) -> str:
        """All are JAX's."""
        return "jax"

    def __str__(self) -> str:
        sources = "all" if self.whole else "a batch"
        return f"{self.case} C={self.children} {self.dtype} {sources} {self.impl}"


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job]:
    """What makes the job of an `Embedding`; holds one graph and its features."""
    held: dict[Any, Any] = {}

    def prepare(entry: dict[str, Any]) -> Job:
        own = Embedding(**entry)
        key = (own.case, own.dtype)
        if key not in held:
            held.clear()
            stored = graphs.load(Path(task["graphs"][own.case]))
            held[key] = (stored, stored.to_graph(), features(stored.num_nodes, own.dtype))
        return _job(own, *held[key], task["device"])

    return prepare


def features(num_nodes: int, dtype: str) -> Float[Array, "num_nodes 64"]:
    """Random features, made on the device, column after column: there may be 10^9 of them."""

    @jax.jit
    def draw(keys: Array) -> Array:
        def column(key: Array) -> Array:
            return jax.random.uniform(key, (num_nodes,), minval=-1).astype(dtype)

        return jax.lax.map(column, keys).T

    return jax.block_until_ready(draw(jax.random.split(jax.random.key(3), _WIDTH)))


def parameters(dtype: str) -> dict[str, Array]:
    """The four matrices, of values that the dtype has."""
    rng = np.random.default_rng(4)
    rows = {"Wf1": _WIDTH, "Wa1": _WIDTH, "Wf2": 2 * _HIDDEN, "Wa2": 2 * _HIDDEN}
    draws = {name: rng.uniform(-1, 1, (count, _HIDDEN)) for name, count in rows.items()}
    return {name: jnp.asarray(values, dtype) for name, values in draws.items()}


def _job(own: Embedding, stored: StoredGraph, graph: Any, x: Array, device: str) -> Job:
    n, batch = stored.num_nodes, min(BATCH, stored.num_nodes)
    params, key = parameters(own.dtype), jax.random.key(1)
    if own.whole:
        # Whole batches: the result needs no copy without the padding.
        sources = np.arange(-(-n // batch) * batch, dtype=np.int32)
        sources = np.where(sources < n, sources, -1)
    else:
        sources = np.random.default_rng(2).integers(0, n, batch).astype(np.int32)
    some = sources[:_CHECKED]
    if own.impl == plan.GATHERED:
        function: Any = functools.partial(jax_embedding.embed, own.children, device)
        structure: Any = (graph.row_offsets, graph.senders)
        draws = functools.partial(jax_embedding.first_draws, own.children, device)
    else:
        function = functools.partial(ours.embed, own.children, min(batch, _AT_ONCE[device]))
        structure, draws = graph, functools.partial(ours.first_draws, own.children)
    operands = (structure, params, key, jax.device_put(sources))
    if own.impl == plan.LEAVES:
        function = ours.mean_of_leaves
        operands = (ours.leaves_graph(graph, key, sources, own.children),)

    def check() -> dict[str, Any]:
        result = program(x, *operands)
        if own.impl == plan.LEAVES:
            leaves = np.asarray(operands[0].senders[: _CHECKED * own.children])
            means = _mean_rows(x, leaves.reshape(_CHECKED, -1))
            found = np.asarray(result[:_CHECKED].astype(jnp.float32))
            return checked(float(np.abs(found - means).max()), _tolerance(device, own.dtype))
        found = np.asarray(result[: some.size].astype(jnp.float32))
        children, leaves = draws(structure, key, sources)
        expected = reference(x, params, some, children[: some.size], leaves)
        error = np.linalg.norm(found - expected, axis=1).max()
        return checked(float(error), _tolerance(device, own.dtype))

    if own.whole:
        program = jax.jit(function).lower(x, *operands).compile()

        def seconds(count: int) -> float:
            # A result at a time: it may fill a third of the memory.
            start = time.perf_counter()
            for _ in range(count):
                jax.block_until_ready(program(x, *operands))
            return time.perf_counter() - start

        peak, loop = program_bytes(program), None
    else:
        candidate = compiled(function, x, *operands)
        program = jax.jit(function)
        seconds = functools.partial(call_seconds, candidate.call, device=device)
        peak = candidate.peak_bytes

        def loop(steps: int) -> Callable[[int], float]:
            assert candidate.repeated is not None
            return functools.partial(call_seconds, candidate.repeated(steps), device=device)

    shape = {"nodes": n, "edges": stored.num_edges, "width": _WIDTH, "children": own.children}
    identity = {
        "case": own.case,
        "impl": own.impl,
        "dtype": own.dtype,
        "shape": shape | {"sources": n if own.whole else batch},
        "pass": "epoch" if own.whole else "batch",
    }
    facts = {"kernel": True} if own.impl.startswith("jaxgnn") else {}
    return Job(seconds, lambda: peak, identity, check, loop=loop, facts=facts, long_call=2.0)


def _tolerance(device: str, dtype: str) -> float:
    return _TOLERANCE.get((device, dtype), _HALF_TOLERANCE)


def _mean_rows(x: Array, nodes: np.ndarray) -> np.ndarray:
    """The mean of the rows of nodes `[places, count]`, in float64."""
    total = np.zeros((nodes.shape[0], x.shape[1]))
    for column in nodes.T:
        total += _rows(x, column)
    return total / nodes.shape[1]


def _rows(x: Array, nodes: np.ndarray) -> np.ndarray:
    return np.asarray(x[jnp.asarray(nodes)].astype(jnp.float32)).astype(np.float64)


def reference(
    x: Array, params: Any, sources: np.ndarray, children: np.ndarray, leaves: np.ndarray
) -> np.ndarray:
    """The embedding of sources in float64, of children `[sources, C]`, leaves `[sources C, C]`."""
    weights = {name: np.asarray(value, np.float64) for name, value in params.items()}
    leaves = leaves[: children.size]

    def layer(itself: np.ndarray, around: np.ndarray, number: int) -> np.ndarray:
        parts = [itself @ weights[f"Wf{number}"], around @ weights[f"Wa{number}"]]
        h = np.maximum(np.concatenate(parts, axis=1), 0)
        length = np.linalg.norm(h, axis=1, keepdims=True)
        return h / np.where(length > 0, length, 1)

    of_children = layer(_rows(x, children.reshape(-1)), _mean_rows(x, leaves), 1)
    of_sources = layer(_rows(x, sources), _mean_rows(x, children), 1)
    return layer(of_sources, of_children.reshape(*children.shape, -1).mean(axis=1), 2)
