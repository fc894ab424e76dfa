"""What the parts of a graph by rows leave of its windows: entries, sharing and balance, counted.

    python -m benchmarks.experiments.part_windows reddit --parts 2 4 8

MaxK's kernels read a sender's sparse row once an entry. An even part has the entries of the whole
graph's windows, by the parts: `entries` is the part with most by that, `all` their sum over the
parts by the whole graph's. Receivers are in the order of the whole graph, as `shard` has them, or
in that of labels spread over the part's own edges alone. `ends` is when the last of a GPU's blocks
ends, by an even share of the entries' work: each takes the next part of a window as soon as it is
free. `partials` are the parts whose results are added up.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxgnn.data import benchmark_graph, benchmark_shapes
from jaxgnn.distributed import Partition, partition
from jaxgnn.distributed._choose_partition import choose_partition
from jaxgnn.distributed._halo import Halo
from jaxgnn.distributed._parts import rows_of_part
from jaxgnn.graph._layouts import windows as _windows

_BLOCKS, _ENTRY_COST = 264, 1  # in edges, as in cpu/host/windows.cc
_HEAD = "graph      parts  method   order  entries   all  edges/entry  edges  rows   ends  partials"


def main() -> None:
    """Prints a row for each shape, number of parts, method and order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="+", choices=list(benchmark_shapes()), metavar="SHAPE")
    parser.add_argument("--parts", type=int, nargs="+", default=[8])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--methods", nargs="+", default=["stream", "windows"])
    options = parser.parse_args()
    print(_HEAD)
    for shape in options.shapes:
        for line in counted(shape, options.scale, options.parts, options.methods):
            print(line, flush=True)


def counted(shape: str, scale: float, counts: list[int], methods: list[str]) -> Iterator[str]:
    """The rows of a shape: the whole graph first."""
    graph = benchmark_graph(shape, scale).to_graph().with_windows()
    assert graph.windows is not None
    entries = graph.windows.senders.size
    degrees = np.diff(np.asarray(graph.row_offsets))
    yield (
        f"{shape:10s} {1:5d}  {'':15s} {1:7.3f} {1:5.3f}  {graph.num_edges / entries:11.3f} "
        f"{1:6.3f} {1:5.3f}  {_ends([graph.windows])}  {graph.windows.num_partials:8d}"
    )
    order = graph.windows.order
    for count in counts:
        chosen = choose_partition(graph, count).owner
        for method in methods:
            split = _split(graph, count, method)
            mark = "*" if np.array_equal(split.owner, chosen) else " "
            edges = np.bincount(split.owner, degrees, count)
            for name, of in (("part", None), ("graph", order)):
                if method == "windows" and of is None:
                    continue
                found = [_of_part(graph, split.owner == part, of) for part in range(count)]
                own = np.array([windows.senders.size for windows in found])
                yield (
                    f"{shape:10s} {count:5d}  {method:7s}{mark} {name:6s} "
                    f"{own.max() * count / entries:7.3f} {own.sum() / entries:5.3f}  "
                    f"{graph.num_edges / own.sum():11.3f} {edges.max() / edges.mean():6.3f} "
                    f"{split.statistics.node_balance:5.3f}  {_ends(found)}  "
                    f"{max(windows.num_partials for windows in found):8d}"
                )
            yield f"{'':17s} {_sent(graph, split)}"


def _split(graph: Any, count: int, method: str) -> Partition:
    """Balanced as closely as the suite `scale` has it."""
    if method != "stream":
        return partition(graph, count, method=method)
    for balance in (1.01, 1.05, 1.2):
        try:
            return partition(graph, count, edge_balance=balance)
        except ValueError:
            continue
    raise SystemExit(f"part_windows: no partition into {count} parts")


def _of_part(graph: Any, own: np.ndarray, order: np.ndarray | None) -> _windows.Windows:
    """The windows of a part. Which number a sender has does not matter."""
    offsets, senders = np.asarray(graph.row_offsets), np.asarray(graph.senders)
    degrees = np.diff(offsets)
    of_part = np.append(0, np.cumsum(degrees[own])).astype(offsets.dtype)
    rows = None
    if order is not None:
        place = np.empty(order.size, np.int64)
        place[order] = np.arange(order.size)
        rows = np.argsort(place[own]).astype(np.int32)
    edges = senders[np.repeat(own, degrees)]
    return _windows.build(of_part, edges, graph.num_senders, False, _windows.RECEIVERS, rows)


def _ends(several: list[_windows.Windows]) -> str:
    """When the last block ends, by an even share; of several graphs the latest."""
    latest = 0.0
    for windows in several:
        parts, masks = np.asarray(windows.parts), np.asarray(windows.masks)
        edges = np.append(0, np.cumsum(np.bitwise_count(masks).sum(axis=1, dtype=np.int64)))
        work = edges + _ENTRY_COST * np.arange(edges.size)
        blocks = [0.0] * _BLOCKS
        for part in work[parts[:, 2]] - work[parts[:, 1]]:
            heapq.heappushpop(blocks, blocks[0] + part)
        latest = max(latest, max(blocks) * _BLOCKS / work[-1])
    return f"{latest:5.3f}"


def _sent(graph: Any, split: Partition) -> str:
    """What the exchange of a partition sends."""
    found = split.statistics
    rows = rows_of_part(int(np.bincount(split.owner, minlength=split.parts).max()), 1)
    pairs = split.parts * (split.parts - 1)
    largest = round(found.exchange_padding * found.halo_per_node * graph.num_senders / pairs)
    exchange = Halo.of(rows, np.array([[largest]]))
    what = "all" if exchange.all_rows else "those that are needed"
    needed = found.halo_per_node * graph.num_senders / pairs
    return (
        f"a part of at most {rows:,} rows sends {exchange.pair_rows:,} to each other one, {what}; "
        f"{exchange.pair_rows / needed:.3f} times the needed ones"
    )


if __name__ == "__main__":
    main()
