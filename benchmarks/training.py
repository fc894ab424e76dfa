"""The suite `training`: one full-batch step of a 4-layer model on the Reddit-shaped graph.

Forward, cross-entropy over all nodes, backward, Adam; 602 features in, 256 hidden, 41 classes
out. GraphSAGE against PyG and plain JAX; or, with `--models`, models with an input layer, whose
four aggregations all take hidden rows, with ReLU and with MaxK. Every implementation starts from
the same parameters, and its gradients are compared with those of a float64 run.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import graphs, plan, process
from benchmarks.options import Options
from benchmarks.record import Record, Row

WIDTHS = (602, 256, 256, 256, 41)
QUICK_WIDTHS = (24, 16, 16, 16, 7)
KS = (None, 32, 16)  # None: ReLU
QUICK_KS = (None, 4)
ORACLE = "float64"
EDGE_MODELS = ("gat", "gatv2", "agnn", "edgeconv", "monet")
# Those whose attention has a self-loop for each node.
LOOPED_MODELS = ("gat", "gatv2", "agnn")
# MoNet's kernels, and the coordinates of an edge.
KERNELS, COORDINATES = 3, 2


@dataclasses.dataclass(frozen=True)
class Setting:
    """One step to time, or its oracle.

    Attributes:
        impl: whose it is.
        model: `"sage"`, `"gcn"`, `"gin"`; of the suite `attention` one of `EDGE_MODELS`.
        k: MaxK's, or `None` for ReLU.
        dtype: of the computation; parameters are float32.
        input_layer: whether a product comes before the first convolution.
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
    def oracle(self) -> Setting:
        """Whose gradients this one's should be."""
        return dataclasses.replace(self, impl=ORACLE, dtype="float64")

    @property
    def continuous(self) -> bool:
        """Whether close numbers have close gradients: MaxK and a maximum choose among them."""
        return self.k is None and self.model != "edgeconv"

    def tolerance(self, device: str) -> float:
        """Of a parameter's gradient, relative to its norm, and of the loss.

        TF32 products keep 11 bits, bfloat16 8. ReLU's slope jumps at 0: of ten million hidden
        values one or two are moved past it by rounding, and each is 3e-4 of a gradient's norm.
        Which entries MaxK keeps, and which edge has the maximum, is not continuous: what rounding
        moves past another counts whole, so that the gradients checked are those of float32
        products.
        """
        if not self.continuous:
            return 2e-2
        if self.dtype == "bfloat16":
            return 0.2
        return 2e-2 if device == "gpu" else 1e-3


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the oracles and then each implementation, in processes of their own."""
    record.compare = set_baselines
    case = (options.shapes or [plan.BIG_SHAPE])[0]
    groups = settings(options)
    if not groups:
        return
    widths = QUICK_WIDTHS if options.quick else WIDTHS
    if groups[0][0].input_layer:
        widths = (widths[0], *widths[1:-1], widths[-2], widths[-1])
    folder = graphs.store_all([case], options.cache or workspace, options.scale)[case]
    run_groups(groups, folder, widths, options, record, workspace)


def run_groups(
    groups: list[list[Setting]],
    folder: Path,
    widths: tuple[int, ...],
    options: Options,
    record: Record,
    workspace: Path,
) -> None:
    """Runs settings on the graph in `folder`, a process for each group; the first: the oracles.

    Features, parameters and what the oracles gave go to `workspace`, which is a call's own.
    """
    facts = json.loads((folder / "graph.json").read_text())
    record.note_graph(facts)
    save_inputs(workspace, groups[0], facts, widths)
    for group in groups:
        task = workspace / "training.json"
        task.write_text(
            json.dumps(
                {
                    "suite": options.label,
                    "device": options.device,
                    "threads": options.threads,
                    "graph": str(folder),
                    "workspace": str(workspace),
                    "timing": options.timing(),
                    "widths": list(widths),
                    "settings": [dataclasses.asdict(setting) for setting in group],
                }
            )
        )
        names = [str(setting) for setting in group]
        env = process.environment("training", options.device, options.threads, options.xla_flags)
        process.run_each("benchmarks.training_worker", task, names, env, record, names[0])


def settings(options: Options) -> list[list[Setting]]:
    """What to run, those that share a process together; the oracles first."""
    if options.models:
        ours = list(_maxk_settings(options, options.models))
        # PyG where it has the model as its users have it.
        groups = [
            ours,
            [Setting(plan.PYG_ADJ, input_layer=True)] if ours[0].model == "sage" else [],
        ]
    else:
        groups = [[Setting(impl)] for impl in (plan.OURS, plan.SORTED, plan.PYG_ADJ)]
    return with_oracles(groups, options)


def with_oracles(groups: list[list[Setting]], options: Options) -> list[list[Setting]]:
    """The groups narrowed by `--only`, and before them the oracles of what is left."""
    groups = narrowed(groups, options)
    if not groups:
        return []
    oracles = dict.fromkeys(setting.oracle for group in groups for setting in group)
    return [list(oracles), *groups]


def narrowed(groups: list[list[Setting]], options: Options) -> list[list[Setting]]:
    """The groups narrowed by `--only`, without those of which nothing is left."""
    if options.only:
        wanted = [part.lower() for part in options.only]
        groups = [
            [s for s in group if any(part in s.impl.lower() for part in wanted)] for group in groups
        ]
    return [group for group in groups if group]


def _maxk_settings(options: Options, models: list[str]) -> Iterator[Setting]:
    ks = options.activations or (QUICK_KS if options.quick else KS)
    for model in models:
        for dtype in options.dtypes or ("float32", "bfloat16"):
            for k in ks:
                yield Setting(plan.OURS, model, k, dtype, input_layer=True)


def set_baselines(rows: list[Row]) -> None:
    """The baseline is PyG, else plain JAX, else ours; of a step with MaxK it is ours with ReLU."""
    for row in rows:
        candidates = (plan.PYG_ADJ, plan.SORTED, plan.OURS)
        same = ("case",)
        if "k" in row["shape"]:
            candidates, same = (plan.OURS,), ("case", "dtype")
        references = [
            other
            for other in rows
            if other["impl"] in candidates
            and "k" not in other["shape"]
            and all(other[key] == row[key] for key in same)
        ]
        if references:
            best = min(references, key=lambda other: candidates.index(other["impl"]))
            row["baseline"], row["ratio"] = best["impl"], round(best["ms"] / row["ms"], 3)


def save_inputs(
    workspace: Path, settings: Iterable[Setting], facts: dict[str, Any], widths: Sequence[int]
) -> None:
    """Features and labels of a graph's nodes, and the parameters of the settings' models."""
    save_features(workspace / "features.npz", facts["nodes"], widths)
    for model in {setting.model: setting for setting in settings}.values():
        save_parameters(workspace, model, model.sizes(widths), facts["mean_degree"])


def save_features(path: Path, nodes: int, widths: Sequence[int]) -> None:
    """Random features and labels."""
    rng = np.random.default_rng(5)
    x = rng.random((nodes, widths[0]), np.float32) - np.float32(0.5)
    np.savez(path, x=x, labels=rng.integers(0, widths[-1], nodes).astype(np.int32))


def parameters_file(workspace: Path, setting: Setting) -> Path:
    return workspace / f"parameters-{setting.model}.npz"


def oracle_file(workspace: Path, setting: Setting) -> Path:
    return workspace / f"oracle-{setting.model}-{setting.k}.npz"


def save_parameters(
    workspace: Path, setting: Setting, widths: tuple[int, ...], mean_degree: float
) -> None:
    """Glorot-uniform products and small biases; GIN's sums are brought back to size by the first.

    The names: `KIND_LAYER`, and `kernel_in` and `bias_in` of an input layer; AGNN, whose layers
    propagate rows as wide as they are, has also `kernel_out` and `bias_out`.
    """
    rng = np.random.default_rng(6)
    arrays = {}

    def uniform(bound: float, *shape: int) -> np.ndarray:
        return ((2 * rng.random(shape) - 1) * bound).astype(np.float32)

    def product(end: str, fan_in: int, fan_out: int) -> None:
        arrays[f"kernel_{end}"] = uniform((6 / (fan_in + fan_out)) ** 0.5, fan_in, fan_out)
        arrays[f"bias_{end}"] = uniform(0.05, fan_out)

    pairs = list(itertools.pairwise(widths))
    if setting.input_layer:
        product("in", *pairs.pop(0))
    if setting.model == "agnn":
        product("in", *widths[:2])
        product("out", *widths[-2:])
        arrays |= {f"beta_{layer}": 1 + uniform(0.5, 1) for layer in range(len(pairs))}
        pairs.clear()
    for layer, (fan_in, fan_out) in enumerate(pairs):
        bound = (6 / (fan_in + fan_out)) ** 0.5
        if setting.model in EDGE_MODELS:
            last = layer == len(pairs) - 1
            arrays |= _edge_parameters(setting, layer, fan_in, fan_out, last, uniform)
        elif setting.model == "sage":
            arrays[f"neighbour_{layer}"] = uniform(bound, fan_in, fan_out)
            arrays[f"root_{layer}"] = uniform(bound, fan_in, fan_out)
        elif setting.model == "gcn":
            arrays[f"kernel_{layer}"] = uniform(bound, fan_in, fan_out)
        else:
            arrays[f"first_{layer}"] = uniform(bound / mean_degree, fan_in, fan_out)
            arrays[f"first_bias_{layer}"] = uniform(0.05, fan_out)
            arrays[f"second_{layer}"] = uniform((3 / fan_out) ** 0.5, fan_out, fan_out)
        arrays[f"bias_{layer}"] = uniform(bound / 2, fan_out)
    np.savez(parameters_file(workspace, setting), **arrays)


def layers_in(names: Iterable[str]) -> int:
    """How many layers the parameters of these names belong to."""
    return len({end for name in names if (end := name.rpartition("_")[2]).isdecimal()})


def _edge_parameters(
    setting: Setting,
    layer: int,
    fan_in: int,
    fan_out: int,
    last: bool,
    uniform: Callable[..., np.ndarray],
) -> dict[str, np.ndarray]:
    """Of a layer of the models whose messages belong to edges."""
    if setting.model == "edgeconv":
        bound = (6 / (2 * fan_in + fan_out)) ** 0.5
        return {f"kernel_{layer}": uniform(bound, 2 * fan_in, fan_out)}
    if setting.model == "monet":
        bound = (6 / (fan_in + fan_out)) ** 0.5
        return {
            f"mixture_{layer}": uniform(bound, fan_in, KERNELS * fan_out),
            f"root_{layer}": uniform(bound, fan_in, fan_out),
            f"mu_{layer}": uniform(1, KERNELS, COORDINATES),
            f"sigma_{layer}": uniform(0.5, KERNELS, COORDINATES) + np.float32(1),
            f"slope_{layer}": uniform(0.7, 2, COORDINATES),
            f"shift_{layer}": uniform(0.7, COORDINATES),
        }
    heads = 1 if last or setting.heads is None else setting.heads
    own = fan_out // heads
    bound = (6 / (heads + own)) ** 0.5
    if setting.model == "gatv2":
        wide = (6 / (fan_in + fan_out)) ** 0.5
        return {
            f"left_{layer}": uniform(wide, fan_in, fan_out),
            f"left_shift_{layer}": uniform(0.05, fan_out),
            f"right_{layer}": uniform(wide, fan_in, fan_out),
            f"right_shift_{layer}": uniform(0.05, fan_out),
            f"vector_{layer}": uniform(bound, heads, own),
        }
    return {
        f"kernel_{layer}": uniform((6 / (fan_in + fan_out)) ** 0.5, fan_in, fan_out),
        f"source_{layer}": uniform(bound, heads, own),
        f"target_{layer}": uniform(bound, heads, own),
    }
