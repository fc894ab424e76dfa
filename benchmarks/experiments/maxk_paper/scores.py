"""Table 5's scores, and the curves of Figures 9 and 10: models trained on the sets' own files."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.experiments.maxk_paper.store import Results
from jaxgnn.data import NodeDataset
from jaxgnn.train import Best, Compiled, Progress, TrainConfig, build, score, train
from jaxgnn.train.loop.epochs import copy
from jaxgnn.train.problems.node_problem import choose_split, make_task

_POINTS = 100  # of a curve


def run(
    dataset: str,
    config: TrainConfig,
    data: NodeDataset,
    seeds: Sequence[int],
    results: Results,
) -> None:
    """Trains the seeds that `results` do not have yet, as `jaxgnn train` does, one by one.

    A seed that time runs out for is not recorded.
    """
    k = config.k if config.activation == "maxk" else None
    own = {"dataset": dataset, "model": config.model, "k": k, "epochs": config.epochs}
    left = [seed for seed in seeds if not results.find("scores", seed=seed, **own)]
    if not left or results.out_of_time():
        return
    split = choose_split(data, config.split)
    task = make_task(config, data, split)
    compiled: Compiled | None = None
    for seed in left:
        if results.out_of_time():
            return
        program, state = build(dataclasses.replace(config, seed=seed), task)
        compiled = compiled or Compiled(program, state, task)
        rows: list[dict[str, Any]] = []
        start = time.perf_counter()
        _, best, progress = train(
            compiled,
            task,
            state,
            Best(copy(state.params), copy(state.rest)),
            Progress(),
            epochs=config.epochs,
            on_epoch=rows.append,
            interrupted=results.out_of_time,
        )
        if progress.epoch < config.epochs:
            return
        logits = np.asarray(compiled.evaluate(best.params, best.rest, task)[0])
        test = score(task.metric, data.labels, logits, split.test)
        row = {
            **own,
            "seed": seed,
            "metric": data.metric,
            "nodes": data.num_nodes,
            "edges": data.graph.num_edges,
            "test_score": round(float(test), 6),
            "best_epoch": progress.best_epoch,
            "seconds": round(time.perf_counter() - start, 3),
            "curve": curve(rows, data.metric),
        }
        results.add("scores", row)
        print(
            f"{dataset} {config.model} {'ReLU' if k is None else f'k={k}'} seed {seed}: "
            f"{test:.4f} ({data.metric}) after {config.epochs} epochs, {row['seconds']:.1f} s",
            file=sys.stderr,
        )


def curve(rows: Sequence[dict[str, Any]], metric: str) -> list[list[float | None]]:
    """Epoch, seconds so far, training loss and validation score, at up to 100 of the epochs.

    Seconds have the evaluation after each epoch in them.
    """
    seconds = np.cumsum([row["seconds"] for row in rows])
    chosen = np.unique(np.linspace(1, len(rows), min(_POINTS, len(rows))).round().astype(int))
    return [
        [
            int(epoch),
            round(float(seconds[epoch - 1]), 4),
            round(rows[epoch - 1]["loss"], 6),
            _rounded(rows[epoch - 1].get(f"val_{metric}")),
        ]
        for epoch in chosen
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
