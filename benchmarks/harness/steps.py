"""Training steps: their inputs and jobs, of `training`, `attention` and `tensor_core`.

Forward, cross-entropy over all nodes, backward, Adam, on the full graph. Every implementation
starts from the same parameters; its gradients are compared with those of a float64 run.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import graphs, plan, process
from benchmarks.harness.job import Job, checked
from benchmarks.harness.options import Options
from benchmarks.harness.record import Record
from benchmarks.harness.setting import ORACLE, Arrays, Setting

# What only attention's scores depend on: GAT's vectors, GATv2's vector and its receivers'
# projection, of a layer; and AGNN's betas, all that its layers have.
_CANCELLING = re.compile(r"(convs\.)\d+\.beta|(convs\.\d+\.)(?:attention|linear_receivers\.)")
_SHARE = 0.05
_OUTPUTS = "outputs"  # beside an oracle's gradients
_FEATURES = "features.npz"


def run_groups(
    groups: Iterable[Sequence[Setting]],
    case: str,
    widths: Sequence[int],
    options: Options,
    record: Record,
    workspace: Path,
) -> None:
    """`run_on_graphs` of one graph and its widths."""
    named = [[dataclasses.replace(s, graph=case) for s in group] for group in groups]
    run_on_graphs(named, {case: widths}, options, record, workspace)


def run_on_graphs(
    groups: Iterable[Sequence[Setting]],
    widths: Mapping[str, Sequence[int]],
    options: Options,
    record: Record,
    workspace: Path,
) -> None:
    """Runs settings, a process for each group; before them, in one, their oracles.

    `widths` are by graph. Features, parameters and the oracles' gradients go to `workspace`, which
    is this call's own.
    """
    chosen = [[s for s in group if plan.wanted(s.impl, options.only)] for group in groups]
    oracles = dict.fromkeys(setting.oracle for group in chosen for setting in group)
    if not oracles:
        return
    places = store(widths, options, workspace)
    for place in places.values():
        record.note_graph(graphs.read_facts(Path(place["folder"])))
    task: dict[str, Any] = {"module": __name__, "graphs": places}
    for group in filter(None, [list(oracles), *chosen]):
        process.run_each(task, group, options, record, workspace)


def store(
    widths: Mapping[str, Sequence[int]], options: Options, workspace: Path
) -> dict[str, dict[str, Any]]:
    """Saves graphs and their features; what a task's `graphs` say of each."""
    places = {}
    cache = options.cache or workspace.parent
    for case, folder in graphs.store_all(list(widths), cache, options.scale).items():
        own = workspace / case
        own.mkdir(parents=True, exist_ok=True)
        save_features(own, graphs.read_facts(folder), widths[case])
        sizes = list(widths[case])
        places[case] = {"folder": str(folder), "workspace": str(own), "widths": sizes}
    return places


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job | None]:
    """What makes the job of a setting."""
    return functools.partial(_prepare, task, threads)


def _prepare(task: dict[str, Any], threads: int, entry: dict[str, Any]) -> Job | None:
    """The job of a setting; an oracle writes its file instead."""
    setting, device = Setting(**entry), task["device"]
    place = task["graphs"][setting.graph]
    graph, workspace = graphs.load(Path(place["folder"])), Path(place["workspace"])
    widths = list(setting.sizes(place["widths"]))
    file = workspace / f"parameters-{setting.model}.npz"
    oracle_file = workspace / f"oracle-{setting.model}-{setting.k}.npz"
    if not file.exists():  # the oracles are the first
        from benchmarks.ours import models

        np.savez(file, **models.initial_parameters(setting, widths))
    inputs = (setting, graph, _features(workspace), load_arrays(file))
    if setting.impl == ORACLE:
        from benchmarks.baselines import jax_models

        rows = _sampled(graph.num_nodes)
        loss, outputs, gradients = jax_models.float64_gradients(*inputs, rows)
        np.savez(oracle_file, **{"loss": np.array(loss), _OUTPUTS: outputs, **gradients})
        return None
    if setting.impl.startswith(("PyG", "cuSPARSE")):
        from benchmarks.baselines import torch_models

        job = torch_models.step(*inputs, device, threads)
    else:
        from benchmarks.harness import jax_step

        job = jax_step.step(*inputs, widths, device, alone=len(task["entries"]) == 1)

    def check() -> dict[str, Any]:
        expected = load_arrays(oracle_file)
        outputs = expected.pop(_OUTPUTS)
        if setting.forward:
            difference = job.rows(_sampled(graph.num_nodes)).astype(np.float64) - outputs
            error = float(np.abs(difference).max() / np.abs(outputs).max())
            return checked(error, setting.tolerance(device))
        timed_loss, loss, gradients = job.gradients()
        error = gradient_error(loss, gradients, expected)
        error = error if np.isfinite(timed_loss) else float("inf")
        return {**checked(error, setting.tolerance(device)), "loss": timed_loss}

    shape = {"nodes": graph.num_nodes, "edges": graph.num_edges, "widths": widths}
    sizes = {"k": setting.k, "heads": setting.heads}
    job.check = check
    job.identity = {
        "case": setting.case(graph.facts["name"]),
        "impl": setting.impl,
        "dtype": setting.dtype,
        "shape": shape | {name: value for name, value in sizes.items() if value is not None},
        "pass": "forward" if setting.forward else "step",
    }
    return job


def _sampled(num_nodes: int, count: int = 256) -> np.ndarray:
    """The rows of a forward pass's result that are checked."""
    return np.random.default_rng(7).choice(num_nodes, min(count, num_nodes), replace=False)


def gradient_error(
    loss: float, gradients: dict[str, np.ndarray], expected: dict[str, Any]
) -> float:
    """Largest relative error: of the loss, and of each parameter's gradient in norm.

    The gradients of what only attention's scores depend on are what is left of terms that cancel,
    at times a thousandth of others: a share of their layer's largest gradient counts as their norm,
    for AGNN's betas of the largest of all betas.
    """
    errors = [abs(loss - float(expected["loss"])) / abs(float(expected["loss"]))]
    if gradients.keys() != expected.keys() - {"loss"}:
        raise ValueError(f"gradients of {sorted(gradients)}, expected {sorted(expected)}")
    for name, gradient in gradients.items():
        difference = np.linalg.norm(gradient.astype(np.float64) - expected[name])
        size = np.linalg.norm(expected[name])
        if cancelling := _CANCELLING.match(name):
            prefix = cancelling[1] or cancelling[2]
            beside = [g for other, g in expected.items() if other.startswith(prefix)]
            size = max(size, _SHARE * max(map(np.linalg.norm, beside)))
        errors.append(float(difference / size))
    return max(errors) if np.isfinite(errors).all() else float("inf")


def load_arrays(path: Path) -> Arrays:
    """What `numpy.savez` wrote, loaded."""
    with np.load(path) as archive:
        return dict(archive)


@functools.lru_cache(maxsize=1)
def _features(workspace: Path) -> Arrays:
    """Those of the graph that the entries before were on, too: up to a gigabyte."""
    return load_arrays(workspace / _FEATURES)


def save_features(workspace: Path, facts: dict[str, Any], widths: Sequence[int]) -> None:
    """Random features and labels of a graph's nodes."""
    rng = np.random.default_rng(5)
    x = rng.random((facts["nodes"], widths[0]), np.float32) - np.float32(0.5)
    labels = rng.integers(0, widths[-1], facts["nodes"]).astype(np.int32)
    np.savez(workspace / _FEATURES, x=x, labels=labels)
