"""What `TrainConfig.check` refuses: options out of range, and options that do not go together."""

from __future__ import annotations

import dataclasses
import math
import os
import reprlib
from typing import TYPE_CHECKING

from jaxgnn._core.text import printable
from jaxgnn.train.settings.options import (
    CHOICES,
    OF_GRAPHS,
    OF_LINKS,
    OF_MINI_BATCHES,
    RANGES,
    ConfigError,
    option,
)

if TYPE_CHECKING:
    from jaxgnn.train.settings.config import TrainConfig

_PATHS = ("dataset", "run_directory", "resume", "profile")


def check(config: TrainConfig) -> None:
    """Refuses options that are out of range, or do not go together.

    Raises:
        ConfigError: naming the first of them.
    """
    _check_types(config)
    _check_values(config)
    _check_maxk(config)
    _check_sample(config)
    _check_batches(config)
    _check_links(config)
    _check_devices(config)
    _check_graphs(config)
    _check_edge_weights(config)
    if config.undirected and config.task != "node":
        raise ConfigError(f"--undirected: expected --task node with it, got --task {config.task}")


def _is_default(config: TrainConfig, name: str) -> bool:
    return getattr(config, name) == getattr(type(config), name)


def _check_types(config: TrainConfig) -> None:
    """Of the options whose values are not checked further: those checks include the type."""
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if name in RANGES or name in CHOICES or name == "num_neighbors":
            continue
        if value is None and field.default is None:
            continue
        if name in ("processes", "process"):
            fits, expected = type(value) is int, "an integer or None"
        elif field.type == "bool":
            fits, expected = type(value) is bool, "True or False"
        elif name in _PATHS:
            fits, expected = isinstance(value, str | os.PathLike), "a path"
        else:
            fits, expected = isinstance(value, str), "a string"
        if not fits:
            got = printable(reprlib.repr(value))
            raise ConfigError(f"{option(name)}: expected {expected}, got {got}")


def _check_values(config: TrainConfig) -> None:
    for name, (low, high, expected) in RANGES.items():
        value = getattr(config, name)
        kinds = int if "integer" in expected else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            got = printable(reprlib.repr(value))
            raise ConfigError(f"{option(name)}: expected {expected}, got {got}")
        # In this order: an integer beyond every float is out of every range of integers.
        if not (low <= value <= high and (isinstance(value, int) or math.isfinite(value))):
            got = reprlib.repr(value)
            raise ConfigError(f"{option(name)}: expected {expected}, got {got}")
    for name, kind in CHOICES.items():
        value = getattr(config, name)
        if not isinstance(value, str) or value not in kind:
            raise ConfigError(f"{option(name)}: expected one of {', '.join(kind)}, got {value!r}")


def _check_stages(config: TrainConfig) -> None:
    if not config.anneal_stages:
        return
    if not config.anneal_from:
        raise ConfigError("--anneal-stages: expected --anneal-from with it, got none")
    if config.task != "node":
        raise ConfigError(f"--anneal-stages: expected --task node, got {config.task}")
    if config.epochs <= config.anneal_epochs:
        raise ConfigError(
            f"--anneal-stages: expected --epochs above --anneal-epochs, {config.anneal_epochs}, "
            f"got {config.epochs}"
        )


def _check_maxk(config: TrainConfig) -> None:
    if config.activation == "maxk" and config.k > config.hidden:
        raise ConfigError(f"--k: expected at most --hidden, {config.hidden}, got {config.k}")
    if config.anneal_from and not config.k <= config.anneal_from <= config.hidden:
        raise ConfigError(
            f"--anneal-from: expected 0 or a number from --k, {config.k}, to --hidden, "
            f"{config.hidden}, got {config.anneal_from}"
        )
    if config.anneal_from and not config.k:
        raise ConfigError("--anneal-from: expected a number --k with it, got auto")
    if not config.k and config.head_k < 0:
        raise ConfigError("--head-k: expected a number with --k auto, got auto")
    for name in ("k_epochs", "k_tolerance"):
        if config.k and config.head_k >= 0 and not _is_default(config, name):
            got = f"{config.k} and {config.head_k}"
            raise ConfigError(
                f"{option(name)}: expected --k auto or --head-k auto with it, got {got}"
            )
    for name in ("k", "anneal_from", "packed"):
        if config.activation != "maxk" and not _is_default(config, name):
            raise ConfigError(
                f"{option(name)}: expected --activation maxk with it, got --activation "
                f"{config.activation}"
            )
    if not config.anneal_from and not _is_default(config, "anneal_epochs"):
        raise ConfigError("--anneal-epochs: expected --anneal-from with it, got none")
    _check_stages(config)
    if config.packed and (config.hidden > 1024 or config.dtype == "float64"):
        raise ConfigError(
            f"--packed: expected --hidden of at most 1024 and 32 or 16 bits, got {config.hidden} "
            f"and {config.dtype}"
        )


def _check_sample(config: TrainConfig) -> None:
    if not config.samples:
        for name in ("strategy", "fixed_sample"):
            if not _is_default(config, name):
                raise ConfigError(
                    f"{option(name)}: expected --sample-size or --sample-rate with it, got none"
                )
    elif config.strategy == "dropedge" and (config.sample_size or not config.sample_rate):
        raise ConfigError(
            "--strategy: dropedge expected --sample-rate, the share of edges kept, without "
            f"--sample-size, got {config.sample_rate} and {config.sample_size}"
        )
    elif config.strategy == "random" and not config.sample_size:
        raise ConfigError("--strategy: random expected --sample-size with it, got none")
    if config.fixed_sample and config.strategy in ("random", "dropedge"):
        raise ConfigError(
            f"--fixed-sample: expected --strategy bucket, fastrand or stride with it, got "
            f"--strategy {config.strategy}"
        )


