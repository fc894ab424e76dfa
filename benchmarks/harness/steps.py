"""Training steps: their settings, inputs and jobs, of the suites `training` and `attention`.

Forward, cross-entropy over all nodes, backward, Adam, on the full graph. Every implementation
starts from the same parameters; its gradients are compared with those of a float64 run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import graphs, plan, process, profiling
from benchmarks.harness.job import Job, checked
from benchmarks.harness.options import EDGE_MODELS, Options
from benchmarks.harness.record import Record, Row

ORACLE = "float64"
# Those whose attention has a self-loop for each node.
LOOPED_MODELS = ("gat", "gatv2", "agnn")
NORM_EPSILON = 1e-5
# What only attention's scores depend on: GAT's vectors, GATv2's vector and its receivers'
# projection.
_CANCELLING = re.compile(r"(convs\.\d+\.)(attention|linear_receivers\.)")
_SHARE = 0.05

Arrays = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One step to time, or its oracle.

    Attributes:
        impl: whose it is.
        model: `"sage"`, `"gcn"`, `"gin"`, or one of `EDGE_MODELS`.
        k: MaxK's, or `None` for ReLU.
        dtype: of the computation; parameters are float32.
        input_layer: as the published script has it, a linear projection before the first
            convolution, and another after the last one's activation.
        heads: of `"gat"` and `"gatv2"`; the last layer has one.
        hidden: width of the hidden rows, if not the task's.
        label: tells its rows from those of the same model in other sizes.
    """

    impl: str
    model: str = "sage"
    k: int | None = None
    dtype: str = "float32"
    input_layer: bool = False
    heads: int | None = None
    hidden: int | None = None
    label: str = ""

    def __str__(self) -> str:
        activation = "ReLU" if self.k is None else f"MaxK {self.k}"
        return f"training {self.impl} {self.model}{self.label} {activation} {self.dtype}"

    def case(self, graph: str) -> str:
        """The case of its row on this graph."""
        named = self.input_layer or self.model in EDGE_MODELS
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
    def ours(self) -> bool:
        return self.impl in (plan.OURS, plan.STORED)

    @property
    def regularized(self) -> bool:
        """Whether layer normalization and dropout follow the layers, as in the published script."""
        return self.model not in EDGE_MODELS

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


def with_oracles(groups: Iterable[list[Setting]], options: Options) -> list[list[Setting]]:
    """The groups that share a process, narrowed by `--only`, and before them their oracles."""
    chosen = [[s for s in group if plan.wanted(s.impl, options.only)] for group in groups]
    chosen = [group for group in chosen if group]
    oracles = dict.fromkeys(setting.oracle for group in chosen for setting in group)
    return [list(oracles), *chosen] if chosen else []


def run_groups(
    groups: list[list[Setting]],
    folder: Path,
    widths: Sequence[int],
    options: Options,
    record: Record,
    workspace: Path,
    *,
    profile: bool = False,
) -> list[Row]:
    """Runs settings on the graph in `folder`, a process for each group; the first: the oracles.

    Features, parameters and the oracles' gradients go to `workspace`, which is this call's own.
    With `profile` the last group is profiled, not timed, and its rows are returned.
    """
    facts = graphs.read_facts(folder)
    record.note_graph(facts)
    workspace.mkdir(parents=True, exist_ok=True)
    save_features(workspace, facts, widths)
    task = {
        "kind": "steps",
        "suite": options.label,
        "device": options.device,
        "threads": options.threads,
        "graph": str(folder),
        "workspace": str(workspace),
        "timing": options.timing(),
        "widths": list(widths),
    }
    for group in groups:
        entries = {"entries": [dataclasses.asdict(setting) for setting in group]}
        names = [str(setting) for setting in group]
        if profile and group is groups[-1]:
            return profiling.run(task | entries, names, options, record, workspace)
        env = process.environment(
            options.device,
            options.threads,
            options.xla_flags,
            ftz_atomics=group[0].impl.endswith(plan.FTZ),
        )
        process.run_each(task | entries, names, env, record, workspace)
    return []


def make(task: dict[str, Any], threads: int) -> Steps:
    """The jobs of a task of settings."""
    return Steps(task, threads)


@dataclasses.dataclass
class Step:
    """What an implementation makes of a setting.

    Attributes:
        seconds, peak_bytes, facts, after: as in `Job`.
        gradients: the loss of the timed program, the loss and the gradients without dropout by
            parameter name; called after the timing.
    """

    seconds: Callable[[int], float]
    peak_bytes: Callable[[], int | None]
    gradients: Callable[[], tuple[float, float, dict[str, np.ndarray]]]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    after: Callable[[float], dict[str, Any]] = lambda ms: {}


class Steps:
    """Makes the jobs of training steps, and runs their oracles."""

    def __init__(self, task: dict[str, Any], threads: int) -> None:
        self._task = task
        self._threads = threads
        self._graph = graphs.load(Path(task["graph"]))
        self._workspace = Path(task["workspace"])
        self._features = load_arrays(self._workspace / "features.npz")

    def prepare(self, entry: dict[str, Any]) -> Job | None:
        """The job of a setting; an oracle writes its file instead."""
        setting, task = Setting(**entry), self._task
        widths = list(setting.sizes(task["widths"]))
        file = self._workspace / f"parameters-{setting.model}.npz"
        if not file.exists():  # the oracles are the first
            from benchmarks.ours import models

            np.savez(file, **models.initial_parameters(setting, widths))
        inputs = (setting, self._graph, self._features, load_arrays(file))
        if setting.impl == ORACLE:
            from benchmarks.baselines import jax_models

            loss, gradients = jax_models.float64_gradients(*inputs)
            arrays: dict[str, Any] = {"loss": loss, **gradients}
            np.savez(oracle_file(self._workspace, setting), **arrays)
            return None
        if setting.impl in (plan.PYG_ADJ, plan.PYG_EDGES, plan.CUSPARSE_STEP):
            from benchmarks.baselines import torch_models

            step = torch_models.step(*inputs, task["device"], self._threads)
        else:
            from benchmarks.harness import jax_step

            alone = len(task["entries"]) == 1
            step = jax_step.step(*inputs, widths, task["device"], alone)

        def check() -> dict[str, Any]:
            timed_loss, loss, gradients = step.gradients()
            expected = load_arrays(oracle_file(self._workspace, setting))
            error = gradient_error(loss, gradients, expected)
            if not np.isfinite(timed_loss):
                error = float("inf")
            fields = checked(error, setting.tolerance(task["device"]))
            return {**fields, "loss": timed_loss}

        sizes = {"k": setting.k, "heads": setting.heads}
        return Job(
            {
                "case": setting.case(self._graph.name),
                "impl": setting.impl,
                "dtype": setting.dtype,
                "shape": {
                    "nodes": self._graph.num_nodes,
                    "edges": self._graph.num_edges,
                    "widths": widths,
                    **{name: value for name, value in sizes.items() if value is not None},
                },
                "pass": "step",
            },
            step.seconds,
            check,
            step.peak_bytes,
            facts=step.facts,
            after=step.after,
        )

    def clear(self) -> None:
        pass


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
        return {name: archive[name] for name in archive.files}


def oracle_file(workspace: Path, setting: Setting) -> Path:
    return workspace / f"oracle-{setting.model}-{setting.k}.npz"


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
