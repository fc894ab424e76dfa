"""What `jaxgnn info` says of tiles: what a graph's windows share, and when `with_tiles` pays."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from jaxgnn_cli.output import duration

if TYPE_CHECKING:
    from rich.table import Table

    from jaxgnn import Graph, tiles
    from jaxgnn.data import GraphSet, NodeDataset, PlainGraph
    from jaxgnn.train import TrainConfig

_WIDTH = 256  # features of the products whose time is estimated, without a model


def add_tiles(
    table: Table, dataset: NodeDataset | GraphSet | PlainGraph, config: TrainConfig | None
) -> None:
    """Adds the rows of a dataset's graph, of a set those of its graphs' union.

    Args:
        table: of the dataset's statistics.
        dataset: what was loaded.
        config: the options of a model, whose width and dtype are estimated; `None`: 256 features
            in float32 and bfloat16.
    """
    import jaxgnn
    from jaxgnn.data import GraphSet

    of_set = isinstance(dataset, GraphSet)
    if not jaxgnn.build_info().cpu or (of_set and not dataset.senders.size):
        return
    graph = union(dataset) if of_set else dataset.graph
    if graph.num_edges >= 1 << 31:
        return
    start = time.perf_counter()
    graph = graph.with_tiles()
    seconds = time.perf_counter() - start
    tiles = graph.tiles
    assert tiles is not None
    of = " of the graphs' union" if of_set else ""
    table.add_row(f"edges a column of 64 rows{of}", f"{tiles.edges_per_column:.2f} ({tiles.order})")
    table.add_row(
        f"edges in tiles, {tiles.min_edges} a column or more",
        f"{tiles.tile_share:.0%} in {tiles.num_entries:,} columns",
    )
    for name, text in estimates(graph, seconds, config):
        table.add_row(name, text)
    if config is not None:
        table.add_row("tiles in jaxgnn train, on a GPU", _in_training(graph, config))


def union(graphs: GraphSet) -> Graph:
    """All graphs of a set as one, without edges between them."""
    import numpy as np

    from jaxgnn import Graph

    first = np.repeat(graphs.node_offsets[:-1], np.diff(graphs.edge_offsets))
    return Graph.from_edges(
        graphs.senders + first, graphs.receivers + first, num_nodes=int(graphs.node_offsets[-1])
    )


def estimates(graph: Graph, seconds: float, config: TrainConfig | None) -> list[tuple[str, str]]:
    """Rows and tiles by estimate, of sums or of AGNN's attention: name and text of each line.

    Args:
        graph: with tiles. The backward pass is that of a directed one; else it is the same.
        seconds: that `with_tiles` took.
        config: as for `add_tiles`. Without a model, of gcn, which takes weights of edges, and with
            `--edge-weights` also with weights.
    """
    from jaxgnn import tiles
    from jaxgnn.train.steps import tiling

    if config is not None and tiling.of_attention(config):
        assert graph.tiles is not None
        name = f"attention by cosines, forward, {config.hidden} {config.dtype}, H100 (estimate)"
        return [(name, _engines(tiling.estimate(graph.tiles, config), seconds))]
    operations: list[tiles.Operation] = ["spmm"]
    if config is None or config.model == "gcn" or config.edge_weights:
        operations.append("weighted_spmm")
    width = _WIDTH if config is None else config.hidden
    lines = []
    for operation, dtype, transpose in itertools.product(
        operations,
        ("float32", "bfloat16") if config is None else (config.dtype,),
        (False,) if graph.symmetric else (False, True),
    ):
        guess = tiles.estimate(graph, width, dtype, operation=operation, transpose=transpose)
        name = f"aggregating {width} {dtype}"
        name += ", weighted" if operation == "weighted_spmm" else ""
        name += ", backward" if transpose else ""
        lines.append((f"{name}, H200 (estimate)", _engines(guess, seconds)))
    return lines


def _engines(guess: tiles.Estimate, seconds: float) -> str:
    """What both take, and when `with_tiles`, which took `seconds`, has paid."""
    calls = guess.calls_until_paid(seconds)
    text = f"rows {duration(guess.rows)}, tiles {duration(guess.tiles)}: {guess.engine}"
    if calls is None:
        return text
    return f"{text}; with_tiles, {duration(seconds)} here, paid after {calls:,} calls"


def _in_training(graph: Graph, config: TrainConfig) -> str:
    """Whether a run has tiles: see `jaxgnn.train.steps.tiling`."""
    from jaxgnn.train.steps import tiling

    if not tiling.serves(config):
        return "no: not with these options"
    if not tiling.can_pay(graph, config):
        return "no: they could not pay within the run"
    served = "attention's forward passes" if tiling.of_attention(config) else "layers' sums"
    gain = f"{tiling.gain(graph, config):.0%} of the {served} saved (estimate)"
    return f"yes: {gain}" if tiling.pays(graph, config) else f"no: {gain}"
