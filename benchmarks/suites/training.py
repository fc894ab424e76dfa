"""The suite `training`: one full-batch step of a 4-layer model on the Reddit-shaped graph.

602 features in, 256 hidden, 41 classes out; layer normalization, ReLU and dropout of a half after
each hidden layer, as in the published script of MaxK-GNN, in every implementation. GraphSAGE
against cuSPARSE on A and its transpose by hand, PyG and plain JAX. With `--models`, the script's
architecture, whose convolutions are all 256 wide between two projections, with ReLU and MaxK. On a
GPU ours with ReLU runs by rows, and over a graph with tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import plan, steps
from benchmarks.harness.options import Options
from benchmarks.harness.record import Record
from benchmarks.harness.rows import compare_steps
from benchmarks.harness.setting import Setting

WIDTHS = (602, 256, 256, 256, 41)
QUICK_WIDTHS = (24, 16, 16, 16, 7)
ACTIVATIONS = ("relu", "maxk32", "maxk16")
QUICK_ACTIVATIONS = ("relu", "maxk4")


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the oracles and then each implementation, in processes of their own."""
    record.compare = compare_steps
    case = (options.shapes or (plan.BIG_SHAPE,))[0]
    own = workspace / "steps"
    steps.run_groups(settings(options), case, widths(options), options, record, own)


def widths(options: Options) -> tuple[int, ...]:
    """The widths of the rows before and after each layer, with its input layer if it has one."""
    found = QUICK_WIDTHS if options.quick else WIDTHS
    return with_input_layer(found) if options.models else found


def with_input_layer(widths: Sequence[int]) -> tuple[int, ...]:
    """As the published script has it: a layer before and one behind convolutions that are all
    hidden wide."""
    return (*widths[:-1], *widths[-3:-1], widths[-1])


def settings(options: Options) -> list[list[Setting]]:
    """What to run, those that share a process together."""
    dtypes = options.dtypes or plan.HALF_TOO
    relu = plan.DENSE_STEPS if options.device == "gpu" else (plan.OURS,)
    if not options.models:
        impls = [*relu, *plan.STEP_REFERENCES]
        if options.device == "cpu":
            impls = [impl for impl in impls if not impl.endswith(plan.FTZ)]
        return [[Setting(impl, dtype=dtype)] for impl in impls for dtype in dtypes]
    names = options.activations or (QUICK_ACTIVATIONS if options.quick else ACTIVATIONS)
    ks = [None if name == "relu" else int(name.removeprefix("maxk")) for name in names]

    def make(impl: str, model: str, dtype: str, k: int | None = None) -> Setting:
        return Setting(impl, model, k, dtype, input_layer=True)

    ours = [
        make(impl, model, dtype, k)
        for model in options.models
        for dtype in dtypes
        for k in ks
        for impl in (relu if k is None else (plan.OURS,))
    ]
    return [ours] + [
        [make(impl, model, dtype)]
        for model in options.models
        # PyG where it has the model as its users have it.
        for impl in (plan.CUSPARSE_STEP, *((plan.PYG_ADJ,) if model == "sage" else ()))
        for dtype in dtypes
    ]
