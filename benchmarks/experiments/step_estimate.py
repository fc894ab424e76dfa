"""Memory and time of a training step as `jaxgnn info` predicts them, beside what they are.

    python -m benchmarks.experiments.step_estimate [--processor-time] [--scale 0.2] [--json OUT]

Each model in a process of its own, on an arxiv-shaped graph with 128 random features. On a CPU the
memory is the step's operands and how far one call raises the process's resident memory; on a GPU
the device's high-water mark. The time is the least of ten steps, as the rates are least times.
`--processor-time` has that of all threads in place of the clock's, for a CPU that others use too.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.harness.process import ROOT

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
_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Options:
    """Predicts and measures training steps."""

    cases: tuple[str, ...] = tuple(CASES)
    """Which."""
    scale: float = 0.2
    """Of the graph's nodes and edges."""
    processor_time: bool = False
    """Seconds of all threads, in place of the clock's."""
    json: Path | None = None
    """A file for the results."""
    one: str = ""
    """Of the processes that measure: the case, whose result is printed."""


def measure(case: str, options: Options) -> dict[str, Any]:
    """One case: first what it takes, then what is predicted."""
    import jax
    import jax.numpy as jnp

    from benchmarks.harness import timing
    from jaxgnn.data import NodeDataset, Split, benchmark_graph
    from jaxgnn.train import TrainConfig, build
    from jaxgnn.train.estimate import estimate
    from jaxgnn.train.node_problem import make_task
    from jaxgnn.train.step import no_loss

    clock = time.process_time if options.processor_time else time.perf_counter
    graph = benchmark_graph("arxiv", options.scale).to_graph()
    rng, nodes = np.random.default_rng(0), graph.num_nodes
    part = np.arange(nodes) % 4
    split = Split(part < 2, part == 2, part == 3)
    features = rng.standard_normal((nodes, 128), np.float32)
    labels = rng.integers(40, size=nodes).astype(np.int32)
    data = NodeDataset("arxiv", graph, features, labels, 40, {"random": split})
    config = TrainConfig(dataset="arxiv", **CASES[case]).check()
    task = make_task(config, data, split)
    program, state = build(config, task)
    operands: tuple[Any, ...] = (state, task)
    function = program.step
    if program.batches is not None:
        operands = (state, no_loss(task), task)
        function = lambda *operands: program.step_on_batches(1, *operands)  # noqa: E731
    compiled = jax.jit(function, donate_argnums=0).lower(*operands).compile()

    def step() -> None:
        nonlocal operands
        state, _ = jax.block_until_ready(compiled(*operands))
        operands = (state, *operands[1:])

    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(operands)}
    held = sum(leaf.nbytes for leaf in leaves.values() if isinstance(leaf, jax.Array)
               and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))  # fmt: skip
    growth = timing.peak_resident_bytes(step)
    times = []
    for _ in range(_STEPS):
        before = clock()
        step()
        times.append(clock() - before)
    statistics = jax.devices()[0].memory_stats() or {}
    measured = statistics.get("peak_bytes_in_use", held + (growth or 0))
    guess = estimate(program, operands[0], task, clock=clock)
    seconds = min(times)
    return {
        "case": case,
        "nodes": nodes,
        "edges": graph.num_edges,
        "measured_bytes": measured,
        "predicted_bytes": guess.peak_bytes,
        "bytes_ratio": round(guess.peak_bytes / measured, 3),
        "measured_ms": round(1e3 * seconds, 3),
        "predicted_ms": round(1e3 * guess.seconds, 3),
        "ms_ratio": round(guess.seconds / seconds, 3),
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
    for case in options.cases:
        command = [sys.executable, "-m", "benchmarks.experiments.step_estimate", "--one", case]
        command += ["--scale", str(options.scale)]
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
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
