"""`precision="tensorfloat32"` beside float32 over tiles, and rows: [NAME [SCALE [WIDTH...]]].

For each width milliseconds of a mean, and the largest error beside the sum in float64, of the sum
of the terms' sizes, of 512 rows. On a CPU all run by rows: there it shows that the script runs.
"""

import sys
from typing import Any

import jax
import numpy as np
import scipy.sparse

from benchmarks.experiments.tiles.rates import seconds_of
from jaxgnn import Graph, build_info, spmm
from jaxgnn.data import benchmark_graph

WIDTHS = (64, 256)
ROWS = 512  # whose error is taken
CASES = (("rows", None), ("tiles", None), ("tiles", "tensorfloat32"))


def some_rows(graph: Graph) -> tuple[np.ndarray, scipy.sparse.csr_matrix]:
    """Rows that are spread over all: their numbers, and their part of the matrix."""
    rows = np.linspace(0, graph.num_receivers - 1, ROWS).astype(int)
    columns, offsets = np.asarray(graph.senders), np.asarray(graph.row_offsets)
    shape = (graph.num_receivers, graph.num_senders)
    matrix = scipy.sparse.csr_matrix((np.ones(columns.size), columns, offsets), shape=shape)
    return rows, matrix[rows]


def main(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "reddit"
    csr = benchmark_graph(name, float(arguments[1]) if len(arguments) > 1 else 1.0)
    graph = Graph.from_csr(csr.row_offsets, csr.senders).with_tiles()
    print(f"{jax.devices()[0].device_kind}, jaxlib {build_info().jaxlib}; {graph.tiles}")
    rows, matrix = some_rows(graph)
    for width in [int(width) for width in arguments[2:]] or WIDTHS:
        x = jax.random.normal(jax.random.key(0), (graph.num_senders, width))
        features = np.asarray(x, np.float64)
        exact, sizes = matrix @ features, np.maximum(matrix @ np.abs(features), 1e-30)
        impl: Any
        precision: Any
        for impl, precision in CASES:
            ms = 1e3 * seconds_of(graph, x, None, impl, "spmm", precision)
            got = np.asarray(spmm(graph, x, impl=impl, precision=precision)[rows], np.float64)
            error = np.max(np.abs(got - exact) / sizes)
            what = f"{name}, F = {width}, {impl}, {precision}"
            print(f"{what}: {ms:.4g} ms, error {error:.2g}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
