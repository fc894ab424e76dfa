"""Share of the edges that S of a row are, on graphs of Reddit's and ogbn-proteins' size.

    python -m benchmarks.experiments.sampled_share [--scale 0.1] [--json OUT]

The published shares are those of ES-SpMM (Liao et al., 2021), of the sets themselves. The graphs
here are those of the other benchmarks, `jaxgnn.data.benchmark_graph`: they have the sets' numbers
of nodes and edges, but degrees of a power law, and a share depends on the degrees alone.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.harness.record import write_rows
from jaxgnn.data import benchmark_graph
from jaxgnn.train import InferenceSample

PUBLISHED = {
    "reddit": {16: 0.031, 32: 0.060, 64: 0.113, 128: 0.205, 256: 0.348, 512: 0.539},
    "proteins": {16: 0.026, 32: 0.051, 64: 0.099, 128: 0.189, 256: 0.343, 512: 0.567},
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Prints the share of the edges that S of a row are, beside the published one."""

    scale: float = 1.0
    """Of the nodes and the edges."""
    json: Path | None = None
    """A file for the results."""


def shares(case: str, degrees: np.ndarray) -> list[dict[str, Any]]:
    """A row for each published S: the share of the edges, as `jaxgnn evaluate` prints it."""
    shape = {"nodes": degrees.size, "edges": int(degrees.sum(dtype=np.int64))}
    return [
        {
            "case": case,
            "impl": "jaxgnn",
            "dtype": "int32",
            "pass": "share",
            "shape": {**shape, "S": size},
            "accurate": True,
            "ms": None,
            "edge_share": InferenceSample("bucket", size).edge_share(degrees),
            "published_share": published,
        }
        for size, published in PUBLISHED[case].items()
    ]


def main() -> None:
    """Prints the shares of both graphs."""
    options = tyro.cli(Options)
    rows, graphs = [], []
    for case in PUBLISHED:
        degrees = np.diff(benchmark_graph(case, options.scale).row_offsets)
        quartiles = np.percentile(degrees, (25, 50, 75)).tolist()
        facts = {"nodes": degrees.size, "edges": int(degrees.sum(dtype=np.int64))}
        facts |= {"max_degree": int(degrees.max()), "degree_quartiles": quartiles}
        graphs.append({"name": case, "scale": options.scale, **facts})
        print(", ".join(f"{name} {value}" for name, value in graphs[-1].items()))
        for row in shares(case, degrees):
            rows.append(row)
            print(
                f"  S = {row['shape']['S']}: {100 * row['edge_share']:.1f} %, published "
                f"{100 * row['published_share']:.1f} %",
                flush=True,
            )
    if options.json is not None:
        write_rows(options.json, rows, graphs)


if __name__ == "__main__":
    main()
