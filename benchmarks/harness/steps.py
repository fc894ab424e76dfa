"""Training steps: their settings, inputs and jobs, of the suites `training` and `attention`.

Forward, cross-entropy over all nodes, backward, Adam, on the full graph. Every implementation
starts from the same parameters; its gradients are compared with those of a float64 run.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import graphs, plan, process
from benchmarks.harness.job import Job, checked
from benchmarks.harness.options import Options
from benchmarks.harness.record import Record

ORACLE = "float64"
NORM_EPSILON = 1e-5
# What only attention's scores depend on: GAT's vectors, GATv2's vector and its receivers'
# projection.
_CANCELLING = re.compile(r"(convs\.\d+\.)(attention|linear_receivers\.)")
_SHARE = 0.05

Arrays = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One step to time, or its oracle."""

    impl: str
    model: str = "sage"  # or gcn, gin, one of `plan.EDGE_MODELS`
    k: int | None = None  # of MaxK; without it ReLU
    dtype: str = "float32"  # of the computation; parameters are float32
    # As in the published script, a linear projection before the first convolution, and another
    # after the last one's activation.
    input_layer: bool = False
    heads: int | None = None  # of gat and gatv2; the last layer has one
    recompute: bool = False  # of normalization, activation and dropout, in the backward pass
    hidden: int | None = None  # width of the hidden rows, if not the task's
    label: str = ""  # tells its rows from those of the same model in other sizes

    def __str__(self) -> str:
        activation = "ReLU" if self.k is None else f"MaxK {self.k}"
        return f"training {self.impl} {self.model}{self.label} {activation} {self.dtype}"

    def case(self, graph: str) -> str:
        """The case of its row on this graph."""
        named = self.input_layer or self.model in plan.EDGE_MODELS
        return f"{graph} {self.model}{self.label}" if named else graph

    def sizes(self, widths: Sequence[int]) -> tuple[int, ...]:
        """The task's widths, or with its own hidden ones."""
        first, *hidden, last = widths
        return first, *(self.hidden or width for width in hidden), last

    @property
    def variant(self) -> str:
        """The implementation without the flags of its process."""
        return self.impl.removesuffix(plan.FTZ)

    @property
    def regularized(self) -> bool:
        """Whether layer normalization and dropout follow the layers, as in the published script."""
        return self.model not in plan.EDGE_MODELS

    @property
    def oracle(self) -> Setting:
        """The setting of the gradients that this one's should be."""
        return dataclasses.replace(self, impl=ORACLE, dtype="float64")

    @property
    def continuous(self) -> bool:
        """Whether close numbers have close gradients: MaxK and a maximum choose among them."""
        return self.k is None and self.model != "edgeconv"

    def tolerance(self, device: str) -> float:
        """Of a parameter's gradient, relative to its norm, and of the loss.

        TF32 products keep 11 bits, bfloat16 8. ReLU's slope jumps at 0: of ten million hidden
        values one or two are moved past it by rounding, and each is 3e-4 of a gradient's norm.
        Of models that are not continuous the gradients checked are those of float32 products.
        """
        if not self.continuous:
            return 2e-2
        if self.dtype == "bfloat16":
            return 0.2
        return 2e-2 if device == "gpu" else 1e-3


def run_groups(
    groups: Iterable[Sequence[Setting]],
    case: str,
    widths: Sequence[int],
    options: Options,
    record: Record,
    workspace: Path,
) -> None:
    """Runs settings on a graph, a process for each group; before them, in one, their oracles.

    Features, parameters and the oracles' gradients go to `workspace`, which is this call's own.
    """
    chosen = [[s for s in group if plan.wanted(s.impl, options.only)] for group in groups]
    oracles = dict.fromkeys(setting.oracle for group in chosen for setting in group)
    if not oracles:
        return
    cache = options.cache or workspace.parent
    folder = graphs.store_all([case], cache, options.scale)[case]
    facts = graphs.read_facts(folder)
    record.note_graph(facts)
    workspace.mkdir(parents=True, exist_ok=True)
    save_features(workspace, facts, widths)
    task = {"module": __name__, "graph": str(folder), "workspace": str(workspace)}
    for group in filter(None, [list(oracles), *chosen]):
        process.run_each({**task, "widths": list(widths)}, group, options, record, workspace)


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job | None]:
    """What makes the job of a setting."""
    return functools.partial(_prepare, task, threads)


