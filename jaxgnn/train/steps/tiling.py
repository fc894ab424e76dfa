"""Tiles for a training run's graph, where they pay within the run: see `Graph.with_tiles`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxgnn._core import ffi
from jaxgnn.graph import Graph
from jaxgnn.graph._layouts import tile_rule
from jaxgnn.graph._layouts.tiles import ROWS, Tiles
from jaxgnn.ops._attention import cosine_tiles
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.steps.sharded import SUMS, devices_of

# The least that `with_tiles` took on the host of the H200 for the graphs of the suite
# `tensor_core` (16 threads, 2026-11-25), a direction. Not measured here: of two equal runs both
# have tiles, or none.
_SECONDS_PER_EDGE = 20e-9
# Of the rows' time what tiles saved at best of all graphs measured (docs/kernels/tiles.md): of sums
# and of attention by cosines.
_MOST_SAVED, _MOST_OF_COSINES = 0.5, 0.4
_LEAST_GAIN = 0.05  # of the rows' time: less is within what the estimate is off by
_ATTENTION = "agnn"  # the model whose layers are attention by cosines
# An epoch's calls of a layer that tiles serve: training and validation forward, and of sums the
# backward pass, over the transpose.
_FORWARD, _BACKWARD = (False, 2), (True, 1)


def tiled(graph: Graph, config: TrainConfig) -> Graph:
    """The graph with tiles if a GPU's run over it gains by them, else the graph as it is.

    Tiles take memory and host time. They are made where they could be worth that time within the
    run's epochs, and kept where by estimate what they serve takes at least 5 % less: the layers'
    sums, or the forward passes of AGNN's attention.
    """
    if jax.default_backend() != "gpu" or ffi.cpu_module is None or not can_pay(graph, config):
        return graph
    tiled = graph.with_tiles()
    return tiled if pays(tiled, config) else graph


def serves(config: TrainConfig) -> bool:
    """Whether a run's layers are sums or means of all edges, of dense rows and without weights, on
    one device or by features over several; or attention by cosines that takes tiles."""
    if config.edge_weights:  # weighted sums gain a few percent, in float32 alone
        return False
    if config.activation == "maxk" or config.num_neighbors or config.samples:
        return False
    if config.over_devices and config.shard not in ("features", "auto"):  # parts have none
        return False
    if config.model == _ATTENTION:
        return not config.over_devices and cosine_tiles.serves_heads(config.hidden, config.dtype)
    return config.model in SUMS


def can_pay(graph: Graph, config: TrainConfig) -> bool:
    """Whether the best tiles that a graph of this size could have repay what making them takes."""
    if not serves(config) or not 0 < graph.num_edges < 1 << 31:
        return False
    saved, most = 0.0, _MOST_OF_COSINES if config.model == _ATTENTION else _MOST_SAVED
    for transpose, calls in _calls(config):
        rows = graph.num_senders if transpose else graph.num_receivers
        best = estimate(_best_tiles(rows, graph.num_edges), config)
        saved += calls * min(best.rows - best.tiles, most * best.rows)
    built = (1 if graph.symmetric else 2) * graph.num_edges * _SECONDS_PER_EDGE
    return config.epochs * config.layers * saved > built


def pays(graph: Graph, config: TrainConfig) -> bool:
    """Whether a graph keeps the tiles that it has."""
    return gain(graph, config) >= _LEAST_GAIN


def gain(graph: Graph, config: TrainConfig) -> float:
    """The share of the rows' time that a graph's tiles save, by estimate, at the hidden width: of
    what they serve."""
    rows = saved = 0.0
    for transpose, calls in _calls(config):
        tiles = graph.transpose_tiles if transpose else graph.tiles
        assert tiles is not None
        guess = estimate(tiles, config)
        rows += calls * guess.rows
        saved += calls * max(guess.rows - guess.tiles, 0.0)
    return saved / rows


def estimate(tiles: Tiles, config: TrainConfig) -> tile_rule.Estimate:
    """What a layer's sums or attention take in one direction, at the hidden width, of which each
    device has an equal share."""
    if config.model != _ATTENTION:
        columns = len(devices_of(config)) if config.over_devices else 1
        return tile_rule.estimate(tiles, -(-config.hidden // columns), config.dtype)
    # One head, whose edges go to the faster of two kernels by rows.
    shape = tiles.rows.shape[0], tiles.num_edges, 1, config.hidden
    taken = cosine_tiles.picoseconds(*shape, tiles)
    over_tiles = taken.pop("tiles", float("inf"))
    return tile_rule.Estimate(min(taken.values()) * 1e-12, over_tiles * 1e-12)


def of_attention(config: TrainConfig) -> bool:
    """Whether tiles serve the forward passes of a run's attention, not sums."""
    return config.model == _ATTENTION and serves(config)


def _calls(config: TrainConfig) -> tuple[tuple[bool, int], ...]:
    """Whether of the transpose, and how many an epoch and layer."""
    return (_FORWARD,) if config.model == _ATTENTION else (_FORWARD, _BACKWARD)


def _best_tiles(num_rows: int, num_edges: int) -> Tiles:
    """Tiles without a rest, whose columns are read by all rows of their windows; shapes alone."""

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, np.int32)

    entries = -(-num_edges // ROWS)
    fields: dict[str, Any] = {field.name: array(0) for field in dataclasses.fields(Tiles)}
    fields |= {"rows": array(num_rows), "parts": array(-(-num_rows // ROWS), 4)}
    fields |= {"masks": array(-(-entries // 16), 32)}
    fields |= {"num_edges": num_edges, "num_entries": entries, "num_columns": entries}
    return Tiles(**fields)
