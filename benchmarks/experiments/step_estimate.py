"""Memory and time of a training step as `jaxgnn info` predicts them, beside what they are.

    python -m benchmarks.experiments.step_estimate [--processor-time] [--scale 0.2] [--json OUT]
    python -m benchmarks.experiments.step_estimate --data FOLDER [--processor-time] [--json OUT]

Each model in a process of its own, on an arxiv-shaped graph with 128 random features; with `--data`
the real sets below that folder, with links and many graphs. On a CPU the memory is the step's
operands and how far a later call raises the process's resident memory: the first also reads code of
XLA's and of the kernels into memory, some 5 to 15 MB, once a process. On a GPU it is the
device's high-water mark. The time is the least of twenty steps, half of them before and half after
the prediction, as the rates are least times. `--processor-time` has that of all threads in place of
the clock's, for a CPU that others use too.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.harness.process import ROOT
from benchmarks.harness.record import write_records

_WIDE = {"hidden": 256, "norm": "layer"}
CASES: dict[str, dict[str, Any]] = {
    "gcn": {"model": "gcn", "hidden": 256},
    "sage": {"model": "sage", "layers": 3, **_WIDE},
    "sage, MaxK 32": {"model": "sage", "layers": 3, "activation": "maxk", "k": 32, **_WIDE},
    "gin": {"model": "gin", "hidden": 128},
    "gat": {"model": "gat", "hidden": 64},
    "gat, 4 heads": {"model": "gat", "hidden": 64, "heads": 4},
    "gat, 4 heads, k 4": {"model": "gat", "hidden": 64, "heads": 4, "head_k": 4},
    "gatv2": {"model": "gatv2", "hidden": 64, "heads": 4},
    "agnn": {"model": "agnn", "hidden": 64},
    "transformer": {"model": "transformer", "hidden": 64, "heads": 4},
    "transformer, k 4": {"model": "transformer", "hidden": 64, "heads": 4, "head_k": 4},
    "edgeconv": {"model": "edgeconv", "hidden": 64},
    "monet": {"model": "monet", "hidden": 64},
    "sage, mini-batches": {
        "model": "sage", "hidden": 256, "num_neighbors": "10,10", "batch_size": 512,
    },
}  # fmt: skip
# The sets of `--data`, and the settings of a run.
DATA: dict[str, dict[str, Any]] = {
    "cora, gcn": {"dataset": "cora", "model": "gcn"},
    "cora, gat, 8 heads": {"dataset": "cora", "model": "gat", "heads": 8, "out_heads": 1},
    "amazon_photo, sage": {"dataset": "amazon_photo/amazon_electronics_photo.npz", "model": "sage"},
    "amazon_photo, gin, MaxK 32": {
        "dataset": "amazon_photo/amazon_electronics_photo.npz", "model": "gin",
        "activation": "maxk", "k": 32, "hidden": 256, "norm": "batch",
    },
    "dblp, gcn": {"dataset": "dblp/dblp.npz", "model": "gcn"},
    "minesweeper, gatv2": {"dataset": "minesweeper/minesweeper.npz", "model": "gatv2", "heads": 4},
    "wikipedia_pos, embedding": {
        "dataset": "wikipedia_pos", "model": "sage", "hidden": 128, "features": "embedding",
    },
    "facebook, links": {
        "dataset": "facebook_combined/facebook_combined.txt.gz", "task": "link", "model": "gcn",
    },
    "p2p_gnutella31, links, mlp": {
        "dataset": "p2p_gnutella31/p2p-Gnutella31.mtx.gz", "task": "link", "model": "sage",
        "decoder": "mlp",
    },
    "proteins_full, graphs": {
        "dataset": "proteins_full", "task": "graph", "model": "gin", "batch_size": 128,
    },
}  # fmt: skip
_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Options:
    """Predicts and measures training steps."""

    cases: tuple[str, ...] = ()
    """Which; none: all."""
    data: Path | None = None
    """The folder of the real sets."""
    scale: float = 0.2
    """Of the graph's nodes and edges."""
    processor_time: bool = False
    """Seconds of all threads, in place of the clock's."""
    json: Path | None = None
    """A file for the results."""
    one: str = ""
    """Of the processes that measure: the case, whose result is printed."""


