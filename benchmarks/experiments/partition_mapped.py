"""Memory of `partition(method="stream")` on edges in a mapped file, beside that file.

    python -m benchmarks.experiments.partition_mapped --edges 50 100 [--nodes 7] [--folder /tmp]

Writes random edges, most of them inside of communities whose ids are apart, and partitions them in
a process of its own, whose anonymous memory (all but files) this one reads every few milliseconds.
1,600 million edges and 111 million nodes have the size of ogbn-papers100M; at the same number of
nodes, the memory does not depend on the edges.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.harness.process import ROOT

_COMMUNITY = 1024
_CHUNK = 1 << 24  # edges that are drawn at a time


@dataclasses.dataclass(frozen=True)
class Options:
    """Partitions graphs in mapped files, and measures memory and time."""

    edges: tuple[float, ...] = (50.0, 100.0)
    """Millions of edges, a run each."""
    nodes: float = 7.0
    """Millions of nodes."""
    parts: int = 8
    """Of the partition."""
    passes: int = 5
    """Over the edges."""
    folder: Path = Path(tempfile.gettempdir())
    """Where the edges are written, 4 bytes each, and removed afterwards."""
    json: Path | None = None
    """A file for the results."""
    one: Path | None = None
    """Of the processes that partition: the folder, whose result is printed."""


def write(folder: Path, nodes: int, edges: int) -> None:
    """A CSR of nodes of equal degrees, up to one: chunk after chunk, so that none is held."""
    rng = np.random.default_rng(0)
    offsets = np.arange(nodes + 1) * np.int64(edges) // nodes
    offsets.tofile(folder / "row_offsets.bin")
    groups = max(nodes // _COMMUNITY, 1)
    with open(folder / "senders.bin", "wb") as file:
        for first in range(0, edges, _CHUNK):
            edge = np.arange(first, min(first + _CHUNK, edges))
            receivers = ((edge + 1) * nodes - 1) // edges
            # A community is the ids of one remainder: no two neighbors of a row are near.
            senders = rng.integers(0, _COMMUNITY, edge.size) * groups + receivers % groups
            anywhere = rng.random(edge.size, np.float32) < 0.2
            senders[anywhere] = rng.integers(0, nodes, int(anywhere.sum()))
            np.minimum(senders, nodes - 1).astype(np.int32).tofile(file)


def anonymous_bytes(process: int | str) -> int:
    """Resident memory of a process that is no file's; 0 of one that has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return 0 if found is None else 1024 * int(found[1])


def measure(folder: Path, options: Options) -> dict[str, Any]:
    """Partitions the graph in a folder."""
    from jaxgnn.data import CSR
    from jaxgnn.distributed import partition

    offsets = np.memmap(folder / "row_offsets.bin", np.int64, "r")
    senders = np.memmap(folder / "senders.bin", np.int32, "r")
    before = anonymous_bytes("self")
    start = time.perf_counter()
    split = partition(CSR(offsets, senders), options.parts, passes=options.passes)
    seconds = time.perf_counter() - start
    nodes = offsets.size - 1
    found = split.statistics
    return {
        "nodes": nodes,
        "edges": senders.size,
        "parts": options.parts,
        "passes": options.passes,
        "seconds": round(seconds, 2),
        "bytes_before": before,
        "file_bytes": offsets.nbytes + senders.nbytes,
        "halo_per_node": round(found.halo_per_node, 3),
        "cut": round(found.cut_edges / senders.size, 4),
    }


def _watched(command: list[str]) -> dict[str, Any]:
    """The result that a process prints, and its memory at the peak."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        most = 0
        while process.poll() is None:
            most = max(most, anonymous_bytes(process.pid))
            time.sleep(0.002)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    if process.returncode:
        raise RuntimeError(f"expected a partition, got the status {process.returncode}")
    (line,) = (line for line in lines if line.startswith("@ "))
    row = json.loads(line[2:])
    growth = most - row["bytes_before"]
    return row | {
        "process_bytes": most,
        "growth_bytes": growth,
        "bytes_a_node": round(growth / row["nodes"], 2),
    }


def main() -> None:
    """Prints a line for each number of edges."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    if options.one is not None:
        print("@", json.dumps(measure(options.one, options)))
        return
    rows = []
    for edges in options.edges:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            write(Path(name), round(1e6 * options.nodes), round(1e6 * edges))
            command = [sys.executable, "-m", "benchmarks.experiments.partition_mapped"]
            command += ["--one", name, "--parts", str(options.parts)]
            command += ["--passes", str(options.passes)]
            rows.append(_watched(command))
        row = rows[-1]
        print(
            f"{row['edges'] / 1e6:,.0f} M edges, {row['nodes'] / 1e6:,.1f} M nodes into "
            f"{row['parts']}: {row['growth_bytes'] / 1e9:.3f} GB at the peak, "
            f"{row['bytes_a_node']:.1f} bytes a node (the process {row['process_bytes'] / 1e9:.3f} "
            f"GB), beside {row['file_bytes'] / 1e9:.2f} GB of files; {row['seconds']:,.1f} s; halo "
            f"{row['halo_per_node']:.2f} rows a node, cut {row['cut']:.3f}",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
