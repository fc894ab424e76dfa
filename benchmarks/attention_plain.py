"""The models of the suite `attention` in plain JAX: baselines, and in float64 the oracle.

Messages belong to edges here, as JAX's users write them: gather, then sorted segment operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks import plan
from benchmarks.graphs import StoredGraph
from benchmarks.training import LOOPED_MODELS, Setting
from benchmarks.training_plain import Apply, Arrays, by_slices, layer_parameters

# Columns at a time that the oracle gathers for every edge.
_SLICE = 8
Layer = Callable[[Arrays, Arrays, Array, bool], Array]


def model_of(setting: Setting, graph: StoredGraph, oracle: bool) -> tuple[Apply, Arrays]:
    """The model of parameters, edges and features, and the edges on the device."""
    layer = _LAYERS[setting.model]
    if setting.model == "gat" and setting.impl == plan.PLAIN_EDGES:
        layer = gat_on_edges
    if setting.model == "edgeconv" and (oracle or setting.impl == plan.PLAIN_NODES):
        layer = edge_conv_on_nodes
    edges = operands(graph, self_loops=setting.model in LOOPED_MODELS)
    return functools.partial(_model, layer=layer, sliced=oracle), edges


def operands(graph: StoredGraph, self_loops: bool) -> Arrays:
    """The edges sorted by receiver, with a self-loop at the end of each row if so asked.

    The graphs have none of their own.
    """
    senders, degrees = np.asarray(graph.senders), np.diff(graph.row_offsets)
    if self_loops:
        nodes = np.arange(graph.num_nodes, dtype=senders.dtype)
        senders = np.insert(senders, graph.row_offsets[1:], nodes)
        degrees = degrees + 1
    receivers = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), degrees)
    return jax.device_put(
        {
            "senders": senders,
            "receivers": receivers,
            "degrees": degrees.astype(np.int32),
            "out_degrees": np.bincount(senders, minlength=graph.num_nodes).astype(np.int32),
        }
    )


def _model(params: Arrays, edges: Arrays, x: Array, *, layer: Layer, sliced: bool) -> Array:
    layers = layer_parameters(params)
    if "kernel_in" in params:  # AGNN, which has no activations between its layers
        x = jax.nn.relu(x @ params["kernel_in"] + params["bias_in"])
        for own in layers:
            x = layer(own, edges, x, sliced)
        return x @ params["kernel_out"] + params["bias_out"]
    for number, own in enumerate(layers):
        x = layer(own, edges, x, sliced)
        if number < len(layers) - 1:
            x = jax.nn.relu(x)
    return x


def gat(
    own: Arrays, edges: Arrays, x: Float[Array, "nodes in_features"], sliced: bool
) -> Float[Array, "nodes out_features"]:
    """The attention's heads side by side."""
    heads, features = own["source"].shape
    h = (x @ own["kernel"]).reshape(x.shape[0], heads, features)
    if sliced:

        def head(operands: tuple[Array, Array, Array]) -> Array:
            h, source, target = operands
            return attend(edges, h[:, None], source[None], target[None], sliced)[:, 0]

        # Head after head, so that numbers of the edges are there for one alone; backward, too.
        operands = (jnp.moveaxis(h, 1, 0), own["source"], own["target"])
        out = jnp.moveaxis(jax.lax.map(jax.checkpoint(head), operands), 0, 1)
    else:
        out = attend(edges, h, own["source"], own["target"], sliced)
    return out.reshape(x.shape[0], heads * features) + own["bias"]


def attend(
    edges: Arrays,
    h: Float[Array, "nodes heads features"],
    source: Float[Array, "heads features"],
    target: Float[Array, "heads features"],
    sliced: bool,
) -> Float[Array, "nodes heads features"]:
    """The attention by scores that are sums over the two ends."""
    senders, receivers = edges["senders"], edges["receivers"]
    at_senders, at_receivers = ((h * vector).sum(axis=-1) for vector in (source, target))
    scores = jax.nn.leaky_relu(at_senders[senders] + at_receivers[receivers], 0.2)
    return average(edges, h, scores, sliced)


