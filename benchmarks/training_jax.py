"""The training step in JAX: jaxgnn's models, and the same in plain JAX."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array

import jaxgnn
from benchmarks import attention_stored, plan, timing, training_plain
from benchmarks.family_jax import preprocessed, program_bytes
from benchmarks.graphs import StoredGraph
from benchmarks.training import EDGE_MODELS, Setting, layers_in
from benchmarks.training_plain import Apply, Arrays, cross_entropy
from benchmarks.training_worker import Job
from jaxgnn import CBSR, Graph, maxk, maxk_spmm, nn, spmm
from jaxgnn._core.platform import kernels_available

_MODELS: dict[str, Callable[..., nn.GNN]] = {
    "sage": nn.GraphSAGE,
    "gcn": nn.GCN,
    "gin": nn.GIN,
    "gat": nn.GAT,
    "gatv2": nn.GATv2,
    "agnn": nn.AGNN,
    "edgeconv": nn.EdgeConvNet,
    "monet": nn.MoNet,
}
# Where jaxgnn's convolutions keep the parameters that the inputs name.
_PLACES: dict[str, dict[str, tuple]] = {
    "sage": {
        "neighbour": ("linear_neighbors", "kernel"),
        "bias": ("linear_neighbors", "bias"),
        "root": ("linear_root", "kernel"),
    },
    "gcn": {"kernel": ("linear", "kernel"), "bias": ("linear", "bias")},
    "gin": {
        "first": ("nn", "linears", 0, "kernel"),
        "first_bias": ("nn", "linears", 0, "bias"),
        "second": ("nn", "linears", 1, "kernel"),
        "bias": ("nn", "linears", 1, "bias"),
    },
    "gat": {
        "kernel": ("linear", "kernel"),
        "source": ("attention_senders",),
        "target": ("attention_receivers",),
        "bias": ("bias",),
    },
    "gatv2": {
        "left": ("linear_senders", "kernel"),
        "left_shift": ("linear_senders", "bias"),
        "right": ("linear_receivers", "kernel"),
        "right_shift": ("linear_receivers", "bias"),
        "vector": ("attention",),
        "bias": ("bias",),
    },
    "agnn": {"beta": ("beta",)},
    "edgeconv": {"kernel": ("linear", "kernel"), "bias": ("linear", "bias")},
    "monet": {
        "mixture": ("conv", "linear", "kernel"),
        "root": ("conv", "linear_root", "kernel"),
        "mu": ("conv", "mu"),
        "sigma": ("conv", "sigma"),
        "slope": ("linear", "kernel"),
        "shift": ("linear", "bias"),
        "bias": ("conv", "bias"),
    },
}
# Of the products before and behind them.
_ENDS = {
    "kernel_in": ("linear_in", "kernel"),
    "bias_in": ("linear_in", "bias"),
    "kernel_out": ("linear", "kernel"),
    "bias_out": ("linear", "bias"),
}
_B1 = 0.9


def job(
    setting: Setting,
    graph: StoredGraph,
    features: dict[str, np.ndarray],
    parameters: dict[str, np.ndarray],
    widths: list[int],
    device: str,
    alone: bool,
) -> Job:
    """The training step of jaxgnn or of plain JAX, compiled, its state donated.

    `alone`: no other step was run in this process, whose peak of memory is then this one's.
    """
    facts: dict[str, Any] = {"base_bytes": timing.resident_bytes() if alone else None}
    structure: Any
    if setting.impl in (plan.OURS, plan.STORED):
        if setting.impl == plan.OURS:
            apply, structure = _ours(setting, parameters, widths), graph.to_graph()
        else:
            apply, structure = attention_stored.model_of(setting), graph.to_graph()
        # Each gets what makes its products fastest.
        method = "with_row_schedule" if setting.k is None else "with_windows"
        structure, preprocessing = preprocessed(structure, method)
        facts |= preprocessing
    else:
        apply, structure = training_plain.model_of(setting, graph)
    x = jax.device_put(features["x"].astype(jnp.dtype(setting.dtype)))
    labels = jax.device_put(features["labels"])
    optimiser = optax.adam(1e-3, b1=_B1)

    def loss(
        params: Arrays, structure: Any, x: Array, labels: Array, apply: Apply = apply
    ) -> Array:
        return cross_entropy(apply(params, structure, x).astype(jnp.float32), labels)

    def step(params, state, structure, x, labels):
        value, gradients = jax.value_and_grad(loss)(params, structure, x, labels)
        updates, state = optimiser.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    params = jax.device_put(parameters)
    state = optimiser.init(params)
    compiled = (
        jax.jit(step, donate_argnums=(0, 1)).lower(params, state, structure, x, labels).compile()
    )
    params, state, value = compiled(params, state, structure, x, labels)
    # After one step Adam's first moment is the gradient, but for a factor: the timed program
    # itself is what is checked.
    moments = optax.tree_utils.tree_get(state, "mu")
    gradients = {name: np.asarray(moment) / (1 - _B1) for name, moment in moments.items()}
    current = [params, state]

    def seconds(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            current[0], current[1], value = compiled(*current, structure, x, labels)
            if device == "cpu":
                jax.block_until_ready(value)
        jax.block_until_ready((current, value))
        return time.perf_counter() - start

    def peak_bytes() -> int | None:
        stats = jax.devices()[0].memory_stats()
        if not alone:
            return program_bytes(compiled)
        if stats is None:
            return timing.peak_process_bytes()
        return stats["peak_bytes_in_use"]

    def more(ms: float) -> dict[str, Any]:
        if setting.impl != plan.OURS or setting.model in EDGE_MODELS:
            return facts
        aggregations = aggregation_ms(setting, structure, widths, device)
        return {
            **facts,
            "aggregation_ms": round(aggregations, 4),
            "aggregation_share": round(aggregations / ms, 4),
        }

    def check() -> tuple[float, Arrays]:
        if setting.continuous:
            return float(value), gradients
        # Rounding decides which entries MaxK keeps, or which edge has the maximum, and each counts
        # whole: gradients of TF32 and bfloat16 products are no test. Those of the same model in
        # float32 are; the timed program answers for its loss.
        exact = apply
        if setting.impl == plan.OURS:
            exact = _ours(dataclasses.replace(setting, dtype="float32"), parameters, widths)
        with jax.default_matmul_precision("highest"):
            run = jax.jit(jax.grad(functools.partial(loss, apply=exact)))
            found = run(jax.device_put(parameters), structure, features["x"], labels)
        return float(value), jax.device_get(found)

    return Job(seconds, peak_bytes, check, more, float(value))


def _ours(setting: Setting, parameters: dict[str, np.ndarray], widths: list[int]) -> Apply:
    """jaxgnn's model as a function of parameters under the names of the inputs."""
    if not kernels_available():
        raise RuntimeError(f"no kernels for {jax.default_backend()}: {jaxgnn.build_info()}")
    layers = layers_in(parameters)
    module = _MODELS[setting.model](
        widths[0],
        widths[1],
        widths[-1],
        layers,
        activation=jax.nn.relu if setting.k is None else nn.MaxK(setting.k),
        input_layer=setting.input_layer,
        dtype=None if setting.dtype == "float32" else jnp.dtype(setting.dtype),
        rngs=nnx.Rngs(0),
        **({} if setting.heads is None else {"heads": setting.heads, "out_heads": 1}),
    )
    definition, state = nnx.split(module)
    variables = {
        path: variable for path, variable in nnx.to_flat_state(state) if variable is not None
    }
    names: dict[Any, str] = {
        ("convs", layer, *place): f"{kind}_{layer}"
        for kind, place in _PLACES[setting.model].items()
        for layer in range(layers)
    }
    names |= {place: name for name, place in _ENDS.items() if name in parameters}
    if names.keys() != variables.keys() or set(names.values()) != parameters.keys():
        raise ValueError(f"parameters: expected {sorted(names)}, got {sorted(variables)}")

    def apply(params: Arrays, structure: Any, x: Array) -> Array:
        flat = [(path, old.replace(params[names[path]])) for path, old in variables.items()]
        return nnx.merge(definition, nnx.from_flat_state(flat))(structure, x)

    return apply


