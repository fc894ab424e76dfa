"""The training step in JAX, of jaxgnn's models and of the same in plain JAX."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from benchmarks.baselines import jax_models
from benchmarks.baselines.jax_models import Apply, cross_entropy
from benchmarks.harness import plan, timing
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.jax_programs import call_seconds, float32_rows, program_bytes, pullback
from benchmarks.harness.job import Job
from benchmarks.harness.setting import Arrays, Setting
from benchmarks.ours import ablation
from benchmarks.ours import models as our_models
from benchmarks.ours.operations import preprocessed
from jaxgnn import CBSR, Graph, maxk, maxk_spmm, spmm

_B1 = 0.9


def step(
    setting: Setting,
    graph: StoredGraph,
    features: Arrays,
    parameters: Arrays,
    widths: list[int],
    device: str,
    alone: bool,
) -> Job:
    """The training step, compiled, its state donated; or the model alone.

    `alone`: no other step was run in this process, whose peak of memory is then this one's.
    """
    facts: dict[str, Any] = {"base_bytes": timing.process_bytes() if alone else None}
    ours = setting.impl in (plan.OURS, plan.ESTIMATED)
    apply, structure, preprocessing = _model_of(setting, graph, widths)
    facts |= preprocessing
    x = jax.device_put(features["x"].astype(jnp.dtype(setting.dtype)))
    precision = jax.config.jax_default_matmul_precision if setting.tf32 else "highest"

    def peak_of(program: Any) -> int | None:
        if not alone:
            return program_bytes(program)
        stats = jax.devices()[0].memory_stats()
        return timing.process_bytes("VmHWM") if stats is None else stats["peak_bytes_in_use"]

    if setting.forward:
        operands = (jax.device_put(parameters), structure, x)
        with jax.default_matmul_precision(precision):
            model = jax.jit(apply).lower(*operands).compile()
        seconds = functools.partial(
            call_seconds, functools.partial(model, *operands), device=device
        )
        return Job(
            seconds,
            functools.partial(peak_of, model),
            facts=facts,
            rows=lambda rows: float32_rows(model(*operands), rows),
        )
    labels = jax.device_put(features["labels"])
    optimizer = optax.adam(1e-3, b1=_B1)

    def loss(
        params: Arrays, structure: Any, x: Array, labels: Array, key: Any, apply: Apply = apply
    ) -> Array:
        return cross_entropy(apply(params, structure, x, key).astype(jnp.float32), labels)

    def one_step(params, state, key, structure, x, labels):
        key, dropout_key = jax.random.split(key)
        used = dropout_key if setting.regularized else None
        value, gradients = jax.value_and_grad(loss)(params, structure, x, labels, used)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, key, value

    params = jax.device_put(parameters)
    current: list[Any] = [params, optimizer.init(params), jax.random.key(0)]
    program = jax.jit(one_step, donate_argnums=(0, 1, 2))
    with jax.default_matmul_precision(precision):
        compiled = program.lower(*current, structure, x, labels).compile()
    *current, first_loss = compiled(*current, structure, x, labels)
    # After one step Adam's first moment is the gradient, but for a factor: without dropout the
    # timed program itself is what is checked.
    moments = optax.tree_utils.tree_get(current[1], "mu")
    exact = {name: np.asarray(moment) / (1 - _B1) for name, moment in moments.items()}

    def call() -> Array:
        *current[:], value = compiled(*current, structure, x, labels)
        return value

    def gradients() -> tuple[float, float, Arrays]:
        if setting.continuous and not setting.regularized:
            return float(first_loss), float(first_loss), exact
        checked_apply, inputs, checked_precision = apply, x, precision
        if not setting.continuous:
            # Rounding decides which entries MaxK keeps, or which edge has the maximum, and each
            # counts whole: the gradients of the same model in float32 are checked.
            inputs, checked_precision = features["x"], "highest"
            if ours:
                float32 = dataclasses.replace(setting, dtype="float32")
                checked_apply = our_models.model_of(float32, widths)
        with jax.default_matmul_precision(checked_precision):
            run = jax.jit(jax.value_and_grad(functools.partial(loss, apply=checked_apply)))
            value, found = run(jax.device_put(parameters), structure, inputs, labels, None)
        return float(first_loss), float(value), jax.device_get(found)

    def after(ms: float) -> dict[str, Any]:
        if not (ours and setting.regularized):
            return {}
        own = aggregation_ms(setting, structure, widths, device)
        return {"aggregation_ms": round(own, 4), "aggregation_share": round(own / ms, 4)}

    seconds = functools.partial(call_seconds, call, device=device)
    peak_bytes = functools.partial(peak_of, compiled)
    return Job(seconds, peak_bytes, facts=facts, after=after, gradients=gradients)


def _model_of(
    setting: Setting, graph: StoredGraph, widths: list[int]
) -> tuple[Apply, Any, dict[str, Any]]:
    """The model, the graph as it takes it, and what making that took."""
    if setting.impl in plan.STAGES:
        return ablation.model_of(setting, graph)
    if setting.impl not in (plan.OURS, plan.ESTIMATED):
        return *jax_models.model_of(setting, graph), {}
    # Each gets what makes its products fastest.
    method = "with_row_schedule" if setting.k is None else "with_windows"
    structure, preprocessing = preprocessed(graph.to_graph(), method)
    if setting.impl == plan.ESTIMATED:
        structure, more = preprocessed(structure, "with_tiles")
        preprocessing = {name: preprocessing[name] + more[name] for name in more}
    return our_models.model_of(setting, widths), structure, preprocessing


def aggregation_ms(setting: Setting, graph: Graph, widths: list[int], device: str) -> float:
    """A step's aggregations, forward and backward, each operation timed by itself and added up."""
    pairs = itertools.pairwise(widths[1:-1] if setting.input_layer else widths)
    # A layer aggregates the rows that MaxK leaves, else the narrower of its two sides.
    rows = collections.Counter(
        before if setting.k is not None else min(before, after) for before, after in pairs
    )
    one = functools.partial(_aggregation_ms, setting, graph, device)
    return sum(count * one(width) for width, count in rows.items())


def _aggregation_ms(setting: Setting, graph: Graph, device: str, width: int) -> float:
    """The time of one aggregation, forward and backward."""
    reduce = "mean" if setting.model == "sage" else "sum"
    key = jax.random.key(0)
    x = jax.random.normal(key, (graph.num_senders, width), jnp.dtype(setting.dtype))
    indices = None
    if setting.k is not None:
        cbsr = maxk(x, setting.k)
        x, indices = cbsr.values, cbsr.indices

    def forward(x: Array, indices: Array | None, graph: Graph) -> Array:
        if indices is None:
            return spmm(graph, x, reduce=reduce)
        return maxk_spmm(graph, CBSR(x, indices, width), reduce=reduce)

    backward = pullback(forward, at=lambda cotangent: jnp.zeros(x.shape, x.dtype))
    cotangent = jax.random.normal(key, (graph.num_receivers, width), x.dtype)

    def milliseconds(function: Any, operand: Array) -> float:
        program = jax.jit(function).lower(operand, indices, graph).compile()
        call = functools.partial(program, operand, indices, graph)
        seconds = functools.partial(call_seconds, call, device=device)
        return timing.measure(seconds, repeats=5, batch_seconds=0.02).ms

    return milliseconds(forward, x) + milliseconds(backward, cotangent)
