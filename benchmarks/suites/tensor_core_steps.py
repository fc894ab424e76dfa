"""The part `steps` of the suite `tensor_core`: training steps of TC-GNN's models on the sets of its
Table 4, ours over graphs with tiles beside PyG and plain JAX.

A GCN of 2 layers and 16 hidden features, an AGNN of 4 layers and 32, without normalization and
dropout. Forward, backward and Adam in float32. In every implementation without TF32 products: over
Citeseer's 3,703 features their rounding moves so many hidden values past ReLU's kink that gradients
could not be checked. Steps run in a row, each a call from Python, and are waited for at the end of
a batch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from benchmarks.harness import plan, steps
from benchmarks.harness.options import Options
from benchmarks.harness.record import Record
from benchmarks.harness.setting import Setting
from jaxgnn.data import benchmark_shapes

MODELS = {
    "gcn": Setting(plan.ESTIMATED, "gcn", layers=2, hidden=16, regularize=False, tf32=False),
    "agnn": Setting(plan.ESTIMATED, "agnn", layers=4, hidden=32, tf32=False),
}
_PLAIN = {"gcn": plan.SORTED, "agnn": plan.PLAIN}
_CPU_SETS = ("cora", "proteins_full")
_QUICK_WIDTHS = (12, 5)


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the oracles and then each framework on all sets, in a process of its own."""
    steps.run_on_graphs(settings(options), widths(options), options, record, workspace)


def widths(options: Options) -> dict[str, tuple[int, int]]:
    """The features and classes of each set, the smallest first.

    A graph that is none of Table 4's has no steps.
    """
    shapes = benchmark_shapes()
    default = plan.TCGNN_SETS if options.device == "gpu" else _CPU_SETS
    names = [name for name in options.shapes or default if name in plan.TCGNN_SETS]
    return {
        name: _QUICK_WIDTHS if options.quick else (shapes[name].features, shapes[name].classes)
        for name in sorted(names, key=lambda name: shapes[name].num_edges)
    }


def settings(options: Options) -> list[list[Setting]]:
    """What to run, those of a process together: ours, PyG's, and plain JAX's, with XLA's fastest
    flags on a GPU."""
    if options.dtypes and "float32" not in options.dtypes:
        return []
    flags = plan.FTZ if options.device == "gpu" else ""
    models = options.models or tuple(MODELS)
    impls = (
        {model: (plan.ESTIMATED,) for model in models},
        plan.TCGNN_PYG,
        {model: (_PLAIN[model] + flags,) for model in models},
    )
    return [
        [
            dataclasses.replace(MODELS[model], impl=impl, graph=name)
            for name in widths(options)
            for model in models
            for impl in of_framework[model]
        ]
        for of_framework in impls
    ]
