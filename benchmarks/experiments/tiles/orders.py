"""Edges a column of 64 rows: as numbered, in groups, by the generator's communities. [NAME...]

Label propagation is what the windows of MaxK are grouped by.

The communities' rows are as numbered inside, or by falling degree. Graphs of more than 20 M edges
are scaled down to these. Then the seconds that finding the groups took.
"""

import sys
import time

import numpy as np

from jaxgnn._core.ffi import host_module
from jaxgnn.data import benchmark_shapes
from jaxgnn.data.generated.benchmark_graphs import benchmark_communities

NAMES = ("reddit", "proteins", "products", "arxiv", "artist")
NAMES += ("amazon0601", "amazon0505", "com_amazon", "ppi", "dd")
MOST_EDGES = 20_000_000

module = host_module("orders")
for name in sys.argv[1:] or NAMES:
    scale = min(1.0, MOST_EDGES / benchmark_shapes()[name].num_edges)
    csr, community = benchmark_communities(name, scale)
    offsets = csr.row_offsets.astype(np.int32)
    start = time.perf_counter()
    groups = module.order_by_communities(offsets, csr.senders)
    seconds = time.perf_counter() - start
    orders = {
        "numbered": np.arange(csr.num_nodes),
        "label propagation": module.order_rows(offsets, csr.senders, csr.num_nodes),
        "groups": groups,
        "communities": np.argsort(community, kind="stable"),
        "by degree": np.lexsort((-csr.degrees, community)),
    }
    u = {
        order: csr.num_edges
        / module.count_window_columns(offsets, csr.senders, rows.astype(np.int32), csr.num_nodes)
        for order, rows in orders.items()
    }
    best = max(u["communities"], u["by degree"])
    text = ", ".join(f"{order} {value:.2f}" for order, value in u.items())
    print(f"{name}: {text}; {u['groups'] / best:.0%} in {seconds:.2f} s", flush=True)
