"""jaxgnn's operations as candidates; each fails where there is no kernel."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.baselines.jax_operations import Edges, extremum, kept_product, scattered_rows
from benchmarks.harness import plan
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.jax_programs import compiled, float32_rows, pullback
from benchmarks.harness.operations import Candidate, Inputs, score_error
from benchmarks.harness.plan import Measurement
from jaxgnn import (
    CBSR,
    Graph,
    config,
    gat_attention,
    maxk,
    maxk_spmm,
    sampled_edges,
    sampled_spmm,
    sddmm,
    spmm,
)
from tests.support import oracle_attention_rows, oracle_rows

_SETTINGS = {
    plan.MAXK_DETERMINISTIC: {"deterministic": True},
    plan.MAXK_WINDOWS_DETERMINISTIC: {"deterministic": True},
    plan.MAXK_FLOAT: {"maxk_accumulation": "float"},
    plan.MAXK_DENSE: {"maxk_engine": "dense"},
    plan.MAXK_CHOSEN: {"maxk_engine": "auto"},
}
_KEY = (0, 7)  # of dropout
_SEED = 21  # of attention's scores


def preprocessed(graph: Graph, method: str, **options: Any) -> tuple[Graph, dict[str, Any]]:
    """What a method that makes a graph faster returns, and what that took."""
    start = time.perf_counter()
    made = jax.block_until_ready(getattr(graph, method)(**options))
    seconds = time.perf_counter() - start
    before = {id(leaf) for leaf in jax.tree.leaves(graph)}
    new = {id(leaf): leaf for leaf in jax.tree.leaves(made) if id(leaf) not in before}
    return made, {
        "preprocessing_seconds": round(seconds, 4),
        "preprocessing_bytes": sum(leaf.nbytes for leaf in new.values()),
    }


class Ours:
    """The candidates of one graph, its windows and its order of rows once they are asked for."""

    def __init__(self, graph: Graph, stored: StoredGraph) -> None:
        self._graph = graph
        self._stored = stored
        self._made: dict[tuple[Any, ...], tuple[Graph, dict[str, Any]]] = {}

    def candidate(
        self, m: Measurement, x: Array, inputs: Inputs, weights: Array | None, edges: Edges
    ) -> Candidate:
        """Prepares an operation on `x`, the dense input on the device."""
        if m.direction == "select":
            return _selection(m, x)
        if m.impl == plan.GAT:
            return _attention(m, self._graph, self._stored, x, inputs.dense)
        if m.sample is not None:
            return _sampled(m, self._graph, self._stored, x, inputs.dense)
        if m.impl == plan.MAX:
            return extremum(m, _maximum, x, (self._graph,), edges)
        graph, facts = self._graph, {}
        methods = {
            plan.ORDERED: "with_row_schedule",
            plan.TILES: "with_tiles",
            plan.MAXK_WINDOWS: "with_windows",
            plan.MAXK_CHOSEN: "with_windows",
        }
        for prefix, method in methods.items():
            if m.impl.startswith(prefix):
                options: dict[str, Any] = {}
                if method == "with_windows":
                    options = {"weighted": m.weighted, "width": max(m.width, plan.MAXK_WIDTH)}
                key = method, *options.values()
                if key not in self._made:
                    self._made[key] = preprocessed(graph, method, **options)
                graph, facts = self._made[key]
        if m.impl == plan.SDDMM:
            candidate = _scores(graph, self._stored, x, inputs.dense)
        elif m.k is None:
            product = _spmm_by_tiles if m.impl == plan.TILES else _spmm
            function = pullback(product) if m.direction == "backward" else product
            candidate = compiled(function, x, graph, weights)
        else:
            candidate = _kept_product(m, x, inputs, graph, self._stored)
        candidate.facts |= facts
        return candidate


def _spmm(x: Array, graph: Graph, weights: Array | None) -> Array:
    return spmm(graph, x, weights, impl="kernel")


def _spmm_by_tiles(x: Array, graph: Graph, weights: Array | None) -> Array:
    return spmm(graph, x, weights, impl="tiles")


def _scores(graph: Graph, stored: StoredGraph, x: Array, dense: np.ndarray) -> Candidate:
    """Dot products of the features with themselves, on the edges."""

    def function(x: Array, graph: Graph) -> Array:
        return sddmm(graph, x, x, impl="kernel")

    def error(result: Any) -> float:
        return score_error(stored, dense, np.asarray(result.astype(jnp.float32)))

    return compiled(function, x, graph, error=error)


def _maximum(x: Array, graph: Graph) -> Array:
    return spmm(graph, x, reduce="max", impl="kernel")


def _sampled(
    m: Measurement, graph: Graph, stored: StoredGraph, x: Array, dense: np.ndarray
) -> Candidate:
    """The sum over a sample of each row's edges, or `spmm` of a graph that has these alone."""
    assert m.sample is not None
    strategy = "stride" if m.impl == plan.PRESAMPLED else m.impl.removeprefix(plan.SAMPLED)
    options: dict[str, Any] = {"sample_size": m.sample, "strategy": strategy}
    if strategy == "random":
        options["key"] = jax.random.key(_SEED)
    backward = m.direction == "backward"
    listed, counts = map(np.asarray, sampled_edges(graph, **options))
    senders = stored.rows()[1][listed[listed >= 0]]

    def error(result: Any) -> float:
        offsets, _ = stored.rows(backward=backward)
        rows = oracle_rows.sample_rows(offsets, seed=_SEED)
        receivers = np.repeat(np.arange(graph.num_receivers), counts)
        source, target = (receivers, senders) if backward else (senders, receivers)
        place = np.full(graph.num_receivers, -1)
        place[rows] = np.arange(rows.size)
        mine = np.flatnonzero(place[target] >= 0)
        expected = np.zeros((rows.size, m.width))
        np.add.at(expected, place[target[mine]], dense[source[mine]].astype(np.float64))
        return oracle_rows.row_error(float32_rows(result, rows), expected)

    if m.impl == plan.PRESAMPLED:
        row_offsets = np.concatenate([[0], np.cumsum(counts)])
        sample = Graph.from_csr(row_offsets, senders, num_senders=graph.num_senders)
        return compiled(_spmm, x, sample, None, error=error)

    def function(x: Array, graph: Graph) -> Array:
        return sampled_spmm(graph, x, impl="kernel", **options)

    run = pullback(function) if backward else function

    def drawn_anew(x: Array, graph: Graph) -> Array:
        # Tied to x, or XLA would draw the sample once for all steps of a loop.
        x, offsets = jax.lax.optimization_barrier((x, graph.row_offsets))
        return run(x, dataclasses.replace(graph, row_offsets=offsets))

    return compiled(drawn_anew, x, graph, error=error)


