"""Writes what `tiles` draws the graph of `benchmark_graph(NAME, SCALE)` from: NAME SCALE FILE."""

import sys

import numpy as np

from jaxgnn.data import benchmark_graphs, generators

name, scale, path = sys.argv[1], float(sys.argv[2]), sys.argv[3]
shape = benchmark_graphs._SHAPES[name]
nodes = max(64, int(shape.num_nodes * scale))
edges = min(int(shape.num_edges * scale), nodes * (nodes - 1) // 2) // 2 * 2
rng = np.random.default_rng(1)
weights = generators.power_law_weights(
    nodes,
    exponent=shape.exponent,
    low_exponent=shape.low_exponent,
    max_to_mean=shape.max_to_mean,
)
sizes = generators.random_sizes(nodes, max(1, min(shape.communities, nodes // 8)), rng)
weights = weights[rng.permutation(nodes)]
offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
head = np.array([nodes, edges, sizes.size, int(shape.intra_share * 1000)], np.int64)
ids = generators.permutation(nodes, seed=1).astype(np.int32)
with open(path, "wb") as file:
    for array in (head, weights.astype(np.int64), offsets, ids):
        file.write(array.tobytes())
