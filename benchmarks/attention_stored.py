"""The models of the suite `attention` out of jaxgnn's operations on edges, for its part `ablation`.

Products are on the nodes and sums over neighbours in one kernel, as in the fused operations; what
these compute once more in backward is stored here: GAT's scores and weights of edges and heads,
EdgeConv's messages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from benchmarks.training import Setting
from benchmarks.training_plain import Apply, Arrays, layer_parameters
from jaxgnn import Graph, gather_edges, segment_reduce
from jaxgnn.ops._attention.gat_attention import attention_arguments
from jaxgnn.ops._attention.gat_rule import composition

Layer = Callable[[Arrays, Graph, Array], Array]


def model_of(setting: Setting) -> Apply:
    """The model of parameters, graph and features."""
    return functools.partial(_model, layer=LAYERS[setting.model])


def _model(params: Arrays, graph: Graph, x: Array, *, layer: Layer) -> Array:
    layers = layer_parameters(params)
    for number, own in enumerate(layers):
        x = layer(own, graph, x)
        if number < len(layers) - 1:
            x = jax.nn.relu(x)
    return x


def gat(
    own: Arrays, graph: Graph, x: Float[Array, "nodes in_features"]
) -> Float[Array, "nodes out_features"]:
    """`gat_attention`'s composition."""
    heads, features = own["source"].shape
    h = (x @ own["kernel"]).reshape(x.shape[0], heads, features)
    source, target = ((h * own[end]).sum(axis=-1) for end in ("source", "target"))
    how, operands = attention_arguments(graph, h, source, target, self_loops=True)
    return composition(how, operands, None).reshape(x.shape[0], heads * features) + own["bias"]


def edge_conv(
    own: Arrays, graph: Graph, x: Float[Array, "nodes in_features"]
) -> Float[Array, "nodes out_features"]:
    """The messages, then their maximum."""
    first, second = jnp.split(own["kernel"], 2)
    theta, phi = x @ second, x @ (first - second) + own["bias"]
    return segment_reduce(graph, gather_edges(graph, theta, phi, "add"), "max")


LAYERS: dict[str, Layer] = {"gat": gat, "edgeconv": edge_conv}
