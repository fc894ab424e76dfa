"""`jaxgnn partition`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxgnn._core.text import printable
from jaxgnn_cli.options import parse_options
from jaxgnn_cli.status import UsageError

_BALANCE: Any = tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(optional)")


@dataclasses.dataclass(frozen=True)
class PartitionOptions:
    """Split a dataset's graph into parts, and write a folder for each.

    A part has its nodes, the edges that end there, with their weights, and these nodes' features,
    labels and masks.
    jaxgnn train OUT --devices N trains on it, jaxgnn.distributed.Partition.load_part(OUT, part)
    reads a part.
    """

    dataset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")]
    """A name or a path, as jaxgnn info takes it: nodes or a graph alone."""

    output: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="OUT")]
    """Where to write: a directory that is empty or not there."""

    parts: int = 8
    """How many."""

    undirected: bool = False
    """Add the reverse of each edge first, and merge repeated ones."""

    method: Literal["stream", "metis", "block"] = "stream"
    """Restreaming greedy; METIS, which needs pymetis; consecutive nodes."""

    passes: int = 5
    """Over the nodes, of stream."""

    seed: int = 0
    """Of stream and metis."""

    edge_balance: Annotated[float | None, _BALANCE] = None
    """The most edges of a part, by the mean; without it 1.05 of stream, about 1.05 of metis."""

    node_balance: Annotated[float | None, _BALANCE] = None
    """The most nodes of a part, by the mean; without it 1.15 of stream."""


def partition(arguments: list[str]) -> None:
    """Splits a graph and prints what the parts cost, or prints the help."""
    options = parse_options(PartitionOptions, arguments, "partition")
    if options is None:
        return
    from rich.console import Console
    from rich.table import Table

    from jaxgnn import distributed
    from jaxgnn.data import GraphSet, load, partition_arrays
    from jaxgnn.data.loading.directions import load_undirected
    from jaxgnn.train.process.machine import peak_memory
    from jaxgnn.train.reports.records import make_directory

    for name, methods in (("passes", ("stream",)), ("seed", ("stream", "metis"))):
        given = getattr(options, name) != getattr(PartitionOptions, name)
        if given and options.method not in methods:
            expected = " or ".join(methods)
            raise UsageError(
                f"--{name}: expected --method {expected} with it, got --method {options.method}"
            )
    dataset = load_undirected(options.dataset) if options.undirected else load(options.dataset)
    if isinstance(dataset, GraphSet):
        raise UsageError("partition: expected one graph, got a set of graphs")
    output = Path(options.output)
    make_directory(output, "OUT")  # before the graph is split, which may take long
    if any(output.iterdir()):
        raise UsageError(f"OUT: expected an empty directory, got {printable(output)}")
    start = time.perf_counter()
    try:
        split = distributed.partition(
            dataset.graph,
            options.parts,
            method=options.method,
            passes=options.passes,
            seed=options.seed,
            edge_balance=options.edge_balance,
            node_balance=options.node_balance,
        )
        seconds = time.perf_counter() - start
        arrays, edge_arrays, data = partition_arrays(dataset)
        split.save(output, dataset.graph, arrays, edge_arrays=edge_arrays, data=data)
    except (ValueError, ImportError) as error:
        raise UsageError(f"partition: {error}") from error
    found = split.statistics
    share = found.cut_edges / max(1, dataset.graph.num_edges)
    table = Table(
        title=f"{options.parts} parts by {options.method}", title_justify="left", show_header=False
    )
    table.add_row("cut edges", f"{found.cut_edges:,} ({share:.1%})")
    table.add_row("halo rows for each node", f"{found.halo_per_node:.3f}")
    table.add_row("largest part's nodes by the mean", f"{found.node_balance:.3f}")
    table.add_row("largest part's edges by the mean", f"{found.edge_balance:.3f}")
    table.add_row("padding of the exchange", f"{found.exchange_padding:.3f}")
    table.add_row("time", f"{1000 * seconds:,.0f} ms")
    peak = peak_memory()
    table.add_row(f"peak memory, {peak['memory_of']}", f"{peak['peak_bytes'] / 1e6:,.0f} MB")
    Console().print(table)