def gatv2(
    own: Arrays, edges: Arrays, x: Float[Array, "nodes in_features"], sliced: bool
) -> Float[Array, "nodes out_features"]:
    """GATv2's heads side by side."""
    heads, features = own["vector"].shape

    def rows(side: str) -> Array:
        return (x @ own[side] + own[f"{side}_shift"]).reshape(x.shape[0], heads, features)

    left, right = rows("left"), rows("right")
    senders, receivers = edges["senders"], edges["receivers"]

    def scores(left: Array, right: Array, vector: Array) -> Array:
        both = left[senders] + right[receivers]
        return (jax.nn.leaky_relu(both, 0.2) * vector).sum(axis=-1)

    if sliced:

        def head(operands: tuple[Array, Array, Array]) -> Array:
            left, right, vector = operands  # [nodes, features], [features]
            total = _by_columns(scores, edges, left, right, vector)
            return average(edges, left[:, None], total[:, None], sliced)[:, 0]

        both = (jnp.moveaxis(rows, 1, 0) for rows in (left, right))
        out = jax.lax.map(jax.checkpoint(head), (*both, own["vector"]))
        out = jnp.moveaxis(out, 0, 1)
    else:
        out = average(edges, left, scores(left, right, own["vector"]), sliced)
    return out.reshape(x.shape[0], heads * features) + own["bias"]


def agnn(
    own: Arrays, edges: Arrays, x: Float[Array, "nodes features"], sliced: bool
) -> Float[Array, "nodes features"]:
    """The average by the softmax of the cosines, which are products of rows made unit ones."""
    unit = x / jnp.sqrt(jnp.maximum((x**2).sum(axis=1, keepdims=True), 1e-24))

    def cosines(unit: Array) -> Array:
        return (unit[edges["senders"]] * unit[edges["receivers"]]).sum(axis=-1)

    scores = own["beta"] * (_by_columns(cosines, edges, unit) if sliced else cosines(unit))
    return average(edges, x[:, None], scores[:, None], sliced)[:, 0]


def _by_columns(scores: Callable[..., Array], edges: Arrays, *features: Array) -> Array:
    """Scores that are sums over the features, from one feature of each array at a time."""

    def add(total: Array, column: tuple[Array, ...]) -> tuple[Array, None]:
        return total + scores(*(array[..., None] for array in column)), None

    total = jnp.zeros(edges["senders"].shape, features[0].dtype)
    columns = tuple(jnp.moveaxis(array, -1, 0) for array in features)
    return jax.lax.scan(jax.checkpoint(add), total, columns)[0]


def average(
    edges: Arrays,
    h: Float[Array, "nodes heads features"],
    scores: Float[Array, "edges heads"],
    sliced: bool,
) -> Float[Array, "nodes heads features"]:
    """The average by the softmax of scores; its sums are divided on the nodes, which spares a
    gather."""
    senders, receivers = edges["senders"], edges["receivers"]
    if not sliced:  # in float64 the exponentials of these scores, which are small, need no maximum
        largest = _reduce(jax.ops.segment_max, edges, jax.lax.stop_gradient(scores))
        scores = scores - largest[receivers]
    weights = jnp.exp(scores)

    def weighted_sum(h: Array) -> Array:
        return _reduce(jax.ops.segment_sum, edges, weights[:, :, None] * h[senders])

    out = by_slices(weighted_sum, h, _SLICE) if sliced else weighted_sum(h)
    return out / _reduce(jax.ops.segment_sum, edges, weights)[:, :, None]


