"""The training step in JAX: jaxgnn's GraphSAGE, and the same model in plain JAX."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

from benchmarks import plan, timing
from benchmarks.graphs import StoredGraph
from benchmarks.training_worker import Job

Arrays = dict[str, Any]


def plain_model(params: Arrays, operands: Arrays, x: Array, layers: int) -> Array:
    """GraphSAGE by gather and sorted segment sum; the narrower side of a layer is aggregated."""

    def mean(h: Array) -> Array:
        total = jax.ops.segment_sum(
            h[operands["senders"]],
            operands["receivers"],
            operands["degrees"].shape[0],
            indices_are_sorted=True,
        )
        return total / jnp.maximum(operands["degrees"], 1).astype(h.dtype)[:, None]

    for layer in range(layers):
        kernel = params[f"neighbour_{layer}"]
        shrinks = kernel.shape[1] < kernel.shape[0]
        near = mean(x @ kernel) if shrinks else mean(x) @ kernel
        x = near + params[f"bias_{layer}"] + x @ params[f"root_{layer}"]
        if layer < layers - 1:
            x = jax.nn.relu(x)
    return x


def cross_entropy(logits: Float[Array, "nodes classes"], labels: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _operands(graph: StoredGraph) -> Arrays:
    degrees = np.diff(graph.row_offsets)
    receivers = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), degrees)
    return jax.device_put(
        {
            "senders": np.asarray(graph.senders),
            "receivers": receivers,
            "degrees": degrees.astype(np.int32),
        }
    )


def _parameters(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value for name, value in inputs.items() if name not in ("x", "labels")}


def float64_gradients(
    graph: StoredGraph, inputs: dict[str, np.ndarray], layers: int
) -> tuple[float, dict[str, np.ndarray]]:
    """The oracle: loss and gradients of the plain model in float64."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")

    def loss(params: Arrays, operands: Arrays, x: Array, labels: Array) -> Array:
        return cross_entropy(plain_model(params, operands, x, layers), labels)

    params = {name: jnp.asarray(v, jnp.float64) for name, v in _parameters(inputs).items()}
    x = jnp.asarray(inputs["x"], jnp.float64)
    value, gradients = jax.jit(jax.value_and_grad(loss))(
        params, _operands(graph), x, jnp.asarray(inputs["labels"])
    )
    return float(value), {name: np.asarray(g) for name, g in gradients.items()}


def _ours(
    inputs: dict[str, np.ndarray], layers: int
) -> tuple[Callable[[Arrays, Any, Array], Array], Arrays]:
    """jaxgnn's model as a function of parameters under the names of the inputs."""
    from jaxgnn import nn

    shapes = [inputs[f"neighbour_{layer}"].shape for layer in range(layers)]
    model = nn.GraphSAGE(
        shapes[0][0], shapes[0][1], shapes[-1][1], num_layers=layers, rngs=nnx.Rngs(0)
    )
    raise NotImplementedError(model)


def job(
    impl: str, graph: StoredGraph, inputs: dict[str, np.ndarray], layers: int, device: str
) -> Job:
    """The training step of jaxgnn or of plain JAX, compiled, its state donated."""
    x = jax.device_put(inputs["x"])
    labels = jax.device_put(inputs["labels"])
    if impl == plan.OURS:
        apply, params = _ours(inputs, layers)
        structure: Any = graph.to_graph()
    else:
        params = jax.device_put(_parameters(inputs))
        structure = _operands(graph)

        def apply(params: Arrays, structure: Any, x: Array) -> Array:
            return plain_model(params, structure, x, layers)

    optimiser = optax.adam(1e-3)

    def loss(params: Arrays, structure: Any, x: Array, labels: Array) -> Array:
        return cross_entropy(apply(params, structure, x), labels)

    def step(params, state, structure, x, labels):
        value, gradients = jax.value_and_grad(loss)(params, structure, x, labels)
        updates, state = optimiser.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    initial = jax.tree.map(jnp.copy, params)  # the step donates its own
    state = optimiser.init(params)
    compiled = (
        jax.jit(step, donate_argnums=(0, 1)).lower(params, state, structure, x, labels).compile()
    )
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
        if stats is None:
            return timing.peak_process_bytes()
        return stats["peak_bytes_in_use"]

    def check() -> tuple[float, dict[str, np.ndarray]]:
        value, gradients = jax.jit(jax.value_and_grad(loss))(initial, structure, x, labels)
        return float(value), {name: np.asarray(g) for name, g in gradients.items()}

    return Job(seconds, peak_bytes, check)
