"""Seconds of `jaxgnn.data.load` from the cache of built graphs: `python -m` this module.

The file is `scipy.sparse.save_npz`'s, of uniform random edges. The first load reads it, builds the
graph and keeps it; the others map what was kept, which includes the comparison with its checksums.
All is warm in the page cache. Of the cached loads the least and the longest time are printed.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse
import tyro


@dataclasses.dataclass(frozen=True)
class Options:
    """What is read, and how often."""

    edges: int = 100_000_000
    nodes: int = 1_000_000
    repeats: int = 5
    target: float = 2.0
    """Seconds that a cached load may take."""
    folder: Path | None = None
    """Where the file and the cache lie meanwhile: some 16 + 30 bytes an edge."""
    seed: int = 0


def write(path: Path, options: Options) -> None:
    """Edges with a value each, in SciPy's coordinates."""
    rng = np.random.default_rng(options.seed)
    ends = rng.integers(0, options.nodes, (2, options.edges), np.int32)
    shape = (options.nodes, options.nodes)
    ones = np.ones(options.edges, np.float32)
    scipy.sparse.save_npz(path, scipy.sparse.coo_array((ones, ends), shape), compressed=False)


def main(options: Options) -> int:
    """Prints the seconds; 1 if a cached load takes more than the target."""
    with tempfile.TemporaryDirectory(prefix="jaxgnn-cache-", dir=options.folder) as folder:
        os.environ["JAXGNN_CACHE"] = folder
        from jaxgnn import data

        path = Path(folder) / "edges.npz"
        write(path, options)
        os.utime(path, (1, 1))  # as a file that was there before: its time is relied on
        start, used = time.perf_counter(), time.process_time()
        built = data.load(path, cache=True)
        first, used = time.perf_counter() - start, time.process_time() - used
        expected = int(np.asarray(built.graph.senders).sum(dtype=np.int64))
        edges = built.graph.num_edges
        del built
        entries = sorted((Path(folder) / "graphs").iterdir())
        kept = sum(entry.stat().st_size for entry in entries)
        if not entries:
            print("nothing was kept: is there room for it?", file=sys.stderr)
            return 2
        seconds, cpu = [], []
        for _ in range(options.repeats):
            start = time.perf_counter(), time.process_time()
            loaded = data.load(path, cache=True)
            seconds.append(time.perf_counter() - start[0])
            cpu.append(time.process_time() - start[1])
            if int(np.asarray(loaded.graph.senders).sum(dtype=np.int64)) != expected:
                raise SystemExit("the cached graph is another one")
            del loaded
        size = path.stat().st_size
    print(
        f"{options.edges:,} edges in the file ({size / 1e9:.2f} GB), {edges:,} in the graph, "
        f"{kept / 1e9:.2f} GB kept; {os.cpu_count()} CPUs, {platform.machine()}"
    )
    print(f"read, built and kept  {first:8.3f} s; {used:.3f} CPU s of all threads")
    print(
        f"from the cache        {min(seconds):8.3f} s, at most {max(seconds):.3f} s; "
        f"{min(cpu):.3f} CPU s of all threads"
    )
    return int(min(seconds) > options.target)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, prog="python -m benchmarks.experiments.graph_cache")))
