"""The owners of nodes as `shard` takes them: a method's name, a partition, or the better one."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from jaxgnn._core.ffi import cpu_module
from jaxgnn.distributed._arguments import Owners, owner_of
from jaxgnn.distributed._costs import Cost
from jaxgnn.distributed._partition import Partition, equal_edges, partition
from jaxgnn.graph import Graph

_EDGE_BALANCES = (1.05, 1.2, 2.0)
"""That `"stream"` is asked for, one after the other: graphs of few nodes do not meet the first."""

_CUT_WINDOWS = 1.1
"""The work of the slowest part over its share of the windows', by methods that cut windows: on the
shapes of reddit, products and arxiv into 8 parts it has 1.02 to 1.08 times the entries by
`"stream"`, and 1.11 to 1.20 by `"block"`."""


def choose_owners(
    given: Owners | str | None, graph: Graph, parts: int
) -> Int[np.ndarray, " num_nodes"]:
    """The owner of each node.

    Args:
        given: a partition, the method of one, or `None` for `choose_partition`.
        graph: a square one.
        parts: how many.

    Raises:
        TypeError: `given` is none of these.
        ValueError: a method of another name, or a partition of other parts or nodes.
    """
    if isinstance(given, str):
        if parts > graph.num_senders:
            if given != "block":
                raise ValueError(
                    f'partition: expected "block" for more devices, {parts}, than the '
                    f"{graph.num_senders} nodes, got {given!r}"
                )
            return equal_edges(np.asarray(graph.row_offsets), parts)
        split = stream(graph, parts) if given == "stream" else None
        return (split or partition(graph, parts, method=given)).owner
    if given is not None:
        return owner_of(given, graph, parts)
    if cpu_module is None or not 1 < parts <= graph.num_senders:
        return equal_edges(np.asarray(graph.row_offsets), parts)
    return choose_partition(graph, parts).owner


def choose_partition(graph: Graph, parts: int) -> Partition:
    """The better of `"block"` and `"stream"`, by the predicted time of an aggregation by rows; of
    a graph with windows, for MaxK, also `"windows"`.

    Blocks win where ids follow the graph, and where no order has few cut edges: there they balance
    better. So do windows, where each part needs most rows anyway. The same in every process, as
    `"stream"` does not depend on the number of threads.

    Raises:
        ValueError: less than 1 part, or more than nodes.
        RuntimeError: the compiled CPU module is missing.
    """
    found = [partition(graph, parts, method="block"), stream(graph, parts)]
    work = 1.0 if graph.windows is None else _CUT_WINDOWS
    seconds = [_cost(graph, each, work).seconds(4, 4) for each in found]
    if graph.windows is not None:
        found.append(partition(graph, parts, method="windows"))
        seconds.append(_cost(graph, found[-1]).seconds(4, 4))
    return found[int(np.argmin(seconds))]


def stream(graph: Graph, parts: int) -> Partition:
    """The partition by `"stream"` with the best balance of edges that it finds."""
    for balance in _EDGE_BALANCES:
        try:
            return partition(graph, parts, edge_balance=balance)
        except ValueError:
            continue
    return partition(graph, parts, edge_balance=float(graph.num_edges + 1))


def _cost(graph: Graph, split: Partition, work: float = 1.0) -> Cost:
    """Of an aggregation on the part with most edges, and of the largest pair's exchange. `work`: by
    what its edges say."""
    found = split.statistics
    sent = found.halo_per_node * found.exchange_padding * graph.num_senders / split.parts
    edges = work * found.edge_balance * graph.num_edges / split.parts
    return Cost("rows", gathered=edges, sent=sent, halo=sent)