def aggregation_ms(setting: Setting, graph: Graph, widths: list[int], device: str) -> float:
    """A step's aggregations, forward and backward, each operation timed by itself and added up."""
    pairs = itertools.pairwise(widths[1:] if setting.input_layer else widths)
    # A layer aggregates the rows that MaxK leaves, else the narrower of its two sides.
    rows = collections.Counter(
        before if setting.k is not None else min(before, after) for before, after in pairs
    )
    return sum(
        count * one
        for width, count in rows.items()
        for one in _aggregation_ms(setting, graph, width, device)
    )


def _aggregation_ms(setting: Setting, graph: Graph, width: int, device: str) -> tuple[float, float]:
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

    def backward(cotangent: Array, indices: Array | None, graph: Graph) -> Array:
        at = jnp.zeros(x.shape, x.dtype)
        return jax.vjp(lambda x: forward(x, indices, graph), at)[1](cotangent)[0]

    def milliseconds(function: Callable, *arguments: Any) -> float:
        compiled = jax.jit(function).lower(*arguments).compile()

        def seconds(count: int) -> float:
            start = time.perf_counter()
            for _ in range(count):
                result = compiled(*arguments)
                if device == "cpu":
                    jax.block_until_ready(result)
            jax.block_until_ready(result)
            return time.perf_counter() - start

        return timing.measure(seconds, repeats=5, batch_seconds=0.02).ms

    cotangent = jax.random.normal(key, (graph.num_receivers, width), x.dtype)
    return milliseconds(forward, x, indices, graph), milliseconds(
        backward, cotangent, indices, graph
    )
