"""The settings of a saved run, read back and compared."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any

from jaxgnn._core.text import printable
from jaxgnn.train.settings.config import PRESENTATION, TrainConfig
from jaxgnn.train.settings.options import OF_GRAPHS, OF_LINKS, ConfigError, option

# Options that runs of older versions lack: those have the defaults.
_LATER = (
    "sample_size",
    "sample_rate",
    "strategy",
    "fixed_sample",
    "num_neighbors",
    "batch_size",
    "replace",
    "method",
    "deduplicate",
    "task",
    *OF_LINKS,
    *OF_GRAPHS,
    "features_on",
    "evaluation_batch_size",
    "kernel_size",
    "dim",
    "train_eps",
    "recompute",
    "head_k",
    "anneal_stages",
    "undirected",
    "edge_weights",
)

# Options that may be raised on resume: the epochs before are the same.
_EXTENDABLE = ("epochs", "patience")


def check_same_settings(saved: dict[str, Any], given: TrainConfig) -> None:
    """Refuses to resume a run with settings other than its own; a run may be made longer.

    Raises:
        ConfigError: naming the options that differ.
    """
    saved = _with_later(saved)
    settings = given.settings()
    differing = [
        f"{option(name)} {printable(settings[name])} (the run's: {printable(saved[name])})"
        for name in settings
        if name in saved and settings[name] != saved[name] and name not in _EXTENDABLE
    ]
    if differing:
        raise ConfigError(
            f"--resume: a run continues with its own settings, got {', '.join(differing)}"
        )
    # A shorter patience might have ended the run before.
    patience = saved.get("patience", given.patience)
    if given.patience and (not patience or given.patience < patience):
        expected = f"0 or at least the run's, {patience}" if patience else "the run's, 0"
        raise ConfigError(f"--patience: expected {expected}, got {given.patience}")


def from_settings(saved: dict[str, Any]) -> TrainConfig:
    """The configuration of a saved `settings()`.

    Raises:
        ConfigError: missing, unknown or ill-typed settings.
    """
    fields = {
        field.name: field
        for field in dataclasses.fields(TrainConfig)
        if field.name not in PRESENTATION
    }
    saved = _with_later(saved)
    for what, names in (("unknown", set(saved) - set(fields)), ("no", set(fields) - set(saved))):
        if names:
            listed = printable(reprlib.repr(sorted(names)))
            raise ConfigError(f"config.json: {what} settings {listed}")
    for name, value in saved.items():
        kind = type(fields[name].default)
        accepted = (int, float) if kind is float else (kind,)
        if type(value) not in accepted or (isinstance(value, str) and "\0" in value):
            got = printable(reprlib.repr(value))
            raise ConfigError(f"config.json: {name}: expected {kind.__name__}, got {got}")
    return TrainConfig(**saved).check()


def _with_later(saved: dict[str, Any]) -> dict[str, Any]:
    """Saved settings with those that came later, which an older run did without."""
    return {name: getattr(TrainConfig, name) for name in _LATER} | saved