def _prepare(task: dict[str, Any], threads: int, entry: dict[str, Any]) -> Job | None:
    """The job of a setting; an oracle writes its file instead."""
    setting, workspace, device = Setting(**entry), Path(task["workspace"]), task["device"]
    graph = graphs.load(Path(task["graph"]))
    widths = list(setting.sizes(task["widths"]))
    file = workspace / f"parameters-{setting.model}.npz"
    oracle_file = workspace / f"oracle-{setting.model}-{setting.k}.npz"
    if not file.exists():  # the oracles are the first
        from benchmarks.ours import models

        np.savez(file, **models.initial_parameters(setting, widths))
    inputs = (setting, graph, load_arrays(workspace / "features.npz"), load_arrays(file))
    if setting.impl == ORACLE:
        from benchmarks.baselines import jax_models

        loss, gradients = jax_models.float64_gradients(*inputs)
        np.savez(oracle_file, **{"loss": np.array(loss), **gradients})
        return None
    if setting.impl.startswith(("PyG", "cuSPARSE")):
        from benchmarks.baselines import torch_models

        job = torch_models.step(*inputs, device, threads)
    else:
        from benchmarks.harness import jax_step

        job = jax_step.step(*inputs, widths, device, alone=len(task["entries"]) == 1)

    def check() -> dict[str, Any]:
        timed_loss, loss, gradients = job.gradients()
        error = gradient_error(loss, gradients, load_arrays(oracle_file))
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
        "pass": "step",
    }
    return job


def gradient_error(
    loss: float, gradients: dict[str, np.ndarray], expected: dict[str, Any]
) -> float:
    """Largest relative error: of the loss, and of each parameter's gradient in norm.

    The gradients of what only attention's scores depend on are what is left of terms that cancel,
    at times a thousandth of others: a share of their layer's largest gradient counts as their norm.
    """
    errors = [abs(loss - float(expected["loss"])) / abs(float(expected["loss"]))]
    if gradients.keys() != expected.keys() - {"loss"}:
        raise ValueError(f"gradients of {sorted(gradients)}, expected {sorted(expected)}")
    for name, gradient in gradients.items():
        difference = np.linalg.norm(gradient.astype(np.float64) - expected[name])
        size = np.linalg.norm(expected[name])
        if cancelling := _CANCELLING.match(name):
            of_layer = [g for other, g in expected.items() if other.startswith(cancelling[1])]
            size = max(size, _SHARE * max(map(np.linalg.norm, of_layer)))
        errors.append(float(difference / size))
    return max(errors) if np.isfinite(errors).all() else float("inf")


def load_arrays(path: Path) -> Arrays:
    """What `numpy.savez` wrote, loaded."""
    with np.load(path) as archive:
        return dict(archive)


def layer_parameters(params: Arrays) -> list[Arrays]:
    """The parameters of each convolution, their names without its number."""
    layers: dict[str, Arrays] = {}
    for name, value in params.items():
        if name.startswith("convs."):
            _, layer, own = name.split(".", 2)
            layers.setdefault(layer, {})[own] = value
    return [layers[layer] for layer in sorted(layers, key=int)]


def save_features(workspace: Path, facts: dict[str, Any], widths: Sequence[int]) -> None:
    """Random features and labels of a graph's nodes."""
    rng = np.random.default_rng(5)
    x = rng.random((facts["nodes"], widths[0]), np.float32) - np.float32(0.5)
    labels = rng.integers(0, widths[-1], facts["nodes"]).astype(np.int32)
    np.savez(workspace / "features.npz", x=x, labels=labels)
