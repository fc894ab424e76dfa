"""What `--anneal-stages` saves: milliseconds an epoch in each stage, and of a whole run.

    python -m benchmarks.experiments.anneal_stages [--shape products] [--scale 0.02] [--json FILE]

The same model is trained on a graph of that shape with random features: with MaxK narrowing in
stages (a program a stage, whose kernels move its k), with MaxK narrowing step by step (one program,
whose kernels move the first k in every epoch), with the last k from the start, and with ReLU. Each
epoch is a step and an evaluation, as in a run. The four trainings take turns, one epoch each. The
milliseconds of an epoch are the medians of a stage's epochs but the first; a run's total is these
times the epochs that a run of `--run-epochs` has of each stage. `--processor-time` has the time of
all threads, for a CPU that others use too.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness import graphs
from benchmarks.harness.record import write_records
from jaxgnn.data import NodeDataset, Split
from jaxgnn.train import TrainConfig, build
from jaxgnn.train.loop.stages import compile_program, stage_widths
from jaxgnn.train.problems.node_problem import make_task

STAGES, STEPS, NARROW, RELU = "stages", "step by step", "k from the start", "ReLU"


@dataclasses.dataclass(frozen=True)
class Options:
    """Times the stages of annealing."""

    shape: str = "products"
    """Of `benchmark_graph`."""
    scale: float = 0.02
    """Of its nodes and edges."""
    model: str = "sage"
    """Of `jaxgnn.nn.MODELS`."""
    layers: int = 3
    """Number of convolutions, after a linear layer to the hidden width."""
    hidden: int = 256
    """Width of the hidden layers."""
    wide: int = 128
    """k at first."""
    k: int = 16
    """k at last."""
    epochs: int = 4
    """Measured, of each stage."""
    run_epochs: int = 200
    """Of the run whose total is printed."""
    anneal_epochs: int = 100
    """Of these, epochs in which k falls."""
    processor_time: bool = False
    """Of all threads, in place of the clock's."""
    json: Path | None = None
    """A file for the results."""


def configurations(options: Options) -> dict[str, TrainConfig]:
    """The four trainings; stages of `options.epochs` epochs."""
    before = len(stage_widths(options.wide, options.k)) - 1
    base = TrainConfig(
        model=options.model,
        layers=options.layers,
        hidden=options.hidden,
        input_layer=True,
        norm="layer",
        epochs=(before + 1) * options.epochs,
        activation="maxk",
        k=options.k,
    )
    falling = {"anneal_from": options.wide, "anneal_epochs": before * options.epochs}
    return {
        STAGES: dataclasses.replace(base, **falling, anneal_stages=True),
        STEPS: dataclasses.replace(base, **falling),
        NARROW: base,
        RELU: dataclasses.replace(base, activation="relu", k=TrainConfig.k),
    }


def data_of(graph: Any) -> NodeDataset:
    """Random features and labels for a graph."""
    rng, nodes = np.random.default_rng(0), graph.num_nodes
    part = np.arange(nodes) % 4
    split = Split(part < 2, part == 2, part == 3)
    features = rng.standard_normal((nodes, 128), np.float32)
    labels = rng.integers(40, size=nodes).astype(np.int32)
    return NodeDataset("random", graph, features, labels, 40, {"random": split})


class Training:
    """A training whose epochs are run one by one."""

    def __init__(self, config: TrainConfig, data: NodeDataset):
        self._task: Any = make_task(config, data, data.split())
        program, self._state = build(config, self._task)
        self._compiled = compile_program(config, program, self._state, self._task)

    def epoch(self, number: int) -> None:
        """A step and the evaluation."""
        stage = self._compiled.at(number)
        self._state, loss = stage.step(self._state, self._task)
        jax.block_until_ready(
            (loss, stage.evaluate(self._state.params, self._state.rest, self._task))
        )


def measured(data: NodeDataset, options: Options) -> dict[str, dict[int, float]]:
    """Milliseconds of an epoch, by training and by the stage's k."""
    clock = time.process_time if options.processor_time else time.perf_counter
    configs = configurations(options)
    trainings = {name: Training(config.check(), data) for name, config in configs.items()}
    times: dict[str, dict[int, list[float]]] = {name: defaultdict(list) for name in trainings}
    for stage, k in enumerate(stage_widths(options.wide, options.k)):
        for number in range(options.epochs):
            for name, training in trainings.items():
                before = clock()
                training.epoch(stage * options.epochs + number)
                if number:  # a program's first call is slower
                    times[name][k].append(1e3 * (clock() - before))
    return {
        name: {k: round(statistics.median(each), 3) for k, each in by_k.items()}
        for name, by_k in times.items()
    }


def totals(ms: dict[str, dict[int, float]], options: Options) -> dict[str, float]:
    """Seconds of a run, whose stages before the last share the epochs in which k falls."""
    *before, last = stage_widths(options.wide, options.k)
    epochs = {k: options.anneal_epochs / len(before) for k in before}
    epochs[last] = options.run_epochs - options.anneal_epochs
    return {
        name: round(sum(1e-3 * by_k[k] * count for k, count in epochs.items()), 3)
        for name, by_k in ms.items()
    }


def main(options: Options) -> None:
    """Measures, prints, and with `--json` writes a file."""
    with graphs.stored(options.shape, options.scale) as stored:
        data = data_of(stored.to_graph())
        ms = measured(data, options)
    seconds = totals(ms, options)
    table = Table(title=f"{stored.facts['nodes']:,} nodes, {stored.facts['edges']:,} edges")
    for column in ("stage's k", *(f"{name}, ms" for name in ms)):
        table.add_column(column, justify="right")
    for k in stage_widths(options.wide, options.k):
        table.add_row(f"{k}", *(f"{by_k[k]:.1f}" for by_k in ms.values()))
    label = f"{options.run_epochs} epochs, s"
    table.add_row(label, *(f"{total:.2f}" for total in seconds.values()), style="bold")
    Console(width=120).print(table)
    saved = 1 - seconds[STAGES] / seconds[STEPS]
    print(f"stages take {saved:.1%} less than step by step")
    if options.json is not None:
        records = [
            {"training": name, "ms_of_epoch": {str(k): value for k, value in by_k.items()},
             "run_seconds": seconds[name]}
            for name, by_k in ms.items()
        ]  # fmt: skip
        write_records(
            options.json,
            records,
            graph=stored.facts,
            clock="processor" if options.processor_time else "wall",
            run_epochs=options.run_epochs,
            anneal_epochs=options.anneal_epochs,
        )


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.anneal_stages"))
