"""A configuration's optimizer."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jaxtyping import Array, Int

from jaxgnn.train.settings.config import TrainConfig, check_config


def build_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    r"""Adam with weight decay.

    With L2, $g \leftarrow g + \lambda \theta$ before Adam's moments, biases included, as
    `torch.optim.Adam(weight_decay=...)`; decoupled, AdamW (Loshchilov and Hutter, 2019).

    Raises:
        TypeError: `config` is no `TrainConfig`.
    """
    check_config(config)
    mask = _first_layer if config.decay_layers == "first" else None
    if config.decay == "decoupled":
        return optax.adamw(config.learning_rate, weight_decay=config.weight_decay, mask=mask)
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay, mask), optax.adam(config.learning_rate)
    )


def _first_layer(params: Any) -> Any:
    """Marks the parameters of the first of the layers: the input layer's, or without one those
    whose path's first index is 0."""
    inputs = jax.tree_util.tree_map_with_path(
        lambda path, _: any(getattr(key, "key", None) == "linear_in" for key in path), params
    )
    if any(jax.tree.leaves(inputs)):
        return inputs

    def is_first(path, _):
        for key in path:
            index = getattr(key, "key", getattr(key, "idx", None))
            if isinstance(index, int) or (isinstance(index, str) and index.isdigit()):
                return int(index) == 0
        return False

    return jax.tree_util.tree_map_with_path(is_first, params)


def steps_done(optimizer: Any) -> Int[Array, ""]:
    """The steps that Adam, in the state of `build_optimizer`, has counted."""
    return optax.tree_utils.tree_get(optimizer, "count")