def _check_batches(config: TrainConfig) -> None:
    neighbors = config.neighbors
    if not neighbors:
        for name in OF_MINI_BATCHES:
            used = config.task == "graph" and name in ("batch_size", "checkpoint_steps")
            if not used and not _is_default(config, name):
                raise ConfigError(f"{option(name)}: expected --num-neighbors with it, got none")
        return
    if len(neighbors) != config.layers:
        raise ConfigError(
            f"--num-neighbors: expected one for each of {config.layers} layers, got "
            f"{len(neighbors)}"
        )
    if config.replace and config.method != "uniform":
        raise ConfigError(f"--method: expected uniform with --replace, got {config.method}")
    if config.features == "embedding":
        raise ConfigError("--features: expected the data's with --num-neighbors, got embedding")
    if config.samples:
        raise ConfigError(
            "--num-neighbors: expected no --sample-size and no --sample-rate with it, got "
            f"{config.sample_size} and {config.sample_rate}"
        )


def _check_links(config: TrainConfig) -> None:
    if config.task != "link":
        for name in OF_LINKS:
            if not _is_default(config, name):
                raise ConfigError(
                    f"{option(name)}: expected --task link with it, got --task {config.task}"
                )
        return
    if config.val_share + config.test_share >= 1:
        raise ConfigError(
            "--val-share, --test-share: expected shares that sum to less than 1, got "
            f"{config.val_share} and {config.test_share}"
        )
    if config.num_neighbors:
        raise ConfigError(
            f"--num-neighbors: expected --task node with it, got {config.num_neighbors!r}"
        )
    if config.decay_layers != "all":
        raise ConfigError(
            f"--decay-layers: expected all with --task link, got {config.decay_layers}"
        )


def _check_devices(config: TrainConfig) -> None:
    count = config.devices
    if count != "all" and not (count.isdecimal() and len(count) < 10 and int(count) > 0):
        got = printable(reprlib.repr(count))
        raise ConfigError(f"--devices: expected a positive integer or all, got {got}")
    _check_processes(config)
    if not config.over_devices:
        if config.shard != "auto":
            raise ConfigError(f"--shard: expected --devices with it, got {config.shard}")
        return
    name = "--distributed: expected none" if config.distributed else "--devices: expected 1"
    got = "" if config.distributed else f", got {printable(count)}"
    if config.task != "node":
        raise ConfigError(f"{name} with --task {config.task}{got}")
    if not config.num_neighbors:
        return
    if config.shard != "auto":
        raise ConfigError(
            f"--shard: expected none with --num-neighbors, whose seeds are split, got "
            f"{config.shard}"
        )


def _check_processes(config: TrainConfig) -> None:
    given = {name: getattr(config, name) for name in ("coordinator", "processes", "process")}
    for name, value in given.items():
        if value is not None and not config.distributed:
            raise ConfigError(f"{option(name)}: expected --distributed with it, got none")
    if not config.distributed:
        if not _is_default(config, "stall_timeout"):
            raise ConfigError("--stall-timeout: expected --distributed with it, got none")
        return
    if config.devices not in ("1", "all"):
        raise ConfigError(
            f"--devices: expected all with --distributed, got {printable(config.devices)}"
        )
    # Each process would choose by its own times.
    if config.activation == "maxk" and not config.k:
        raise ConfigError("--k: expected a number with --distributed, got auto")
    if config.head_k < 0:
        raise ConfigError("--head-k: expected a number with --distributed, got auto")
    missing = [option(name) for name, value in given.items() if value is None]
    if config.coordinator is None or config.processes is None or config.process is None:
        if len(missing) < len(given):
            raise ConfigError(f"{missing[0]}: expected one with the others of them, got none")
        return
    host, _, port = config.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port[:9]) < 1 << 16:
        got = printable(reprlib.repr(config.coordinator))
        raise ConfigError(f"--coordinator: expected HOST:PORT, got {got}")
    if config.processes < 1:
        raise ConfigError(f"--processes: expected a positive integer, got {config.processes}")
    if not 0 <= config.process < config.processes:
        raise ConfigError(f"--process: expected 0 to {config.processes - 1}, got {config.process}")


def _check_edge_weights(config: TrainConfig) -> None:
    if not config.edge_weights:
        return
    if config.task != "node":
        raise ConfigError(f"--edge-weights: expected --task node with it, got --task {config.task}")


def _check_graphs(config: TrainConfig) -> None:
    if config.task != "graph":
        if config.features == "categories":
            raise ConfigError(
                f"--features: expected --task graph with categories, got --task {config.task}"
            )
        for name in OF_GRAPHS:
            if not _is_default(config, name):
                raise ConfigError(
                    f"{option(name)}: expected --task graph with it, got --task {config.task}"
                )
        for name, value in (("norm", "graph"), ("model", "pna")):
            if getattr(config, name) == value:
                raise ConfigError(
                    f"{option(name)}: expected --task graph with {value}, got --task {config.task}"
                )
        return
    if config.num_neighbors:
        raise ConfigError(
            f"--num-neighbors: expected --task node with it, got {config.num_neighbors!r}"
        )
    if config.features == "embedding":
        raise ConfigError("--features: expected the data's with --task graph, got embedding")
    if config.decay_layers != "all":
        raise ConfigError(
            f"--decay-layers: expected all with --task graph, got {config.decay_layers}"
        )
