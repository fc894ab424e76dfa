"""Table 5's times: a training step of each model, ours with ReLU and MaxK, and the baselines."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.maxk_paper.published import TABLE_5
from benchmarks.experiments.maxk_paper.store import Receiver, Results
from benchmarks.harness import graphs, plan, process, steps
from benchmarks.harness.options import Options
from benchmarks.harness.rows import Row
from benchmarks.harness.setting import Setting


def settings(dataset: str, models: Sequence[str], device: str) -> list[list[Setting]]:
    """What is timed on a set, those that share a process together.

    Plain JAX is its strongest form, with A^T by hand and XLA's fastest flag for scatters.
    """

    def make(impl: str, model: str, k: int | None = None) -> Setting:
        return Setting(impl, model, k, input_layer=True)

    ours = [make(plan.OURS, model, k) for model in models for k in TABLE_5[dataset, model]]
    plain = plan.TRANSPOSED + (plan.FTZ if device == "gpu" else "")
    by_hand = [make(plan.CUSPARSE_STEP, model) for model in models]
    if "sage" in models:
        by_hand.append(make(plan.PYG_ADJ, "sage"))
    return [ours, by_hand, [make(plain, model) for model in models]]


def run(
    dataset: str,
    graph: Path,
    widths: Sequence[int],
    models: Sequence[str],
    options: Options,
    results: Results,
    workspace: Path,
) -> None:
    """Times the steps on a stored graph that `results` do not have yet."""
    assert options.device is not None
    groups = [
        [s for s in group if not _known(results, dataset, s)]
        for group in settings(dataset, models, options.device)
    ]
    if not any(groups) or results.out_of_time():
        return
    print(f"{dataset}: {sum(map(len, groups))} training steps to time", file=sys.stderr)
    inputs = workspace / f"inputs-{dataset}"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context, graphs.on_cpu) as pool:
        pool.submit(_write_inputs, inputs, graph, list(widths), list(models)).result()
    task = {
        "module": "benchmarks.experiments.maxk_paper.worker",
        "graph": str(graph),
        "inputs": str(inputs),
        "widths": list(widths),
        "deadline": results.deadline,
    }
    receiver = Receiver(results, "steps", {"dataset": dataset})
    for group in filter(None, groups):
        process.run_each(task, group, options, receiver, workspace)


def _known(results: Results, dataset: str, setting: Setting) -> bool:
    own = {"model": setting.model, "impl": setting.impl, "k": setting.k}
    return bool(results.find("steps", dataset=dataset, **own))


def _write_inputs(inputs: Path, graph: Path, widths: list[int], models: list[str]) -> None:
    """Features, labels and each model's parameters, which all implementations begin with."""
    from benchmarks.ours.models import initial_parameters

    inputs.mkdir(parents=True, exist_ok=True)
    steps.save_features(inputs, graphs.read_facts(graph), widths)
    for model in models:
        setting = Setting(plan.OURS, model, input_layer=True)
        np.savez(inputs / f"parameters-{model}.npz", **initial_parameters(setting, widths))


def compared(results: Results, dataset: str, model: str) -> list[dict[str, Any]]:
    """Our rows of a set and model, with their speed-ups and the limits of these.

    `speedup` is over ours with ReLU, `over_best` over the fastest baseline. A limit is what the
    speed-up would be if the aggregations of ours with ReLU took no time (Amdahl's law).
    """
    rows = results.find("steps", dataset=dataset, model=model)
    ours = [row for row in rows if row["impl"] == plan.OURS]
    baseline = min((r for r in rows if r["impl"] != plan.OURS), key=_ms, default=None)
    relu = next((row for row in ours if row["k"] is None), None)
    rest = None if relu is None else relu["ms"] - relu["aggregation_ms"]
    entries = []
    for row in sorted(ours, key=lambda row: (row["k"] is not None, -(row["k"] or 0))):
        entry = {"k": row["k"], "ms": row["ms"], "edges": row["shape"]["edges"]}
        if relu is not None:
            entry |= {"speedup": relu["ms"] / row["ms"], "limit": _ratio(relu["ms"], rest)}
        if baseline is not None:
            entry |= {"over_best": baseline["ms"] / row["ms"], "best": baseline["impl"]}
            entry["limit_over_best"] = _ratio(baseline["ms"], rest)
        entries.append(entry)
    return entries


def _ms(row: Row) -> float:
    return row["ms"]


def _ratio(whole: float, rest: float | None) -> float | None:
    """`None` where the aggregations, timed by themselves, took as long as the step."""
    return None if rest is None or rest <= 0 else whole / rest
