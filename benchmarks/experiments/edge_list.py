"""CPU seconds of reading a text edge list beside pandas: `python -m` this module.

Both read the same file of tab-separated ids in turns, warm in the page cache, and the least time of
each counts. `read_edge_list` also sorts the edges by receiver and merges repeated ones, which
`pandas.read_csv` does not; `load` builds the `Graph` on top. The peak of memory is that of the
whole call above what the process had before.

    python -m benchmarks.experiments.edge_list --edges 100000000 --no-pandas --repeats 1
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.harness.timing import peak_resident_bytes


@dataclasses.dataclass(frozen=True)
class Options:
    """What is read, and how often."""

    edges: int = 10_000_000
    nodes: int = 1_000_000
    repeats: int = 5
    seed: int = 0
    pandas: bool = True
    """Read the file by pandas too."""


def write(path: Path, options: Options) -> None:
    """Uniform random edges, a block at a time."""
    rng = np.random.default_rng(options.seed)
    with open(path, "w", encoding="ascii") as file:
        for begin in range(0, options.edges, 1 << 18):
            count = min(1 << 18, options.edges - begin)
            ends = rng.integers(0, options.nodes, (count, 2)).tolist()
            file.write("".join(f"{sender}\t{receiver}\n" for sender, receiver in ends))


def measure(readers: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple]:
    """The least CPU and wall seconds and the lowest peak in bytes of each, in turns; all threads
    count."""
    best = {name: (float("inf"),) * 3 for name in readers}
    for _ in range(repeats):
        for name, read in readers.items():
            cpu, wall = time.process_time(), time.perf_counter()
            peak = peak_resident_bytes(read) or 0
            seconds = time.process_time() - cpu, time.perf_counter() - wall
            best[name] = tuple(map(min, best[name], (*seconds, peak)))
    return best


def main(options: Options) -> int:
    """Prints seconds, ratios and peaks; 1 if `read_edge_list` takes more than pandas."""
    read_csv = None
    if options.pandas:
        try:
            from pandas import read_csv
        except ImportError:
            print("needs pandas: pip install pandas, or --no-pandas", file=sys.stderr)
            return 2
    from jaxgnn import data

    with tempfile.TemporaryDirectory(prefix="jaxgnn-edge-list-") as folder:
        path = Path(folder) / "edges.txt"
        write(path, options)
        loaded: Any = data.load(path, cache=False)  # starts JAX
        nbytes = loaded.graph.nbytes
        del loaded
        readers: dict[str, Callable[[], object]] = {}
        if read_csv is not None:
            readers["pandas.read_csv"] = lambda: read_csv(path, sep="\t", header=None)
        readers["read_edge_list"] = lambda: data.read_edge_list(path)
        readers["load, to a Graph"] = lambda: data.load(path, cache=False)
        size = os.path.getsize(path)
        best = measure(readers, options.repeats)
    print(
        f"{options.edges:,} edges, {options.nodes:,} nodes, {size / 1e6:.0f} MB, the graph "
        f"{nbytes / 1e6:.0f} MB; {os.cpu_count()} CPUs, {platform.machine()}"
    )
    base = best["pandas.read_csv"][0] if options.pandas else None
    for name, (cpu, wall, peak) in best.items():
        share = "" if base is None else f"  {cpu / base:5.2f} of pandas' CPU"
        print(
            f"{name:18} {cpu:7.3f} CPU s  {wall:7.3f} s{share}  peak {peak / 1e6:6.0f} MB, "
            f"{peak / nbytes:4.2f} of the graph"
        )
    return int(base is not None and best["read_edge_list"][0] > base)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, prog="python -m benchmarks.experiments.edge_list")))
