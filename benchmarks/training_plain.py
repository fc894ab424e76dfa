"""The models of the suite `training` in plain JAX: a baseline, and in float64 the oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from benchmarks.graphs import StoredGraph
from benchmarks.training import EDGE_MODELS, Setting, layers_in

Arrays = dict[str, Any]
Total = Callable[[Array], Array]
Apply = Callable[[Arrays, Any, Array], Array]


def operands(graph: StoredGraph) -> Arrays:
    """The edges and degrees, on the device."""
    degrees = np.diff(graph.row_offsets)
    receivers = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), degrees)
    return jax.device_put(
        {
            "senders": np.asarray(graph.senders),
            "receivers": receivers,
            "degrees": degrees.astype(np.int32),
        }
    )


def sum_of_neighbours(edges: Arrays, h: Array) -> Array:
    """The sum by gather and sorted segment sum, as JAX's users write it."""
    return jax.ops.segment_sum(
        h[edges["senders"]],
        edges["receivers"],
        edges["degrees"].shape[0],
        indices_are_sorted=True,
    )


def by_slices(function: Total, h: Array, width: int = 32) -> Array:
    """A function of columns on a few of them at a time, so that float64 messages of every edge fit
    in memory; backward computes it again."""
    *nodes, features = h.shape
    slices = -(-features // width)
    padded = jnp.pad(h, [(0, 0)] * len(nodes) + [(0, slices * width - features)])
    apart = jnp.moveaxis(padded.reshape(*nodes, slices, width), -2, 0)
    out = jnp.moveaxis(jax.lax.map(jax.checkpoint(function), apart), 0, -2)
    return out.reshape(*out.shape[:-2], slices * width)[..., :features]


def sliced_sum(edges: Arrays, h: Array) -> Array:
    """`sum_of_neighbours` by slices."""
    return by_slices(functools.partial(sum_of_neighbours, edges), h)


def model(
    params: Arrays,
    edges: Arrays,
    x: Array,
    *,
    setting: Setting,
    neighbours: Callable[[Arrays, Array], Array] = sum_of_neighbours,
) -> Array:
    """The model's outputs; the narrower side of a layer is aggregated, as in jaxgnn."""
    total = functools.partial(neighbours, edges)
    activation = jax.nn.relu if setting.k is None else functools.partial(keep_largest, setting.k)
    convolution = _CONVOLUTIONS[setting.model]
    if setting.input_layer:
        x = activation(x @ params["kernel_in"] + params["bias_in"])
    layers = layer_parameters(params)
    for layer, own in enumerate(layers):
        x = convolution(own, total, edges["degrees"], x)
        if layer < len(layers) - 1:
            x = activation(x)
    return x


def layer_parameters(params: Arrays) -> list[Arrays]:
    """The parameters of each convolution, their names without its number."""
    return [
        {
            name.removesuffix(f"_{layer}"): value
            for name, value in params.items()
            if name.endswith(f"_{layer}")
        }
        for layer in range(layers_in(params))
    ]


def model_of(setting: Setting, graph: StoredGraph, oracle: bool = False) -> tuple[Apply, Arrays]:
    """The model of parameters, edges and features, and the edges; the oracle's saves memory."""
    if setting.model in EDGE_MODELS:
        from benchmarks import attention_plain  # made of this module's parts

        return attention_plain.model_of(setting, graph, oracle)
    neighbours = sliced_sum if oracle else sum_of_neighbours
    return functools.partial(model, setting=setting, neighbours=neighbours), operands(graph)


def keep_largest(k: int, x: Float[Array, "rows width"]) -> Float[Array, "rows width"]:
    """Zeros for all but the k largest entries of each row."""
    threshold = jax.lax.top_k(jax.lax.stop_gradient(x), k)[0][:, -1:]
    return jnp.where(x >= threshold, x, 0)


def _around(aggregate: Total, kernel: Array, x: Array) -> Array:
    """aggregate(x) kernel, in the cheaper order."""
    shrinks = kernel.shape[1] < kernel.shape[0]
    return aggregate(x @ kernel) if shrinks else aggregate(x) @ kernel


def _sage(params: Arrays, total: Total, degrees: Int[Array, " nodes"], x: Array) -> Array:
    def mean(h: Array) -> Array:
        return total(h) / jnp.maximum(degrees, 1).astype(h.dtype)[:, None]

    return _around(mean, params["neighbour"], x) + params["bias"] + x @ params["root"]


def _gcn(params: Arrays, total: Total, degrees: Int[Array, " nodes"], x: Array) -> Array:
    scale = jax.lax.rsqrt((degrees + 1).astype(x.dtype))[:, None]  # the graphs have no self-loops

    def normalised(h: Array) -> Array:
        return scale * (total(scale * h) + scale * h)

    return _around(normalised, params["kernel"], x) + params["bias"]


def _gin(params: Arrays, total: Total, degrees: Int[Array, " nodes"], x: Array) -> Array:
    del degrees
    hidden = _around(lambda h: total(h) + h, params["first"], x) + params["first_bias"]
    return jax.nn.relu(hidden) @ params["second"] + params["bias"]


_CONVOLUTIONS = {"sage": _sage, "gcn": _gcn, "gin": _gin}


def cross_entropy(logits: Float[Array, "nodes classes"], labels: Int[Array, " nodes"]) -> Array:
    """The mean over the nodes."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def float64_gradients(
    setting: Setting,
    graph: StoredGraph,
    features: dict[str, np.ndarray],
    parameters: dict[str, np.ndarray],
) -> tuple[float, dict[str, np.ndarray]]:
    """The oracle: loss and gradients of the model in float64."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")

    apply, edges = model_of(setting, graph, oracle=True)

    def loss(params: Arrays, edges: Arrays, x: Array, labels: Array) -> Array:
        return cross_entropy(apply(params, edges, x), labels)

    params = {name: jnp.asarray(value, jnp.float64) for name, value in parameters.items()}
    x = jnp.asarray(features["x"], jnp.float64)
    value, gradients = jax.jit(jax.value_and_grad(loss))(
        params, edges, x, jnp.asarray(features["labels"])
    )
    return float(value), {name: np.asarray(gradient) for name, gradient in gradients.items()}