def _kept_product(
    m: Measurement, x: Array, inputs: Inputs, graph: Graph, stored: StoredGraph
) -> Candidate:
    # Windows where the graph has them, else rows, but for the choice and the dense rows.
    settings = {"maxk_engine": "windows"} | _SETTINGS.get(m.impl, {})
    packed = m.impl == plan.MAXK_PACKED
    weights = () if inputs.weights is None else (jax.device_put(inputs.weights),)

    def function(values: Array, indices: Array, graph: Graph, *weights: Array) -> Array:
        with config.use(**settings):  # whenever it is traced
            cbsr = CBSR(values, indices, m.width, packed)
            return maxk_spmm(graph, cbsr, *weights, impl="kernel")

    def tied(call: Callable) -> Callable:
        """With weights tied to the first operand, or XLA would sort them once for all steps."""

        def run(x: Array, indices: Array, graph: Graph, *weights: Array) -> Array:
            if weights:
                x, weights = jax.lax.optimization_barrier((x, weights))
            return call(x, indices, graph, *weights)

        return run

    operands = (graph, *weights)
    if m.impl in (plan.MAXK_OF_WEIGHTS, plan.MAXK_WINDOWS_OF_WEIGHTS):
        candidate = _gradient_of_weights(m, function, x, inputs, operands, stored)
    elif m.direction == "backward":
        candidate = kept_product(m, function, x, jnp.asarray(inputs.kept), operands, tied)
        if inputs.weights is not None:
            candidate.error = functools.partial(_transposed_error, m, inputs, graph, stored)
    else:
        # What the selection left, and where: on the CPU its results lie in huge pages.
        cbsr = jax.jit(lambda x: maxk(x, m.k or 0, packed=packed, impl="kernel"))(x)
        candidate = compiled(tied(function), cbsr.values, cbsr.indices, *operands)
    candidate.facts["kernel"] = True
    return candidate


def _transposed_error(
    m: Measurement, inputs: Inputs, graph: Graph, stored: StoredGraph, result: Any
) -> float:
    """Of the gradient for the values, with weights."""
    assert inputs.weights is not None and inputs.kept is not None
    offsets, columns = stored.rows(backward=True)
    rows = oracle_rows.sample_rows(offsets, seed=_SEED)
    weights = inputs.weights[np.asarray(graph.transpose_permutation)]
    expected = oracle_rows.product_rows(offsets, columns, inputs.dense, weights, rows)
    expected = np.take_along_axis(expected, inputs.kept[rows].astype(np.int64), axis=1)
    return oracle_rows.row_error(float32_rows(result, rows), expected)


def _gradient_of_weights(
    m: Measurement,
    function: Callable,
    cotangent: Array,
    inputs: Inputs,
    operands: tuple[Any, ...],
    stored: StoredGraph,
) -> Candidate:
    """The gradient for the weights, of values that are the cotangent's kept entries."""
    kept = jnp.asarray(inputs.kept)
    values = jnp.take_along_axis(cotangent, kept.astype(jnp.int32), axis=1)

    def gradient(cotangent: Array, values: Array, kept: Array, graph: Graph, weights: Array):
        def product(weights: Array) -> Array:
            return function(values, kept, graph, weights)

        return jax.vjp(product, weights)[1](cotangent)[0]

    def error(result: Any) -> float:
        assert inputs.kept is not None
        offsets, columns = stored.rows()
        rows = oracle_rows.sample_rows(offsets, seed=_SEED)
        worst, found = 0.0, np.asarray(result)
        for row in rows:
            edges = slice(int(offsets[row]), int(offsets[row + 1]))
            senders = columns[edges]
            at = inputs.kept[senders].astype(np.int64)
            own = np.take_along_axis(inputs.dense[senders].astype(np.float64), at, axis=1)
            expected = (own * inputs.dense[row].astype(np.float64)[at]).sum(axis=1)
            if expected.size:
                worst = max(worst, oracle_rows.row_error(found[None, edges], expected[None]))
        return worst

    return compiled(gradient, cotangent, values, kept, *operands, error=error)


