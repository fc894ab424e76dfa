"""CPU seconds of reading a text edge list beside pandas: `python -m` this module.

Both read the same file of tab-separated ids in turns, warm in the page cache, and the least time of
each counts. `read_edge_list` also sorts the edges by receiver and merges repeated ones, which
`pandas.read_csv` does not; `load` builds the `Graph` on top.
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

import numpy as np
import tyro


@dataclasses.dataclass(frozen=True)
class Options:
    """What is read, and how often."""

    edges: int = 10_000_000
    nodes: int = 1_000_000
    repeats: int = 5
    seed: int = 0


def write(path: Path, options: Options) -> None:
    """Uniform random edges, a block at a time."""
    rng = np.random.default_rng(options.seed)
    with open(path, "w", encoding="ascii") as file:
        for begin in range(0, options.edges, 1 << 18):
            count = min(1 << 18, options.edges - begin)
            ends = rng.integers(0, options.nodes, (count, 2)).tolist()
            file.write("".join(f"{sender}\t{receiver}\n" for sender, receiver in ends))


def measure(readers: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple]:
    """The least CPU and wall seconds of each, in turns; all threads count."""
    best = {name: (float("inf"), float("inf")) for name in readers}
    for _ in range(repeats):
        for name, read in readers.items():
            cpu, wall = time.process_time(), time.perf_counter()
            result = read()
            seconds = time.process_time() - cpu, time.perf_counter() - wall
            del result
            best[name] = tuple(map(min, best[name], seconds))
    return best


def main(options: Options) -> int:
    """Prints the seconds and the ratio; 1 if `read_edge_list` takes more than pandas."""
    try:
        import pandas
    except ImportError:
        print("needs pandas: pip install pandas", file=sys.stderr)
        return 2
    from jaxgnn import data

    with tempfile.TemporaryDirectory(prefix="jaxgnn-edge-list-") as folder:
        path = Path(folder) / "edges.txt"
        write(path, options)
        data.load(path)  # starts JAX
        readers: dict[str, Callable[[], object]] = {
            "pandas.read_csv": lambda: pandas.read_csv(path, sep="\t", header=None),
            "read_edge_list": lambda: data.read_edge_list(path),
            "load, to a Graph": lambda: data.load(path),
        }
        size = os.path.getsize(path)
        best = measure(readers, options.repeats)
    print(
        f"{options.edges:,} edges, {options.nodes:,} nodes, {size / 1e6:.0f} MB; {os.cpu_count()} "
        f"CPUs, {platform.machine()}, pandas {pandas.__version__}"
    )
    base = best["pandas.read_csv"][0]
    for name, (cpu, wall) in best.items():
        print(f"{name:18} {cpu:7.3f} CPU s  {wall:7.3f} s  {cpu / base:5.2f} of pandas' CPU")
    return int(best["read_edge_list"][0] > base)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, prog="python -m benchmarks.experiments.edge_list")))
