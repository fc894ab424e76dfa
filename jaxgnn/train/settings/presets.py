"""Published configurations, one for each model."""

from __future__ import annotations

import dataclasses

from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError

_GCN = TrainConfig(
    model="gcn",
    hidden=16,
    dropout=0.5,
    input_dropout=0.5,
    learning_rate=0.01,
    weight_decay=5e-4,
    decay_layers="first",
    epochs=200,
    patience=0,
)
_GAT = TrainConfig(
    model="gat",
    hidden=64,
    heads=8,
    out_heads=1,
    activation="elu",
    dropout=0.6,
    input_dropout=0.6,
    learning_rate=0.005,
    weight_decay=5e-4,
    epochs=1000,
    patience=100,
)

PRESETS = {
    "gcn": _GCN,
    "gcn-pyg": dataclasses.replace(_GCN, input_dropout=0.0, decay_layers="all"),
    "sage": TrainConfig(
        model="sage", hidden=256, dropout=0.0, weight_decay=0.0, epochs=200, patience=0
    ),
    "sage_embedding": TrainConfig(
        model="sage_embedding", hidden=64, dropout=0.5, weight_decay=5e-4, epochs=200, patience=0
    ),
    "gin": TrainConfig(
        model="gin",
        layers=5,
        hidden=64,
        norm="batch",
        jumping="cat",
        dropout=0.5,
        weight_decay=0.0,
        epochs=200,
        patience=0,
    ),
    "gat": _GAT,
    "gatv2": dataclasses.replace(_GAT, model="gatv2"),
    "agnn": dataclasses.replace(_GCN, model="agnn", decay_layers="all"),
    "monet": dataclasses.replace(_GCN, model="monet", decay_layers="all"),
    "transformer": TrainConfig(
        model="transformer",
        layers=3,
        hidden=128,
        heads=2,
        norm="layer",
        dropout=0.3,
        learning_rate=1e-3,
        weight_decay=5e-4,
        epochs=500,
        patience=100,
    ),
    "edgeconv": TrainConfig(
        model="edgeconv",
        layers=4,
        hidden=64,
        norm="batch",
        jumping="cat",
        dropout=0.5,
        learning_rate=1e-3,
        weight_decay=1e-4,
        epochs=200,
        patience=0,
    ),
    "mlp": dataclasses.replace(_GCN, model="mlp"),
}
"""Configurations by name, which is that of the model (`"gcn-pyg"`: a second one of the GCN).

What each is from, its published score on Cora if there is one, and what differs from the
publication, is in `docs/training.md`.
"""


def preset(name: str, dataset: str) -> TrainConfig:
    """A published configuration for a dataset.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in PRESETS:
        raise ConfigError(f"--preset: expected one of {', '.join(sorted(PRESETS))}, got {name!r}")
    return dataclasses.replace(PRESETS[name], dataset=dataset)
