"""jaxgnn's models of the training steps, as functions of the benchmarks' parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from benchmarks.baselines.jax_models import Apply
from benchmarks.harness import plan
from benchmarks.harness.setting import Arrays, Setting
from jaxgnn import build_info, nn

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


class _EdgeConvs(nnx.Module):
    """`nn.EdgeConvNet` of hidden rows that have different widths."""

    def __init__(self, widths: list[int]) -> None:
        rngs = nnx.Rngs(0)
        self.convs = nnx.List(
            [nn.EdgeConv(before, after, rngs=rngs) for before, after in itertools.pairwise(widths)]
        )

    def __call__(self, graph: Any, x: Array) -> Array:
        for conv in self.convs[:-1]:
            x = jax.nn.relu(conv(graph, x))
        return self.convs[-1](graph, x)


def _module(setting: Setting, widths: list[int]) -> nnx.Module:
    options: dict[str, Any] = {}
    if setting.heads is not None:
        options |= {"heads": setting.heads, "out_heads": 1}
    if setting.regularized:
        options |= {"norm": "layer", "dropout": plan.DROPOUT_RATE}
    if setting.input_layer:
        options["jumping"] = "last"
    if setting.dim is not None:
        options |= {"dim": setting.dim, "kernel_size": setting.kernel_size}
    if len(set(widths[1:-1])) > 1:
        return _EdgeConvs(widths)
    return _MODELS[setting.model](
        widths[0],
        widths[1],
        widths[-1],
        num_layers=len(widths) - (3 if setting.input_layer else 1),
        activation=jax.nn.relu if setting.k is None else nn.MaxK(setting.k),
        input_layer=setting.input_layer,
        **({"recompute": True} if setting.recompute else {}),
        dtype=None if setting.dtype in ("float32", "float64") else jnp.dtype(setting.dtype),
        rngs=nnx.Rngs(0),
        **options,
    )


def _variables(state: Any) -> dict[Any, Any]:
    return {path: old for path, old in nnx.to_flat_state(state) if old is not None}


def initial_parameters(setting: Setting, widths: list[int]) -> Arrays:
    """The model's own by their paths, with noise, so that no bias is 0 and no scale 1."""
    rng = np.random.default_rng(6)
    arrays = {}
    for path, old in _variables(nnx.split(_module(setting, widths))[1]).items():
        if isinstance(old, nnx.Param):
            wide = path[-1] == "kernel" or str(path[-1]).startswith("attention")
            bound = (6 / sum(old.shape)) ** 0.5 if wide else 4.0 if path[-1] == "beta" else 0.2
            noise = bound * (2 * rng.random(old.shape) - 1)
            arrays[".".join(map(str, path))] = np.asarray(old[...]) + noise.astype(np.float32)
    return arrays


def model_of(setting: Setting, widths: list[int]) -> Apply:
    """The model as a function of parameters, the graph, features and dropout's key."""
    info = build_info()
    if not (info.cpu if jax.default_backend() == "cpu" else info.cuda):
        raise RuntimeError(f"no kernels for {jax.default_backend()}: {info}")
    module = _module(setting, widths)
    module.train()
    training, state = nnx.split(module)
    module.eval()
    inference, _ = nnx.split(module)
    variables = _variables(state)
    names = {path: ".".join(map(str, path)) for path in variables}

    def apply(params: Arrays, structure: Any, x: Array, key: Any = None) -> Array:
        def variable(path: Any, old: Any) -> Any:
            if isinstance(old, nnx.Param):
                return old.replace(params[names[path]])
            return old.replace(key) if isinstance(old, nnx.RngKey) and key is not None else old

        flat = [(path, variable(path, old)) for path, old in variables.items()]
        definition = inference if key is None else training
        return nnx.merge(definition, nnx.from_flat_state(flat), copy=True)(structure, x)

    return apply