def gat_on_edges(
    own: Arrays, edges: Arrays, x: Float[Array, "nodes in_features"], sliced: bool
) -> Float[Array, "nodes out_features"]:
    """`gat` with its scores on the edges, as its formula has them: of `[h_j, h_i]`."""
    del sliced
    heads, features = own["source"].shape
    h = (x @ own["kernel"]).reshape(x.shape[0], heads, features)
    at_senders, receivers = h[edges["senders"]], edges["receivers"]
    rows = jnp.concatenate([at_senders, h[receivers]], axis=2)
    vector = jnp.concatenate([own["source"], own["target"]], axis=1)
    scores = jax.nn.leaky_relu((rows * vector).sum(axis=2), 0.2)
    largest = _reduce(jax.ops.segment_max, edges, jax.lax.stop_gradient(scores))
    weights = jnp.exp(scores - largest[receivers])
    weights = weights / _reduce(jax.ops.segment_sum, edges, weights)[receivers]
    out = _reduce(jax.ops.segment_sum, edges, weights[:, :, None] * at_senders)
    return out.reshape(x.shape[0], heads * features) + own["bias"]


def edge_conv(
    own: Arrays, edges: Arrays, x: Float[Array, "nodes in_features"], sliced: bool
) -> Float[Array, "nodes out_features"]:
    """The maximum over the edges of a product of `[x_i, x_j - x_i]`."""
    del sliced
    at_receivers = x[edges["receivers"]]
    rows = jnp.concatenate([at_receivers, x[edges["senders"]] - at_receivers], axis=1)
    return _maximum(edges, rows @ own["kernel"] + own["bias"])


def edge_conv_on_nodes(
    own: Arrays, edges: Arrays, x: Float[Array, "nodes in_features"], sliced: bool
) -> Float[Array, "nodes out_features"]:
    """The same with the products on the nodes: `x_j W_2` by edges, `x_i (W_1 - W_2) + b` not."""
    first, second = jnp.split(own["kernel"], 2)

    def maximum(theta: Array) -> Array:
        return _maximum(edges, theta[edges["senders"]])

    theta = x @ second
    out = by_slices(maximum, theta, _SLICE) if sliced else maximum(theta)
    return jnp.where(edges["degrees"][:, None] > 0, out + x @ (first - second) + own["bias"], 0)


def monet(
    own: Arrays, edges: Arrays, x: Float[Array, "nodes in_features"], sliced: bool
) -> Float[Array, "nodes out_features"]:
    """The mean over the edges of the kernels' products, by Gaussians of the ends' degrees."""
    senders, receivers = edges["senders"], edges["receivers"]
    kernels, features = own["mu"].shape[0], own["bias"].shape[0]
    degrees = edges["degrees"][receivers], edges["out_degrees"][senders]
    ends = jax.lax.rsqrt(jnp.stack(degrees, axis=1).astype(x.dtype))
    places = jnp.tanh(ends @ own["slope"] + own["shift"])
    squares = (places[:, None] - own["mu"]) ** 2 / (1e-15 + own["sigma"] ** 2)
    weights = jnp.exp(-0.5 * squares.sum(axis=-1))
    h = (x @ own["mixture"]).reshape(x.shape[0], kernels, features)

    def weighted_sum(h: Array) -> Array:
        return _reduce(jax.ops.segment_sum, edges, (weights[:, :, None] * h[senders]).sum(axis=1))

    def weighted_sums(h: Array) -> Array:  # with an axis for the kernels, as `by_slices` has it
        return weighted_sum(h)[:, None]

    out = by_slices(weighted_sums, h, _SLICE)[:, 0] if sliced else weighted_sum(h)
    degree = jnp.maximum(edges["degrees"], 1).astype(x.dtype)[:, None]
    return out / degree + x @ own["root"] + own["bias"]


def _maximum(edges: Arrays, rows: Array) -> Array:
    """Of each node's rows; 0 for one without."""
    largest = _reduce(jax.ops.segment_max, edges, rows)
    return jnp.where(edges["degrees"][:, None] > 0, largest, 0)


def _reduce(operation: Callable[..., Any], edges: Arrays, rows: Array) -> Array:
    nodes = edges["degrees"].shape[0]
    return operation(rows, edges["receivers"], nodes, indices_are_sorted=True)


_LAYERS: dict[str, Layer] = {
    "gat": gat,
    "gatv2": gatv2,
    "agnn": agnn,
    "edgeconv": edge_conv,
    "monet": monet,
}
