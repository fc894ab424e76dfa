"""The models of the training steps in plain JAX: baselines, and in float64 the oracle.

As JAX's users write them: gather, then segment operations over edges sorted by receiver. The
oracle takes a few columns or one head at a time, so that its messages fit in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from benchmarks.harness import plan
from benchmarks.harness.graphs import StoredGraph, row_ids
from benchmarks.harness.setting import NORM_EPSILON, ORACLE, Arrays, Setting, layer_parameters

Apply = Callable[[Arrays, Any, Array, Any], Array]
"""Of parameters, the graph, features and dropout's key, or `None` for no dropout."""
Layer = Callable[[Arrays, Arrays, Array, Setting], Array]


def model_of(setting: Setting, graph: StoredGraph) -> tuple[Apply, Arrays]:
    """The model, and its edges on the device."""
    layer: Layer = _LAYERS[setting.model]
    if setting.model == "edgeconv" and setting.variant in (ORACLE, plan.PLAIN_NODES):
        layer = edge_conv_on_nodes
    return functools.partial(stacked, layer, setting), edges_of(graph, setting)


def edges_of(graph: StoredGraph, setting: Setting) -> Arrays:
    """The edges sorted by receiver and the degrees; the attentions' self-loops are among them."""
    offsets, senders = graph.rows(loops=setting.model in plan.LOOPED_MODELS)
    edges = {"senders": np.asarray(senders), "receivers": row_ids(offsets)}
    edges["degrees"] = np.diff(offsets).astype(np.int32)
    if setting.model == "monet":
        out_degrees = np.bincount(senders, minlength=graph.num_nodes)
        edges["out_degrees"] = out_degrees.astype(np.int32)
    if setting.variant == plan.TRANSPOSED:
        offsets, edges["transpose_receivers"] = map(np.asarray, graph.rows(backward=True))
        edges["transpose_senders"] = row_ids(offsets)
    return jax.device_put(edges)


def stacked(
    layer: Layer, setting: Setting, params: Arrays, edges: Any, x: Array, key: Any = None
) -> Array:
    """The model of such layers, which get their parameters, the edges, rows and the setting."""

    def after(x: Array, layer: int | None = None) -> Array:
        """Normalization, activation and dropout of hidden rows."""
        if (scale := f"norms.{layer}.scale") in params:
            x = normalize(x, params[scale], params[f"norms.{layer}.bias"])
        x = jax.nn.relu(x) if setting.k is None else keep_largest(setting.k, x)
        if key is None:
            return x
        number = 0 if layer is None else layer + 1
        kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - plan.DROPOUT_RATE, x.shape)
        return jnp.where(kept, x / (1 - plan.DROPOUT_RATE), jnp.zeros_like(x))

    if setting.dtype == "bfloat16":
        params = {name: value.astype(jnp.bfloat16) for name, value in params.items()}
    if "linear_in.kernel" in params:
        x = after(_dense(x, params, "linear_in"))
    layers = layer_parameters(params)
    for number, own in enumerate(layers):
        x = layer(own, edges, x, setting)
        if setting.model != "agnn" and (setting.input_layer or number < len(layers) - 1):
            x = after(x, number)
    return _dense(x, params, "linear") if "linear.kernel" in params else x


def _dense(x: Array, params: Arrays, name: str) -> Array:
    return x @ params[f"{name}.kernel"] + params[f"{name}.bias"]


