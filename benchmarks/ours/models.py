"""jaxgnn's models of the training steps, as functions of the benchmarks' parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from benchmarks.baselines.jax_models import Apply, layer_parameters
from benchmarks.harness import plan
from benchmarks.harness.steps import Arrays, Setting, layers_in
from jaxgnn import (
    Graph,
    build_info,
    gather_edges,
    nn,
    segment_reduce,
    segment_softmax,
    spmm,
    transform,
)

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
_PLACES: dict[str, dict[str, str]] = {
    "sage": {
        "neighbour": "linear_neighbours.kernel",
        "bias": "linear_neighbours.bias",
        "root": "linear_root.kernel",
    },
    "gcn": {"kernel": "linear.kernel", "bias": "linear.bias"},
    "gin": {
        "first": "nn.linears.0.kernel",
        "first_bias": "nn.linears.0.bias",
        "inner_scale": "nn.norms.0.scale",
        "inner_shift": "nn.norms.0.bias",
        "second": "nn.linears.1.kernel",
        "bias": "nn.linears.1.bias",
    },
    "gat": {
        "kernel": "linear.kernel",
        "source": "attention_senders",
        "target": "attention_receivers",
        "bias": "bias",
    },
    "gatv2": {
        "left": "linear_senders.kernel",
        "left_shift": "linear_senders.bias",
        "right": "linear_receivers.kernel",
        "right_shift": "linear_receivers.bias",
        "vector": "attention",
        "bias": "bias",
    },
    "agnn": {"beta": "beta"},
    "edgeconv": {"kernel": "linear.kernel", "bias": "linear.bias"},
    "monet": {
        "mixture": "conv.linear.kernel",
        "root": "conv.linear_root.kernel",
        "mu": "conv.mu",
        "sigma": "conv.sigma",
        "slope": "linear.kernel",
        "shift": "linear.bias",
        "bias": "conv.bias",
    },
}
_ENDS = {
    "kernel_in": "linear_in.kernel",
    "bias_in": "linear_in.bias",
    "kernel_out": "linear.kernel",
    "bias_out": "linear.bias",
}


def model_of(setting: Setting, parameters: Arrays, widths: list[int]) -> Apply:
    """The model as a function of parameters, the graph, features and dropout's key."""
    info = build_info()
    if not (info.cpu if jax.default_backend() == "cpu" else info.cuda):
        raise RuntimeError(f"no kernels for {jax.default_backend()}: {info}")
    if setting.impl == plan.STORED:
        return functools.partial(_composed, _COMPOSED[setting.model])
    layers = layers_in(parameters)
    options: dict[str, Any] = {}
    if setting.heads is not None:
        options |= {"heads": setting.heads, "out_heads": 1}
    if setting.regularized:
        options |= {"norm": "layer", "dropout": plan.DROPOUT_RATE}
    if setting.input_layer:
        options["jumping"] = "last"
    module = _MODELS[setting.model](
        widths[0],
        widths[1],
        widths[-1],
        layers,
        activation=jax.nn.relu if setting.k is None else nn.MaxK(setting.k),
        input_layer=setting.input_layer,
        dtype=None if setting.dtype == "float32" else jnp.dtype(setting.dtype),
        rngs=nnx.Rngs(0),
        **options,
    )
    module.train()
    training, state = nnx.split(module)
    module.eval()
    inference, _ = nnx.split(module)
    variables = {path: old for path, old in nnx.to_flat_state(state) if old is not None}
    names = {place: name for name, place in _ENDS.items() if name in parameters}
    for layer in range(layers):
        for kind, place in _PLACES[setting.model].items():
            names[f"convs.{layer}.{place}"] = f"{kind}_{layer}"
        if f"norm_scale_{layer}" in parameters:
            names[f"norms.{layer}.scale"] = f"norm_scale_{layer}"
            names[f"norms.{layer}.bias"] = f"norm_shift_{layer}"
    places = {path: ".".join(map(str, path)) for path in variables}
    found = {places[path] for path, old in variables.items() if isinstance(old, nnx.Param)}
    if names.keys() != found or set(names.values()) != parameters.keys():
        raise ValueError(f"parameters: expected {sorted(names)}, got {sorted(found)}")

    def apply(params: Arrays, structure: Any, x: Array, key: Any = None) -> Array:
        def variable(path: Any, old: Any) -> Any:
            if places[path] in names:
                return old.replace(params[names[places[path]]])
            return old.replace(key) if isinstance(old, nnx.RngKey) and key is not None else old

        flat = [(path, variable(path, old)) for path, old in variables.items()]
        definition = inference if key is None else training
        return nnx.merge(definition, nnx.from_flat_state(flat), copy=True)(structure, x)

    return apply


# Models composed of operations on edges, whose values are stored for the backward pass: the
# ablation's step before fusion. Projections are on the nodes, sums over neighbours in one kernel.


def with_self_loops(graph: Graph) -> Graph:
    """The graph of the composed attention."""
    return transform.add_remaining_self_loops(graph)[0]


def _composed(
    layer: Callable[[Arrays, Graph, Array], Array],
    params: Arrays,
    graph: Graph,
    x: Array,
    key: Any = None,
) -> Array:
    del key
    layers = layer_parameters(params)
    for number, own in enumerate(layers):
        x = layer(own, graph, x)
        if number < len(layers) - 1:
            x = jax.nn.relu(x)
    return x


def composed_gat(own: Arrays, graph: Graph, x: Array) -> Array:
    """Scores and weights of edges and heads are stored."""
    heads, features = own["source"].shape
    h = (x @ own["kernel"]).reshape(x.shape[0], heads, features)
    source, target = ((h * own[end]).sum(axis=-1) for end in ("source", "target"))
    scores = jax.nn.leaky_relu(gather_edges(graph, source, target, "add"), 0.2)
    out = spmm(graph, h, segment_softmax(graph, scores))
    return out.reshape(x.shape[0], heads * features) + own["bias"]


def composed_edge_conv(own: Arrays, graph: Graph, x: Array) -> Array:
    """Messages are stored."""
    first, second = jnp.split(own["kernel"], 2)
    theta, phi = x @ second, x @ (first - second) + own["bias"]
    return segment_reduce(graph, gather_edges(graph, theta, phi, "add"), "max")


_COMPOSED = {"gat": composed_gat, "edgeconv": composed_edge_conv}
