"""Cut, halo and balances of the partition methods on the shapes of benchmark sets.

    python -m benchmarks.experiments.partition arxiv products --parts 8

A method that is not installed, `metis`, is left out with a line that says so.
"""

from __future__ import annotations

import argparse
import time

from jaxgnn.data import benchmark_graph, benchmark_shapes
from jaxgnn.distributed import partition


def main() -> None:
    """Prints a row for each shape and method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="+", choices=list(benchmark_shapes()), metavar="SHAPE")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--methods", nargs="+", default=["stream", "block", "metis"])
    options = parser.parse_args()
    print("shape      method  halo/node    cut  nodes  edges  padding  seconds")
    for shape in options.shapes:
        graph = benchmark_graph(shape, options.scale)
        for method in options.methods:
            start = time.perf_counter()
            try:
                split = partition(graph, options.parts, method=method, passes=options.passes)
            except ImportError as error:
                print(f"{shape:10s} {method:6s}  {error}")
                continue
            seconds = time.perf_counter() - start
            found = split.statistics
            print(
                f"{shape:10s} {method:6s}  {found.halo_per_node:9.3f}  "
                f"{found.cut_edges / graph.num_edges:5.3f}  {found.node_balance:5.3f}  "
                f"{found.edge_balance:5.3f}  {found.exchange_padding:7.3f}  {seconds:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
