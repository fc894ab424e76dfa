"""MaxK in JAX: jaxgnn's operations, and what a user of plain JAX writes in their place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from benchmarks import oracle, plan
from benchmarks.families import Candidate
from benchmarks.family_jax import compiled, gather_segment_sum, preprocessed
from benchmarks.plan import Measurement
from jaxgnn import CBSR, Graph, config, maxk, maxk_spmm
from jaxgnn._core.platform import kernels_available
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._maxk.maxk import transform_reference

_TARGETS = {
    "select": "jaxgnn_maxk",
    "forward": "jaxgnn_maxk_spmm",
    "backward": "jaxgnn_maxk_sspmm",
}


_SETTINGS = {
    plan.MAXK_DETERMINISTIC: {"deterministic": True},
    plan.MAXK_WINDOWS_DETERMINISTIC: {"deterministic": True},
    plan.MAXK_FLOAT: {"maxk_accumulation": "float"},
}


class MaxKCandidates:
    """The candidates of one graph, and its windows once they are asked for."""

    def __init__(self, graph: Graph, receivers: Int[Array, " num_edges"]) -> None:
        self._graph = graph
        self._receivers = receivers
        self._windows: tuple[Graph, dict[str, Any]] | None = None

    def candidate(self, m: Measurement, dense: Array, kept: np.ndarray | None) -> Candidate:
        """Prepares a measurement of $x$, or of the cotangent of a backward pass."""
        facts: dict[str, Any] = {}
        if m.impl.startswith(plan.MAXK):
            fused = m.impl == plan.MAXK_DROPOUT
            target = "jaxgnn_maxk_transformed" if fused else _TARGETS[m.direction]
            facts["kernel"] = kernels_available(target)
        if m.direction == "select":
            candidate = _selection(m, dense)
        else:
            assert kept is not None
            backward = m.direction == "backward"
            if backward:
                operand, indices = dense, jnp.asarray(kept)
            else:
                # What the selection left, and where: on the CPU its results lie in huge pages.
                cbsr = _selected(dense, m.k, m.impl == plan.MAXK_PACKED)
                operand, indices = cbsr.values, cbsr.indices
            operands: tuple[Any, ...] = (indices, self._graph.senders, self._receivers)
            function = functools.partial(_scatter_gather_segment_sum, m.width)
            if m.impl.startswith(plan.MAXK):
                graph = self._graph
                if m.impl.startswith(plan.MAXK_WINDOWS):
                    if self._windows is None:
                        self._windows = preprocessed(graph, "with_windows")
                    graph, preprocessing = self._windows
                    facts |= preprocessing
                operands = (indices, graph)
                function = functools.partial(_ours, m.width, m.impl == plan.MAXK_PACKED)
            if backward:
                function = _pullback(function)
            function = _under(_SETTINGS.get(m.impl, {}), function)
            candidate = compiled(function, operand, *operands)
        return dataclasses.replace(candidate, facts=facts)


def _selection(m: Measurement, x: Array) -> Candidate:
    if m.impl == plan.COPY:
        # A copy with its signs changed: XLA would leave a plain one out of a loop.
        return dataclasses.replace(
            compiled(jnp.negative, x), rows=lambda result, rows: -_float32_rows(result, rows)
        )
    assert m.k is not None
    k, width, shape = m.k, m.width, x.shape
    operands: tuple[Any, ...] = ()
    selected_from = None

    if m.impl in _DROPPED:
        dropped, operands = _DROPPED[m.impl], (jnp.asarray(_KEY, jnp.uint32),)

        def select(x: Array, words: Array) -> tuple[Array, Array]:
            # Tied to x, or XLA would draw the mask once for all steps of a loop.
            x, words = jax.lax.optimization_barrier((x, words))
            cbsr = dropped(x, k, words)
            return cbsr.values, cbsr.indices

        def selected_from(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
            if m.impl == plan.MAXK_BERNOULLI:
                mask = np.asarray(_bernoulli(operands[0], shape)[jnp.asarray(rows)])
            else:
                mask = oracle.philox_kept(rows, width, plan.DROPOUT_RATE, _KEY)
            return np.where(mask, x / np.float32(1 - plan.DROPOUT_RATE), np.float32(0))
    elif m.impl == plan.TOP_K:

        def select(x: Array) -> tuple[Array, Array]:
            values, indices = jax.lax.top_k(x, k)
            return values, indices
    else:

        def select(x: Array) -> tuple[Array, Array]:
            cbsr = maxk(x, k)
            return cbsr.values, cbsr.indices

    def rows(result: tuple[Array, Array], rows: np.ndarray) -> np.ndarray:
        """These rows, dense."""
        values, indices = (_float32_rows(part, rows) for part in result)
        dense = np.zeros((rows.size, width), np.float32)
        np.put_along_axis(dense, indices.astype(np.int64), values, axis=1)
        return dense

    candidate = compiled(select, x, *operands)
    return dataclasses.replace(candidate, rows=rows, selected_from=selected_from)


_KEY = (0, 7)


def _dropout_fused(x: Array, k: int, words: Array) -> CBSR:
    return maxk(x, k, dropout_rate=plan.DROPOUT_RATE, dropout_rng=words)


def _after_bernoulli(x: Array, k: int, words: Array) -> CBSR:
    """What `flax.nnx.Dropout` does, then the selection."""
    kept = _bernoulli(words, x.shape)
    return maxk(jnp.where(kept, x / (1 - plan.DROPOUT_RATE), jnp.zeros_like(x)), k)


def _bernoulli(words: Array, shape: tuple[int, ...]) -> Array:
    return jax.random.bernoulli(jax.random.wrap_key_data(words), 1 - plan.DROPOUT_RATE, shape)


def _after_philox(x: Array, k: int, words: Array) -> CBSR:
    drop_below = dropout_mask.threshold(plan.DROPOUT_RATE)
    return maxk(transform_reference(drop_below, x, None, words), k)


_DROPPED: dict[str, Callable[[Array, int, Array], CBSR]] = {
    plan.MAXK_DROPOUT: _dropout_fused,
    plan.MAXK_BERNOULLI: _after_bernoulli,
    plan.MAXK_PHILOX: _after_philox,
}


def _float32_rows(result: Array, rows: np.ndarray) -> np.ndarray:
    return np.asarray(result[jnp.asarray(rows)].astype(jnp.float32))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _selected(x: Float[Array, "nodes width"], k: int, packed: bool) -> CBSR:
    return maxk(x, k, packed=packed)


def _ours(width: int, packed: bool, values: Array, indices: Array, graph: Graph) -> Array:
    return maxk_spmm(graph, CBSR(values, indices, width, packed))


def _scatter_gather_segment_sum(
    width: int, values: Array, indices: Array, senders: Array, receivers: Array
) -> Array:
    """Dense rows with zeros, their gather over the edges, a sorted segment sum."""
    nodes = values.shape[0]
    rows = jnp.arange(nodes)[:, None]
    dense = jnp.zeros((nodes, width), values.dtype).at[rows, indices.astype(jnp.int32)].set(values)
    return gather_segment_sum(nodes, indices_are_sorted=True)(dense, senders, receivers, None)


def _pullback(function: Callable[..., Array]) -> Callable[..., Array]:
    """The gradient for the kept values alone; `function` is linear in them."""

    def pullback(cotangent: Array, indices: Array, *operands: Any) -> Array:
        at = jnp.zeros(indices.shape, cotangent.dtype)
        return jax.vjp(lambda values: function(values, indices, *operands), at)[1](cotangent)[0]

    return pullback


def _under(settings: dict[str, Any], function: Callable[..., Array]) -> Callable[..., Array]:
    """The function traced with these settings, whenever that happens."""

    def traced(*operands: Any) -> Array:
        with config.use(**settings):
            return function(*operands)

    return traced
