"""Tiles and TC-GNN's sets: the pages performance.md and kernels/tiles.md."""

from __future__ import annotations

from benchmarks.harness import plan
from benchmarks.table_specs.common import BACKWARD, BF16, CUSPARSE, Table, cases, dtypes

TABLES = {
    "tensor-core": Table(
        "F = 256",
        dtypes(cases("reddit", "proteins")),
        {
            "tiles, ms": {},
            "backward": BACKWARD,
            "rows, ms": {"impl": plan.ORDERED},
            "× rows": {"over": {"impl": plan.ORDERED}},
            "best cuSPARSE, ms": {"impl": CUSPARSE},
            "× cuSPARSE": {"over": {"impl": CUSPARSE}},
        },
        {"file": "nvidia-h200-tensor-core*", "impl": plan.TILES, "pass": "forward"},
    ),
    "tcgnn-sets": Table(
        "float32, and bfloat16 beside float32's best cuSPARSE",
        cases(*plan.TCGNN_SHAPES),
        {
            f"F = {width}, {name}": {"width": width, **spec}
            for width in (16, 64, 256)
            for name, spec in (
                ("ms", {}),
                ("× cuSPARSE", {"over": {"impl": CUSPARSE, "dtype": "float32"}}),
                ("bfloat16, ms", BF16),
            )
        },
        {"file": "nvidia-h200-tcgnn-sets", "impl": plan.ESTIMATED, "pass": "forward"},
    ),
    "tcgnn-steps": Table(
        "full-batch step, float32",
        {name: {"graph": name} for name in plan.TCGNN_SETS},
        {
            head: {**spec, "model": model}
            for model, space in (("gcn", ""), ("agnn", " "))
            for head, spec in (
                (f"{model.upper()}, ms", {}),
                (f"× PyG{space}", {"over": {"impl": "PyG*"}}),
            )
        },
        {"file": "nvidia-*-tcgnn-steps*", "impl": plan.ESTIMATED, "pass": "step"},
    ),
}
