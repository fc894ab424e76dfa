"""Seconds of `translate` and `with_tiles` on the host: [NAME [SCALE]], 20 M edges by default."""

import os
import sys
import time
from collections.abc import Callable

from jaxgnn import tiles
from jaxgnn.data import benchmark_graph

REPEATS = 3

name = sys.argv[1] if len(sys.argv) > 1 else "reddit"
scale = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1745
graph = benchmark_graph(name, scale).to_graph()
print(f"{name}: {graph}, {len(os.sched_getaffinity(0))} cores")


def report(what: str, run: Callable[[], object]) -> None:
    """The least time of a few: other work on the machine only adds to it."""
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - begin)
    each = ", ".join(f"{s:.2f}" for s in seconds)
    print(f"{what}: {min(seconds):.2f} s ({each}); {result!r}", flush=True)


report("translate, 16 x 8", lambda: tiles.translate(graph))
report("translate, 64 x 16", lambda: tiles.translate(graph, 64, 16))
for order in ("numbered", "groups", "rcm", "labels", "auto"):
    report(f"with_tiles, {order}", lambda order=order: graph.with_tiles(order=order).tiles)
