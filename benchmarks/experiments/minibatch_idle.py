"""How long a GPU waits within mini-batch training steps.

    python -m benchmarks.experiments.minibatch_idle [--steps 64] [--cache DIR] [--json FILE]

The steps are those of the suite `sampling`: three SAGE layers of 256, 1,024 seeds, [15, 10, 5]
neighbors. "In one program" they run by `NeighborLoader.scan`, sampling inside; "call by call" the
loader samples a batch, and the next call trains on it. One process times them, and another one
traces their kernels by JAX's profiler. The GPU is idle in what of a step's time no kernel runs.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness import graphs, plan
from benchmarks.harness.minibatch import SEED_SHARE, Data, Step
from benchmarks.harness.record import write_records
from benchmarks.harness.trace import busy, gpu_kernels, keep_command_buffers
from benchmarks.suites.sampling import CASE, NUM_NEIGHBORS, SEEDS, WIDTHS


@dataclasses.dataclass(frozen=True)
class Options:
    """Traces mini-batch steps."""

    steps: int = 64
    """Of each kind."""
    scale: float = 1.0
    """Of the graph."""
    cache: Path | None = None
    """Keep the generated graph in this folder."""
    json: Path | None = None
    """A file for the results."""


def main() -> None:
    """Prints a row for each way to run the steps."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool:
        timed = pool.submit(_run, options, False).result()
        traced = pool.submit(_run, options, True).result()
    facts = timed.pop("facts")
    records = [
        {
            "what": way,
            "steps": options.steps,
            "ms": timed[way],
            "busy_ms": traced[way],
            "idle_share": max(0.0, 1 - traced[way] / timed[way]),
        }
        for way in timed
    ]
    table = Table("steps", "ms a step", "a kernel runs, ms", "idle, %")
    for record in records:
        idle = f"{100 * record['idle_share']:.1f}"
        table.add_row(record["what"], f"{record['ms']:.3f}", f"{record['busy_ms']:.3f}", idle)
    Console().print(table)
    if options.json is not None:
        write_records(options.json, records, graph=facts)


def _run(options: Options, trace: bool) -> dict[str, Any]:
    """Milliseconds of a step by way: its time, or that in which a kernel runs."""
    if trace:
        keep_command_buffers()

    import jax

    from benchmarks.ours.minibatch import trainer

    if jax.default_backend() != "gpu":
        raise SystemExit("minibatch_idle: needs a GPU, whose kernels it traces")
    step = Step(plan.OURS, CASE, SEEDS[0], NUM_NEIGHBORS, WIDTHS)
    with (
        tempfile.TemporaryDirectory() as workspace,
        graphs.stored(CASE, options.scale, options.cache) as graph,
    ):
        rng, nodes = np.random.default_rng(8), graph.num_nodes
        x = rng.random((nodes, WIDTHS[0]), np.float32) - np.float32(0.5)
        labels = rng.integers(0, WIDTHS[-1], nodes).astype(np.int32)
        seeds = rng.permutation(nodes)[: max(int(SEED_SHARE * nodes), SEEDS[0])].astype(np.int32)
        ready = trainer(step, Data(graph, x, labels, seeds, Path(workspace), "gpu", 2))
        assert ready.loop is not None
        ways: dict[str, Callable[[], float]] = {
            "in one program": functools.partial(ready.loop(options.steps), 1),
            "call by call": functools.partial(ready.seconds, options.steps),
        }
        found: dict[str, Any] = {"facts": graph.facts}
        for way, run in ways.items():
            run()
            if trace:
                found[way] = busy(gpu_kernels(run)) / options.steps
            else:
                found[way] = 1e3 * min(run() for _ in range(5)) / options.steps
    return found


if __name__ == "__main__":
    main()