def prepare(case: str, options: Options) -> tuple[Any, Any, Any]:
    """The program of a case, the state it starts from, and what it trains on."""
    from jaxgnn.data import NodeDataset, Split, benchmark_graph
    from jaxgnn.train import Recovery, TrainConfig, build
    from jaxgnn.train.problems.node_problem import make_task
    from jaxgnn.train.problems.problem import make_problem

    if options.data is not None:
        settings = dict(DATA[case])
        settings["dataset"] = str(options.data / settings["dataset"])
        problem = make_problem(TrainConfig(**settings).check(), None, Recovery())
        program, state = problem.build()
        return program, state, problem.task
    graph = benchmark_graph("arxiv", options.scale).to_graph()
    rng, nodes = np.random.default_rng(0), graph.num_nodes
    part = np.arange(nodes) % 4
    split = Split(part < 2, part == 2, part == 3)
    features = rng.standard_normal((nodes, 128), np.float32)
    labels = rng.integers(40, size=nodes).astype(np.int32)
    data = NodeDataset("arxiv", graph, features, labels, 40, {"random": split})
    config = TrainConfig(dataset="arxiv", **CASES[case]).check()
    task = make_task(config, data, split)
    return *build(config, task), task


def growth_of(step: Callable[[], None]) -> int:
    """How far a step raises the resident memory of a process that has run one: the most of three.

    Before each, freed memory is given back to the system. Where glibc keeps a block nevertheless,
    the step finds it and raises nothing, hence the most.
    """
    from benchmarks.harness import timing

    found = []
    for _ in range(3):
        step()
        if sys.platform == "linux":
            time.sleep(0.3)  # its temporary memory is freed behind it
            ctypes.CDLL(None).malloc_trim(0)
        found.append(timing.peak_resident_bytes(step) or 0)
    return max(found)


def measure(case: str, options: Options) -> dict[str, Any]:
    """One case: first what it takes, then what is predicted."""
    import jax
    import jax.numpy as jnp

    from jaxgnn.train.planning.estimate import estimate, one_step

    clock = time.process_time if options.processor_time else time.perf_counter
    program, state, task = prepare(case, options)
    function, operands, graph = one_step(program, state, task)
    compiled = jax.jit(function, donate_argnums=0).lower(*operands).compile()

    def step() -> None:
        nonlocal operands
        state, _ = jax.block_until_ready(compiled(*operands))
        operands = (state, *operands[1:])

    def timed() -> list[float]:
        times = []
        for _ in range(_STEPS):
            before = clock()
            step()
            times.append(clock() - before)
        return times

    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(operands)}
    held = sum(leaf.nbytes for leaf in leaves.values() if isinstance(leaf, jax.Array)
               and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))  # fmt: skip
    growth = growth_of(step)
    times = timed()
    statistics = jax.devices()[0].memory_stats() or {}
    measured = statistics.get("peak_bytes_in_use", held + growth)
    guess = estimate(program, operands[0], task, clock=clock)
    seconds = min(times + timed())
    parts = ("products", "kernels", "moved", "random", "negatives", "rest", "pages")
    return {
        "case": case,
        "nodes": graph.num_receivers,
        "edges": graph.num_edges,
        "measured_bytes": measured,
        "predicted_bytes": guess.peak_bytes,
        "bytes_ratio": round(guess.peak_bytes / measured, 3),
        "measured_ms": round(1e3 * seconds, 3),
        "predicted_ms": round(1e3 * guess.seconds, 3),
        "ms_ratio": round(guess.seconds / seconds, 3),
        "parts_ms": {name: round(1e3 * getattr(guess, name), 3) for name in parts},
        "device": jax.devices()[0].device_kind,
    }


def main() -> None:
    """Runs the cases and prints a table."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    if options.one:
        print("@", json.dumps(measure(options.one, options)))
        return
    print("| model | MB, measured | predicted | ratio | ms, measured | predicted | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows = []
    for case in options.cases or (CASES if options.data is None else DATA):
        command = [sys.executable, "-m", "benchmarks.experiments.step_estimate", "--one", case]
        command += ["--scale", str(options.scale)]
        command += [] if options.data is None else ["--data", str(options.data.absolute())]
        command += ["--processor-time"] * options.processor_time
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("@ "))
        row = json.loads(line[2:])
        rows.append(row)
        sizes = (row["measured_bytes"] / 1e6, row["predicted_bytes"] / 1e6)
        print(
            f"| {case} | {sizes[0]:.1f} | {sizes[1]:.1f} | {row['bytes_ratio']:.2f} | "
            f"{row['measured_ms']:.1f} | {row['predicted_ms']:.1f} | {row['ms_ratio']:.2f} |",
            flush=True,
        )
    if options.json is not None:
        write_records(options.json, rows, clock="processor" if options.processor_time else "wall")


if __name__ == "__main__":
    main()