def _selection(m: Measurement, x: Array) -> Candidate:
    """The selection, after dropout where the implementation says so."""
    k, keep = m.k or 0, 1 - plan.DROPOUT_RATE
    dropped = m.impl in (plan.MAXK_DROPOUT, plan.MAXK_BERNOULLI)
    operands = (jnp.asarray(_KEY, jnp.uint32),) if dropped else ()

    def mask(key: Array) -> Array:
        return jax.random.bernoulli(jax.random.wrap_key_data(key), keep, x.shape)

    def select(x: Array, *key: Array) -> tuple[Array, Array]:
        if dropped:  # tied to x, or XLA would draw the mask once for all steps of a loop
            x, key = jax.lax.optimization_barrier((x, key))
        if m.impl == plan.MAXK_DROPOUT:
            cbsr = maxk(x, k, dropout_rate=plan.DROPOUT_RATE, dropout_rng=key[0], impl="kernel")
        else:
            if dropped:  # what `flax.nnx.Dropout` does
                x = jnp.where(mask(*key), x / keep, jnp.zeros_like(x))
            cbsr = maxk(x, k, impl="kernel")
        return cbsr.values, cbsr.indices

    def selected_from(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if m.impl == plan.MAXK_BERNOULLI:
            kept = np.asarray(mask(*operands)[jnp.asarray(rows)])
        else:
            kept = oracle_rows.philox_kept(rows, m.width, plan.DROPOUT_RATE, _KEY)
        return np.where(kept, x / np.float32(keep), np.float32(0))

    fields = {"rows": scattered_rows(m.width), "facts": {"kernel": True}}
    return compiled(
        select, x, *operands, selected_from=selected_from if dropped else None, **fields
    )


def _attention(
    m: Measurement, graph: Graph, stored: StoredGraph, x: Array, dense: np.ndarray
) -> Candidate:
    """Attention of features, or its gradients from a cotangent and what the forward pass left; with
    `k` of the largest features of each head alone."""
    rng = np.random.default_rng(_SEED)
    nodes, width = dense.shape
    heads = plan.ATTENTION_HEADS
    scores = [rng.standard_normal((nodes, heads)).astype(np.float32) for _ in range(2)]
    backward, features = m.direction == "backward", dense
    if backward:
        features = rng.random((nodes, width), np.float32) - np.float32(0.5)
        features = oracle_rows.round_to(features, m.dtype)
    v = jax.device_put(features.reshape(nodes, heads, -1)) if backward else x
    v, fixed, kept = v.reshape(nodes, heads, -1), (), None
    if m.k is not None:
        cbsr = maxk(v, m.k)
        v, fixed = cbsr.values, (cbsr.indices,)
        kept = _dense_rows(jnp.ones_like(v), cbsr)
        features = _dense_rows(v, cbsr)
    operands = [*map(jax.device_put, scores), graph, *fixed]
    facts = {"kernel": True, "heads": heads}
    rows = (*stored.rows(), *stored.rows(backward=True))
    reference = oracle_attention_rows.Oracle(*rows, features, *scores)

    def attend(v: Array, source: Array, target: Array, graph: Graph, *fixed: Array) -> Array:
        rows = CBSR(v, *fixed, width // heads) if fixed else v
        out = gat_attention(graph, rows, source, target, impl="kernel")
        return out.reshape(nodes, width)

    def error(result: Any) -> float:
        if not backward:
            return reference.forward_error(np.asarray(result))
        gradient, *others = result
        own = _dense_rows(gradient, cbsr) if kept is not None else np.asarray(gradient)
        own = own.reshape(nodes, width)
        return reference.backward_error(dense, own, *map(np.asarray, others), kept=kept)

    if not backward:
        return compiled(attend, v, *operands, error=error, facts=facts)

    def linearized(v: Array, source: Array, target: Array, *others: Any) -> Any:
        return jax.vjp(lambda *own: attend(*own, *others), v, source, target)[1]

    pull = jax.jit(linearized)(v, *operands)
    return compiled(lambda x, pull: pull(x), x, pull, error=error, facts=facts)


def _dense_rows(values: Array, cbsr: CBSR) -> np.ndarray:
    """The dense form of other values at the positions, a row for each node."""
    dense = dataclasses.replace(cbsr, values=values).to_dense()
    return np.asarray(dense).reshape(dense.shape[0], -1)
