"""Full-batch training steps: the page performance.md."""

from __future__ import annotations

from benchmarks.harness import plan
from benchmarks.table_specs.common import Table, dtypes

_MAXK_STEPS = {"file": "nvidia-h200-training-maxk-*", "impl": "jaxgnn", "pass": "step"}
RELU = {"k": None, "impl": plan.DENSE_STEPS}  # the faster of rows and tiles
_PUBLISHED = {
    name: {"case": f"reddit {model}"}
    for name, model in (("GraphSAGE", "sage"), ("GCN", "gcn"), ("GIN", "gin"))
}

TABLES = {
    "training": Table(
        "4-layer GraphSAGE, full batch",
        {
            "jaxgnn, over tiles": {"impl": plan.ESTIMATED},
            "jaxgnn, by rows": {"impl": "jaxgnn"},
            "cuSPARSE on A and its transpose, by hand": {"impl": "cuSPARSE*"},
            "PyG 2.8, `torch.sparse` adjacency": {"impl": "PyG*"},
            "plain JAX, the backward pass a sorted `segment_sum` too, by hand": {
                "impl": plan.TRANSPOSED + "*"
            },
            "plain JAX, gather + sorted `segment_sum`": {
                "impl": (plan.SORTED, plan.SORTED + plan.FTZ)
            },
        },
        {"ms": {}, "bfloat16, ms": {"dtype": "bfloat16"}, "peak memory, GB": {"key": "peak_bytes"}},
        {"file": "nvidia-h200-training*", "case": "reddit", "pass": "step"},
    ),
    "training-maxk": Table(
        "model",
        dtypes(_PUBLISHED),
        {
            "ReLU by rows, ms": {},
            "over tiles, ms": {"impl": plan.ESTIMATED},
            "MaxK 32, ms": {"k": 32},
            "times as fast": {"k": 32, "over": RELU},
            "MaxK 16, ms": {"k": 16},
            "times as fast ": {"k": 16, "over": RELU},
        },
        {**_MAXK_STEPS, "file": "nvidia-h200-training-maxk-tiles-*"},
    ),
    "training-shares": Table(
        "aggregation's share of a step, %",
        _PUBLISHED,
        {"ReLU": {"k": None}, "MaxK 32": {"k": 32}, "MaxK 16": {"k": 16}},
        {**_MAXK_STEPS, "key": "aggregation_share"},
    ),
}