def normalize(x: Array, scale: Array, shift: Array) -> Array:
    """Layer normalization, in float32 for bfloat16 as Flax has it."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + NORM_EPSILON) * scale + shift).astype(x.dtype)


def keep_largest(k: int, x: Float[Array, "rows width"]) -> Float[Array, "rows width"]:
    """Zeros for all but the k largest entries of each row."""
    threshold = jax.lax.top_k(jax.lax.stop_gradient(x), k)[0][:, -1:]
    return jnp.where(x >= threshold, x, 0)


# Sums over neighbours.


def _reduce(operation: Callable[..., Any], edges: Arrays, rows: Array) -> Array:
    nodes = edges["degrees"].shape[0]
    return operation(rows, edges["receivers"], nodes, indices_are_sorted=True)


def neighbours_sum(edges: Arrays, h: Array, setting: Setting) -> Array:
    """The sum by gather and sorted segment sum."""
    if setting.variant == plan.TRANSPOSED:
        return _sum_with_transpose(edges, h)

    def total(h: Array) -> Array:
        return _reduce(jax.ops.segment_sum, edges, h[edges["senders"]])

    return by_slices(total, h, setting)


@jax.custom_vjp
def _sum_with_transpose(edges: Arrays, h: Array) -> Array:
    """The same, whose gradient is a sorted segment sum of the transpose in place of a scatter."""
    return _reduce(jax.ops.segment_sum, edges, h[edges["senders"]])


def _pull(edges: Arrays, cotangent: Array) -> tuple[None, Array]:
    rows = cotangent[edges["transpose_receivers"]]
    ends, nodes = edges["transpose_senders"], edges["degrees"].shape[0]
    return None, jax.ops.segment_sum(rows, ends, nodes, indices_are_sorted=True)


_sum_with_transpose.defvjp(lambda edges, h: (_sum_with_transpose(edges, h), edges), _pull)


def by_slices(function: Callable[[Array], Array], h: Array, setting: Setting, width=32) -> Array:
    """A function of columns; the oracle's on a few at a time, recomputed in the backward pass."""
    if setting.impl != ORACLE:
        return function(h)
    *nodes, features = h.shape
    slices = -(-features // width)
    padded = jnp.pad(h, [(0, 0)] * len(nodes) + [(0, slices * width - features)])
    apart = jnp.moveaxis(padded.reshape(*nodes, slices, width), -2, 0)
    out = jnp.moveaxis(jax.lax.map(jax.checkpoint(function), apart), 0, -2)
    return out.reshape(*out.shape[:-2], slices * width)[..., :features]


def _around(aggregate: Callable[[Array], Array], kernel: Array, x: Array) -> Array:
    """aggregate(x) kernel, in the cheaper order."""
    shrinks = kernel.shape[1] < kernel.shape[0]
    return aggregate(x @ kernel) if shrinks else aggregate(x) @ kernel


def sage(own: Arrays, edges: Arrays, x: Array, setting: Setting) -> Array:
    def mean(h: Array) -> Array:
        degrees = jnp.maximum(edges["degrees"], 1).astype(h.dtype)
        return neighbours_sum(edges, h, setting) / degrees[:, None]

    return (
        _around(mean, own["linear_neighbors.kernel"], x)
        + own["linear_neighbors.bias"]
        + x @ own["linear_root.kernel"]
    )


def gcn(own: Arrays, edges: Arrays, x: Array, setting: Setting) -> Array:
    # The graphs have no self-loops.
    scale = jax.lax.rsqrt((edges["degrees"] + 1).astype(x.dtype))[:, None]

    def normalised(h: Array) -> Array:
        return scale * (neighbours_sum(edges, scale * h, setting) + scale * h)

    return _around(normalised, own["linear.kernel"], x) + own["linear.bias"]


def gin(own: Arrays, edges: Arrays, x: Array, setting: Setting) -> Array:
    def total(h: Array) -> Array:
        return neighbours_sum(edges, h, setting) + h

    hidden = _around(total, own["nn.linears.0.kernel"], x) + own["nn.linears.0.bias"]
    hidden = jax.nn.relu(normalize(hidden, own["nn.norms.0.scale"], own["nn.norms.0.bias"]))
    return _dense(hidden, own, "nn.linears.1")


# Models whose messages belong to edges.


def gat(own: Arrays, edges: Arrays, x: Array, setting: Setting) -> Array:
    heads, features = own["attention_senders"].shape
    h = (x @ own["linear.kernel"]).reshape(x.shape[0], heads, features)

    def attend(h: Array, source: Array, target: Array) -> Array:
        at_senders, at_receivers = ((h * vector).sum(axis=-1) for vector in (source, target))
        both = at_senders[edges["senders"]] + at_receivers[edges["receivers"]]
        return average(edges, h, jax.nn.leaky_relu(both, 0.2), setting)

    vectors = (own["attention_senders"], own["attention_receivers"])
    return _by_heads(attend, setting, (h,), vectors) + own["bias"]


def gatv2(own: Arrays, edges: Arrays, x: Array, setting: Setting) -> Array:
    heads, features = own["attention"].shape

    def rows(side: str) -> Array:
        return _dense(x, own, f"linear_{side}").reshape(x.shape[0], heads, features)

    def attend(left: Array, right: Array, vector: Array) -> Array:
        both = left[edges["senders"]] + right[edges["receivers"]]
        scores = (jax.nn.leaky_relu(both, 0.2) * vector).sum(axis=-1)
        return average(edges, left, scores, setting)

    ends = (rows("senders"), rows("receivers"))
    return _by_heads(attend, setting, ends, (own["attention"],)) + own["bias"]


def agnn(own: Arrays, edges: Arrays, x: Array, setting: Setting) -> Array:
    """The average by the softmax of the cosines."""
    unit = x / jnp.sqrt(jnp.maximum((x**2).sum(axis=1, keepdims=True), 1e-24))
    cosines = (unit[edges["senders"]] * unit[edges["receivers"]]).sum(axis=-1)
    scores = own["beta"] * cosines
    return average(edges, x[:, None], scores[:, None], setting)[:, 0]


def _by_heads(
    attend: Callable[..., Array],
    setting: Setting,
    rows: tuple[Float[Array, "nodes heads features"], ...],
    vectors: tuple[Float[Array, "heads features"], ...],
) -> Array:
    """Attention by all heads at once; the oracle's head after head, recomputed in backward."""
    if setting.impl == ORACLE:
        heads = (*(jnp.moveaxis(h, 1, 0)[:, :, None] for h in rows), *(v[:, None] for v in vectors))
        out = jax.lax.map(jax.checkpoint(lambda operands: attend(*operands)[:, 0]), heads)
        out = jnp.moveaxis(out, 0, 1)
    else:
        out = attend(*rows, *vectors)
    return out.reshape(out.shape[0], -1)


def average(
    edges: Arrays,
    h: Float[Array, "nodes heads features"],
    scores: Float[Array, "edges heads"],
    setting: Setting,
) -> Float[Array, "nodes heads features"]:
    """The average by the softmax of scores; its sums are divided on the nodes, which spares a
    gather."""
    senders, receivers = edges["senders"], edges["receivers"]
    # In float64 the exponentials of these scores, which are small, need no maximum.
    if setting.impl != ORACLE:
        largest = _reduce(jax.ops.segment_max, edges, jax.lax.stop_gradient(scores))
        scores = scores - largest[receivers]
    weights = jnp.exp(scores)

    def weighted_sum(h: Array) -> Array:
        return _reduce(jax.ops.segment_sum, edges, weights[:, :, None] * h[senders])

    if setting.variant == plan.PLAIN_FLAT:  # rows of one axis are summed faster
        flat = jnp.repeat(weights, h.shape[2], axis=1) * h.reshape(h.shape[0], -1)[senders]
        out = _reduce(jax.ops.segment_sum, edges, flat).reshape(h.shape)
    else:
        out = by_slices(weighted_sum, h, setting, 8)
    return out / _reduce(jax.ops.segment_sum, edges, weights)[:, :, None]


def edgeconv(own: Arrays, edges: Arrays, x: Array, setting: Setting) -> Array:
    """The maximum over the edges of a projection of `[x_i, x_j - x_i]`."""
    at_receivers = x[edges["receivers"]]
    rows = jnp.concatenate([at_receivers, x[edges["senders"]] - at_receivers], axis=1)
    return _maximum(edges, _dense(rows, own, "linear"))


def edge_conv_on_nodes(own: Arrays, edges: Arrays, x: Array, setting: Setting) -> Array:
    """The same with its projections on the nodes: `max_j x_j W_2 + x_i (W_1 - W_2) + b`."""
    first, second = jnp.split(own["linear.kernel"], 2)

    def maximum(theta: Array) -> Array:
        return _maximum(edges, theta[edges["senders"]])

    out = by_slices(maximum, x @ second, setting, 8) + x @ (first - second) + own["linear.bias"]
    return jnp.where(edges["degrees"][:, None] > 0, out, 0)


def _maximum(edges: Arrays, rows: Array) -> Array:
    """Of each node's rows; 0 for one without."""
    largest = _reduce(jax.ops.segment_max, edges, rows)
    return jnp.where(edges["degrees"][:, None] > 0, largest, 0)


def monet(own: Arrays, edges: Arrays, x: Array, setting: Setting) -> Array:
    """The mean over the edges of the kernels' projections, by Gaussians of the ends' degrees."""
    senders, receivers = edges["senders"], edges["receivers"]
    kernels, features = own["conv.mu"].shape[0], own["conv.bias"].shape[0]
    degrees = edges["degrees"][receivers], edges["out_degrees"][senders]
    ends = jax.lax.rsqrt(jnp.stack(degrees, axis=1).astype(x.dtype))
    places = jnp.tanh(_dense(ends, own, "linear"))
    squares = (places[:, None] - own["conv.mu"]) ** 2 / (1e-15 + own["conv.sigma"] ** 2)
    weights = jnp.exp(-0.5 * squares.sum(axis=-1))
    h = (x @ own["conv.linear.kernel"]).reshape(x.shape[0], kernels, features)

    def weighted_sum(h: Array) -> Array:
        rows = (weights[:, :, None] * h[senders]).sum(axis=1)
        return _reduce(jax.ops.segment_sum, edges, rows)[:, None]  # an axis as `by_slices` has it

    out = by_slices(weighted_sum, h, setting, 8)
    degree = jnp.maximum(edges["degrees"], 1).astype(x.dtype)[:, None]
    return out[:, 0] / degree + x @ own["conv.linear_root.kernel"] + own["conv.bias"]


_LAYERS: dict[str, Layer] = {
    layer.__name__: layer for layer in (sage, gcn, gin, gat, gatv2, agnn, edgeconv, monet)
}


def cross_entropy(logits: Float[Array, "nodes classes"], labels: Int[Array, " nodes"]) -> Array:
    """The mean over the nodes."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def float64_gradients(
    setting: Setting, graph: StoredGraph, features: Arrays, parameters: Arrays, rows: np.ndarray
) -> tuple[float, np.ndarray, Arrays]:
    """The oracle: loss, these rows of the result, and gradients of the model in float64."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    apply, edges = model_of(setting, graph)

    def loss(params: Arrays, edges: Arrays, x: Array, labels: Array) -> tuple[Array, Array]:
        outputs = apply(params, edges, x, None)
        return cross_entropy(outputs, labels), outputs[rows]

    params = {name: jnp.asarray(value, jnp.float64) for name, value in parameters.items()}
    x, labels = jnp.asarray(features["x"], jnp.float64), jnp.asarray(features["labels"])
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, outputs), gradients = step(params, edges, x, labels)
    arrays = {name: np.asarray(gradient) for name, gradient in gradients.items()}
    return float(value), np.asarray(outputs), arrays
