"""The suite `training`: one full-batch step of a 4-layer model on the Reddit-shaped graph.

602 features in, 256 hidden, 41 classes out; layer normalization, ReLU and dropout of a half after
each hidden layer, as in the published script of MaxK-GNN, in every implementation. GraphSAGE
against cuSPARSE on A and its transpose by hand, PyG and plain JAX. With `--models`, the script's
architecture, whose convolutions are all 256 wide between two projections, with ReLU and MaxK.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import graphs, plan, steps
from benchmarks.harness.options import Options
from benchmarks.harness.record import Record, Row, compare, compare_with_pyg
from benchmarks.harness.steps import Setting

WIDTHS = (602, 256, 256, 256, 41)
QUICK_WIDTHS = (24, 16, 16, 16, 7)
KS = (None, 32, 16)  # None: ReLU
QUICK_KS = (None, 4)
DTYPES = ("float32", "bfloat16")

# Plain JAX as its users write it, and its strongest: by hand, with XLA's fastest flags on a GPU.
_PLAIN = (plan.SORTED, plan.SORTED + plan.FTZ, plan.TRANSPOSED, plan.TRANSPOSED + plan.FTZ)
STEP_REFERENCES = (plan.CUSPARSE_STEP, plan.PYG_ADJ, *_PLAIN)


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the oracles and then each implementation, in processes of their own."""
    record.compare = set_baselines
    case = (options.shapes or [plan.BIG_SHAPE])[0]
    groups = settings(options)
    if groups:
        folder = graphs.store_all([case], options.cache or workspace, options.scale)[case]
        steps.run_groups(groups, folder, widths(options), options, record, workspace)


def widths(options: Options) -> tuple[int, ...]:
    """The widths of the rows before and after each layer, with its input layer if it has one."""
    first, *hidden, last = QUICK_WIDTHS if options.quick else WIDTHS
    return (first, *hidden, *(hidden[-2:] if options.models else ()), last)


def settings(options: Options) -> list[list[Setting]]:
    """What to run, those that share a process together; the oracles first."""
    dtypes = options.dtypes or DTYPES
    groups: list[list[Setting]] = []
    if options.models:
        ks = options.activations or (QUICK_KS if options.quick else KS)
        groups.append(
            [
                Setting(plan.OURS, model, k, dtype, input_layer=True)
                for model in options.models
                for dtype in dtypes
                for k in ks
            ]
        )
        for model in options.models:
            # PyG where it has the model as its users have it.
            others = (plan.CUSPARSE_STEP, *((plan.PYG_ADJ,) if model == "sage" else ()))
            groups += [
                [Setting(impl, model, None, dtype, input_layer=True)]
                for impl in others
                for dtype in dtypes
            ]
    else:
        for impl in (plan.OURS, *STEP_REFERENCES):
            if options.device == "gpu" or not impl.endswith(plan.FTZ):
                groups += [[Setting(impl, dtype=dtype)] for dtype in dtypes]
    return steps.with_oracles(groups, options)


def set_baselines(rows: list[Row]) -> None:
    """The baseline is the fastest other implementation in the row's dtype, else ours with ReLU.

    Of a step with MaxK it is ours with ReLU. `ratio_pyg` is the ratio to PyG beside it.
    """
    same = ("case", "dtype")
    dense = [row for row in rows if "k" not in row["shape"]]
    for row in rows:
        sparse = "k" in row["shape"]
        if sparse or not compare(row, dense, lambda other: other["impl"] != plan.OURS, same):
            compare(row, dense, lambda other: other["impl"] == plan.OURS, same)
        compare_with_pyg(row, dense)
