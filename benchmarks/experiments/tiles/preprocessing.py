"""Times of `translate` and `with_tiles`: [NAME [SCALE]], 20 M edges by default.

On a GPU (with `JAX_PLATFORMS=cuda,cpu`) both run there, and on the host beside it. The first call
compiles; later ones are timed from the call until the result is there. `with_tiles` finds all
orders but `numbered` on the host, so that of those a GPU has `groups` alone. Then come the parts of
both, each a program.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxgnn import Graph, tiles
from jaxgnn._core.device import on_gpu
from jaxgnn.data import benchmark_graph
from jaxgnn.graph._layouts import device_tiles, device_translation
from jaxgnn.graph._layouts import tiles as _tiles
from jaxgnn.graph._layouts.device_windows import rows_fit
from jaxgnn.graph._layouts.tile_order import choose

REPEATS = 3
ON_GPU_REPEATS = 5
ORDERS = ("numbered", "groups", "rcm", "labels", "auto")


def seconds_of(run: Callable[[], Any]) -> tuple[float, Any]:
    """One call, until its result is there."""
    begin = time.perf_counter()
    result = jax.block_until_ready(run())
    return time.perf_counter() - begin, result


def report(what: str, run: Callable[[], Any], repeats: int, show: Callable[[Any], str]) -> Any:
    """The first call, and the least time of later ones: other work on the machine only adds."""
    first, _ = seconds_of(run)
    calls = [seconds_of(run) for _ in range(repeats)]
    each = ", ".join(f"{1e3 * seconds:.2f}" for seconds, _ in calls)
    least = 1e3 * min(seconds for seconds, _ in calls)
    print(f"{what}: {least:.2f} ms (first {1e3 * first:.0f}, then {each}){show(calls[0][1])}")
    sys.stdout.flush()
    return calls[0][1]


def tiles_of(graph: Graph, order: Any) -> Any:
    """Made where the graph is."""
    return graph.with_tiles(order=order, on_device=True).tiles


def operations(graph: Graph) -> dict[str, Callable[[], Any]]:
    """By name."""
    runs: dict[str, Callable[[], Any]] = {
        "translate, 16 x 8": lambda: tiles.translate(graph),
        "translate, 64 x 16": lambda: tiles.translate(graph, 64, 16),
    }
    for order in ORDERS[:2] if on_gpu(graph.senders) else ORDERS:
        runs[f"with_tiles, {order}"] = functools.partial(tiles_of, graph, order)
    return runs


def parts(graph: Graph, rows: np.ndarray) -> dict[str, Callable[[], Any]]:
    """What a GPU runs, piece by piece; `rows` are those of the layout in a given order."""
    offsets, columns, num_columns = graph.row_offsets, graph.senders, graph.num_senders
    translation, layout = device_translation, device_tiles
    given = jax.device_put(rows)
    edges = translation._sort(offsets, columns, 16, num_columns)
    num_distinct = int(edges.counts[0])
    distinct, _ = translation._condense(edges, 16, num_distinct)
    in_order = layout._in_order(offsets, columns, None)
    chosen = layout._choose(in_order, _tiles.MIN_EDGES, num_columns)
    entries = np.diff(np.asarray(chosen.entry_offsets))
    cut, *counts = layout._cut(entries)
    sizes = layout._Sizes(graph.num_edges - int(chosen.rest_offsets[-1]), *counts)
    lay_out = functools.partial(
        _tiles.lay_out, offsets, columns, num_columns, "groups", on_device=True
    )
    return {
        "check of the rows": lambda: rows_fit(offsets, columns, num_columns),
        "translate: sort": lambda: translation._sort(offsets, columns, 16, num_columns),
        "translate: condense": lambda: translation._condense(edges, 16, num_distinct),
        "translate: blocks before": lambda: translation._blocks_in_place(
            distinct, edges.column_offsets, 8
        ),
        "layout, numbered: choose": lambda: layout._choose(in_order, _tiles.MIN_EDGES, num_columns),
        "layout, numbered: cut, on the host": lambda: layout._cut(entries),
        "layout, numbered: write": lambda: layout._write(chosen, cut, sizes),
        "layout, groups: edges in order": lambda: layout._in_order(offsets, columns, given),
        "layout, groups, of a given order": lambda: lay_out(rows, _tiles.MIN_EDGES),
    }


def same(one: Any, other: Any) -> str:
    """Whether two results have equal arrays and counts."""
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    equal = structure == other_structure and all(map(np.array_equal, leaves, others))
    return "equal" if equal else "DIFFERENT"


def in_words(result: Any) -> str:
    return f"; {result!r}"


name = sys.argv[1] if len(sys.argv) > 1 else "reddit"
scale = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1745
graph = benchmark_graph(name, scale).to_graph()
print(f"{name}: {graph}, {len(os.sched_getaffinity(0))} cores, {jax.devices()[0].device_kind}")
if not on_gpu(graph.senders):
    for what, run in operations(graph).items():
        report(f"{what}, host", run, REPEATS, in_words)
    sys.exit()

found = {}
for what, run in operations(graph).items():
    found[what] = report(f"{what}, GPU", run, ON_GPU_REPEATS, in_words)
peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
held = graph.nbytes + sum(leaf.nbytes for leaf in jax.tree.leaves(found))
sizes = (f"{size / graph.num_edges:.1f}" for size in (graph.nbytes, held, peak))
print("bytes an edge: graph {}, with all results {}, the most in use {}".format(*sizes))
host = jax.devices("cpu")[0]
with jax.default_device(host):
    for what, run in operations(jax.device_put(graph, host)).items():
        result = report(f"{what}, host", run, REPEATS, lambda _: "")
        if what in found:
            print(f"  {same(found[what], result)} to the GPU's")
csr = np.asarray(graph.row_offsets), np.asarray(graph.senders)
_, rows = choose(
    _tiles.host_module("parts"), "groups", *csr, graph.num_senders, square=True, symmetric=True
)
for what, run in parts(graph, rows).items():
    report(what, run, ON_GPU_REPEATS, lambda _: "")
