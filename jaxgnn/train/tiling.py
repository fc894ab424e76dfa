"""Tiles for a training run's graph, where they pay within the run: see `Graph.with_tiles`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxgnn._core import ffi
from jaxgnn.graph import Graph, _tile_rule, tiles
from jaxgnn.graph._tiles import ROWS, Tiles
from jaxgnn.train.config import TrainConfig
from jaxgnn.train.sharded import SUMS

# The least that `with_tiles` took on the host of the H200 for the graphs of the suite
# `tensor_core` (16 threads, 2026-11-25), a direction. Not measured here: of two equal runs both
# have tiles, or none.
_SECONDS_PER_EDGE = 20e-9
# Of the rows' time what tiles saved at best of all graphs measured (docs/kernels/tiles.md).
_MOST_SAVED = 0.5
_LEAST_GAIN = 0.05  # of the rows' time: less is within what the estimate is off by
_FORWARD_CALLS = 2  # of an epoch: training and validation; the backward pass is one


def tiled(graph: Graph, config: TrainConfig) -> Graph:
    """The graph with tiles if a GPU's run over it gains by them, else the graph as it is.

    Tiles take memory and host time. They are made where they could be worth that time within the
    run's epochs, and kept where `jaxgnn.tiles.estimate` says that the layers' sums take at
    least 5 % less.
    """
    if jax.default_backend() != "gpu" or ffi.cpu_module is None or not can_pay(graph, config):
        return graph
    # By the host, as a run makes them once: compiling the GPU's programs would take longer.
    names = ("row_offsets", "senders", "transpose_row_offsets", "transpose_receivers")
    arrays: dict[str, Any] = {name: np.asarray(getattr(graph, name)) for name in names}
    made = dataclasses.replace(graph, **arrays).with_tiles()
    tiled = dataclasses.replace(graph, tiles=made.tiles, transpose_tiles=made.transpose_tiles)
    return tiled if pays(tiled, config) else graph


def serves(config: TrainConfig) -> bool:
    """Whether a run's layers are sums or means of all edges, of dense rows, on one device."""
    if config.model not in SUMS or config.activation == "maxk":
        return False
    return not (config.over_devices or config.num_neighbors or config.samples)


def can_pay(graph: Graph, config: TrainConfig) -> bool:
    """Whether the best tiles that a graph of this size could have repay what making them takes."""
    if not serves(config) or not 0 < graph.num_edges < 1 << 31:
        return False
    saved = 0.0
    for rows, calls in ((graph.num_receivers, _FORWARD_CALLS), (graph.num_senders, 1)):
        best = _tile_rule.estimate(_best_tiles(rows, graph.num_edges), config.hidden, config.dtype)
        saved += calls * min(best.rows - best.tiles, _MOST_SAVED * best.rows)
    built = (1 if graph.symmetric else 2) * graph.num_edges * _SECONDS_PER_EDGE
    return config.epochs * config.layers * saved > built


def pays(graph: Graph, config: TrainConfig) -> bool:
    """Whether a graph keeps the tiles that it has."""
    return gain(graph, config) >= _LEAST_GAIN


def gain(graph: Graph, config: TrainConfig) -> float:
    """The share of the rows' time that a graph's tiles save, by estimate, at the hidden width."""
    rows = saved = 0.0
    for transpose, calls in ((False, _FORWARD_CALLS), (True, 1)):
        guess = tiles.estimate(graph, config.hidden, config.dtype, transpose=transpose)
        rows += calls * guess.rows
        saved += calls * max(guess.rows - guess.tiles, 0.0)
    return saved / rows


def _best_tiles(num_rows: int, num_edges: int) -> Tiles:
    """Tiles without a rest, whose columns are read by all rows of their windows; shapes alone."""

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, np.int32)

    entries = -(-num_edges // ROWS)
    fields: dict[str, Any] = {field.name: array(0) for field in dataclasses.fields(Tiles)}
    fields |= {"rows": array(num_rows), "parts": array(-(-num_rows // ROWS), 4)}
    fields |= {"num_edges": num_edges, "num_entries": entries, "num_columns": entries}
    return Tiles(**fields)
