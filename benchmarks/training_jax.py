"""The training step in JAX: jaxgnn's GraphSAGE, and the same model in plain JAX."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

import jaxgnn
from benchmarks import plan, timing
from benchmarks.graphs import StoredGraph
from benchmarks.training_worker import Job
from jaxgnn import _ffi, nn

Arrays = dict[str, Any]
Apply = Callable[[Arrays, Any, Array], Array]


def mean_of_neighbours(operands: Arrays, h: Array) -> Array:
    """The mean by gather and sorted segment sum, as JAX's users write it."""
    total = jax.ops.segment_sum(
        h[operands["senders"]],
        operands["receivers"],
        operands["degrees"].shape[0],
        indices_are_sorted=True,
    )
    return total / jnp.maximum(operands["degrees"], 1).astype(h.dtype)[:, None]


def sliced_mean(operands: Arrays, h: Array, width: int = 32) -> Array:
    """The same a few features at a time, so that float64 messages of every edge fit in memory."""
    nodes, features = h.shape
    slices = -(-features // width)
    padded = jnp.pad(h, ((0, 0), (0, slices * width - features)))
    apart = jnp.moveaxis(padded.reshape(nodes, slices, width), 1, 0)
    out = jax.lax.map(functools.partial(mean_of_neighbours, operands), apart)
    return jnp.moveaxis(out, 0, 1).reshape(nodes, slices * width)[:, :features]


def plain_model(
    params: Arrays,
    operands: Arrays,
    x: Array,
    *,
    layers: int,
    aggregate: Callable[[Arrays, Array], Array] = mean_of_neighbours,
) -> Array:
    """GraphSAGE in plain JAX; the narrower side of a layer is aggregated, as in jaxgnn."""
    mean = functools.partial(aggregate, operands)

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
        return cross_entropy(
            plain_model(params, operands, x, layers=layers, aggregate=sliced_mean), labels
        )

    params = {name: jnp.asarray(v, jnp.float64) for name, v in _parameters(inputs).items()}
    x = jnp.asarray(inputs["x"], jnp.float64)
    value, gradients = jax.jit(jax.value_and_grad(loss))(
        params, _operands(graph), x, jnp.asarray(inputs["labels"])
    )
    return float(value), {name: np.asarray(g) for name, g in gradients.items()}


# Where jaxgnn's GraphSAGE keeps the parameters that the inputs name.
_PLACES = {
    "neighbour": ("linear_neighbours", "kernel"),
    "bias": ("linear_neighbours", "bias"),
    "root": ("linear_root", "kernel"),
}


def _ours(inputs: dict[str, np.ndarray], layers: int) -> Apply:
    """jaxgnn's model as a function of parameters under the names of the inputs."""
    if not _ffi.kernels_available():
        raise RuntimeError(f"no kernels for {jax.default_backend()}: {jaxgnn.build_info()}")
    widths = [inputs["neighbour_0"].shape[0]]
    widths += [inputs[f"bias_{layer}"].shape[0] for layer in range(layers)]
    model = nn.GraphSAGE(widths[0], widths[1], widths[-1], layers, rngs=nnx.Rngs(0))
    definition, state = nnx.split(model)
    variables = {
        path: variable for path, variable in nnx.to_flat_state(state) if variable is not None
    }
    names: dict[Any, str] = {
        ("convs", layer, *place): f"{kind}_{layer}"
        for kind, place in _PLACES.items()
        for layer in range(layers)
    }
    if names.keys() != variables.keys():
        raise ValueError(f"parameters: expected {sorted(names)}, got {sorted(variables)}")

    def apply(params: Arrays, structure: Any, x: Array) -> Array:
        flat = [(path, old.replace(params[names[path]])) for path, old in variables.items()]
        return nnx.merge(definition, nnx.from_flat_state(flat))(structure, x)

    return apply


def job(
    impl: str, graph: StoredGraph, inputs: dict[str, np.ndarray], layers: int, device: str
) -> Job:
    """The training step of jaxgnn or of plain JAX, compiled, its state donated."""
    x = jax.device_put(inputs["x"])
    labels = jax.device_put(inputs["labels"])
    if impl == plan.OURS:
        apply = _ours(inputs, layers)
        structure: Any = graph.to_graph()
    else:
        apply = functools.partial(plain_model, layers=layers)
        structure = _operands(graph)

    params = jax.device_put(_parameters(inputs))
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
