"""A configuration's model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from jaxgnn.nn import GAT, GCN, GIN, GNN, MODELS, GraphSAGE, MaxK, MoNet, PNAConv, SAGEEmbedding
from jaxgnn.train.settings.config import TrainConfig, check_config
from jaxgnn.train.settings.options import ConfigError, option

_SAMPLING = (GCN, GraphSAGE, SAGEEmbedding, GIN, MoNet)

# Not SAGEEmbedding: `jaxgnn embed`, which takes its matrices, has no weights.
_WEIGHTED = (GCN, GraphSAGE, GIN)

SAMPLING_MODELS = tuple(name for name, model in MODELS.items() if issubclass(model, _SAMPLING))
"""The models whose layers aggregate a sample of the edges if asked to."""

LOOP_MODELS = ("agnn", "gat", "gatv2")
"""The models whose layers put one self-loop at each node, in place of the graph's. `GCN` does so by
the degrees of the whole graph, where nodes are sampled."""

WEIGHTED_MODELS = tuple(name for name, model in MODELS.items() if issubclass(model, _WEIGHTED))
"""The models that a run trains with weights of the edges."""

EDGE_FEATURE_MODELS = (
    "gin",
    "pna",
    *(name for name, model in MODELS.items() if issubclass(model, GAT)),
)
"""The models whose layers take features of the edges if they are made for some."""

_OPTIONS_OF_MODELS = {
    "kernel_size": ("monet",),
    "dim": ("monet",),
    "train_eps": ("gin",),
    "head_k": ("gat", "transformer"),
}

_ACTIVATIONS = {"relu": jax.nn.relu, "elu": jax.nn.elu}


def build_model(
    config: TrainConfig,
    in_features: int,
    num_classes: int,
    rngs: nnx.Rngs,
    *,
    edge_dim: int | None = None,
    degree_histogram: Sequence[int] | None = None,
) -> GNN:
    """The configuration's model from `jaxgnn.nn.MODELS`, or a `GNN` of `PNAConv`.

    Args:
        config: the options.
        in_features, num_classes: widths of input and output.
        rngs: of the parameters and dropout.
        edge_dim: width of the edges' features, of `EDGE_FEATURE_MODELS`.
        degree_histogram: of the training graphs, which `pna` needs.

    Raises:
        TypeError: `config` is no `TrainConfig`.
        ConfigError: an unknown model, or an option that the model does not have.
    """
    check_config(config)
    is_pna = config.model == "pna" and degree_histogram is not None
    if config.model not in MODELS and not is_pna:
        raise ConfigError(
            f"--model: expected one of {', '.join(sorted(MODELS))}, got {config.model!r}"
        )
    if config.edge_weights and config.model not in WEIGHTED_MODELS:
        raise ConfigError(
            "--edge-weights: expected a model that takes weights of the edges "
            f"({', '.join(WEIGHTED_MODELS)}), got {config.model}"
        )
    model = GNN if is_pna else MODELS[config.model]
    arguments: dict[str, Any] = {
        "activation": build_activation(config),
        "input_layer": config.input_layer,
        "dropout": config.dropout,
        "input_dropout": config.input_dropout,
        "norm": None if config.norm == "none" else config.norm,
        "residual": config.residual,
        "recompute": config.recompute,
        "jumping": None if config.jumping == "none" else config.jumping,
    }
    if is_pna:
        arguments["conv"] = functools.partial(
            PNAConv,
            aggregators=("mean", "max", "min", "std"),
            scalers=("identity", "amplification", "attenuation"),
            degree_histogram=np.asarray(degree_histogram),
        )
    arguments |= _heads(config, issubclass(model, GAT))
    arguments |= _options_of_model(config)
    if edge_dim is not None:
        if config.samples:
            raise ConfigError(
                "--edge-features: expected none with --sample-size and --sample-rate, got auto"
            )
        arguments["edge_dim"] = edge_dim
    if config.samples:
        name = "sample_size" if config.sample_size else "sample_rate"
        check_samples(config.model, option(name))
        arguments["sample_size"] = config.sample_size or None
        arguments["sample_rate"] = config.sample_rate or None
        arguments["strategy"] = config.strategy
    return model(
        in_features,
        config.hidden,
        num_classes,
        num_layers=config.layers,
        dtype=jnp.dtype(config.dtype),
        param_dtype=param_dtype(config),
        rngs=rngs,
        **arguments,
    )


def _heads(config: TrainConfig, has_heads: bool) -> dict[str, Any]:
    """The arguments of attention heads, which other models refuse."""
    if has_heads:
        if config.hidden % config.heads:
            raise ConfigError(
                f"--heads: expected a divisor of --hidden, {config.hidden}, got {config.heads}"
            )
        return {"heads": config.heads, "out_heads": config.out_heads or config.heads}
    for name in ("heads", "out_heads"):
        value = getattr(config, name)
        if value != getattr(TrainConfig, name):
            raise ConfigError(f"{option(name)}: {config.model} has no attention heads, got {value}")
    return {}


def _options_of_model(config: TrainConfig) -> dict[str, Any]:
    """The arguments that some models alone have, which others refuse."""
    arguments = {}
    for name, owners in _OPTIONS_OF_MODELS.items():
        value = getattr(config, name)
        if config.model in owners:
            arguments[name] = value
        elif value != getattr(TrainConfig, name):
            raise ConfigError(
                f"{option(name)}: expected --model {' or '.join(owners)} with it, "
                f"got --model {config.model}"
            )
    if config.head_k < 0:
        raise ConfigError(
            "--head-k: expected a number, got auto: jaxgnn train --task node chooses one"
        )
    if config.head_k > config.hidden // config.heads:
        raise ConfigError(
            f"--head-k: expected at most the {config.hidden // config.heads} features of a head, "
            f"got {config.head_k}"
        )
    if "head_k" in arguments:
        arguments["head_k"] = config.head_k or None
    return arguments


def check_samples(model: str, name: str) -> None:
    """Refuses a model that cannot aggregate a part of the edges; `name` is what asked for it.

    Raises:
        ConfigError: it cannot.
    """
    if model not in SAMPLING_MODELS:
        listed = ", ".join(SAMPLING_MODELS)
        raise ConfigError(f"{name}: expected a model that samples edges ({listed}), got {model}")


def build_activation(config: TrainConfig) -> Callable[[Array], Array]:
    """The configuration's nonlinearity."""
    if config.activation != "maxk":
        return _ACTIVATIONS[config.activation]
    if config.k == 0:
        raise ConfigError("--k: expected a number, got auto: jaxgnn train --task node chooses one")
    # In stages each of them is a model of its own: this is the last one's.
    wide = 0 if config.anneal_stages else config.anneal_from
    return MaxK(wide or config.k, anneal=wide > 0, packed=config.packed)


def param_dtype(config: TrainConfig) -> Any:
    """The dtype of a configuration's parameters."""
    return jnp.dtype(jnp.float64 if config.dtype == "float64" else jnp.float32)
