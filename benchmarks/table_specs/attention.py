"""Attention: the pages performance.md and kernels/attention.md."""

from __future__ import annotations

from benchmarks.harness import plan
from benchmarks.table_specs.common import BACKWARD, PLAIN, Table, dtypes

MODELS = ("GAT", "GATv2", "AGNN", "MoNet", "EdgeConv")
STEPS = {"file": "nvidia-h200-attention-steps*", "impl": "jaxgnn", "pass": "step"}
_ABLATION = {"file": "nvidia-h200-attention-ablation*", "pass": "step"}
_BYTES = {"file": "nvidia-h200-attention-bytes*", "pass": "step traffic"}
_STAGES = {
    "as written": {"impl": plan.WRITTEN},
    "reorganized": {"impl": plan.REORGANIZED},
    "fused, edge values stored": {"impl": plan.STORED},
    "fused, recomputed": {"impl": plan.RECOMPUTED},
}
_ABLATED = ("GAT", "EdgeConv", "MoNet")
_TOO_LARGE = {  # of graph, model and stage
    *(("reddit", model, "as written") for model in _ABLATED),
    ("reddit", "MoNet", "reorganized"),
}

TABLES = {
    "attention-steps": Table(
        "model",
        {model: {"model": model.lower()} for model in MODELS},
        {
            head: {**spec, "graph": shape}
            for shape in ("arxiv", "amazon0601", "artist")
            for head, spec in (
                (f"{shape}, ms", {}),
                (f"× PyG{' ' * len(shape)}", {"over": {"impl": "PyG*"}}),
                (f"× JAX{' ' * len(shape)}", {"over": {"impl": PLAIN}}),
            )
        },
        STEPS,
    ),
    "attention-kernels": Table(
        "4 heads of 64 features",
        dtypes({"forward": {}, "backward": BACKWARD}),
        {
            "`spmm` of 256 features, ms": {"impl": "jaxgnn"},
            "`gat_attention`, ms": {},
            "its multiple of `spmm`": {"impl": "jaxgnn", "over": {"impl": "jaxgnn gat_attention"}},
        },
        {"file": "nvidia-h200-attention-kernels", "case": "reddit", "impl": "jaxgnn gat_attention"},
    ),
    "attention-baselines": Table(
        "model, graph",
        {
            f"{model}, {shape}": {"graph": shape, "model": model.lower()}
            for model in MODELS
            for shape in ("arxiv", "amazon0601", "artist")
        },
        {
            "jaxgnn, GB": {"key": "peak_bytes"},
            "plain JAX, ms": {"impl": PLAIN},
            "GB": {"impl": PLAIN, "key": "peak_bytes"},
            "PyG, ms": {"impl": "PyG*"},
            "GB ": {"impl": "PyG*", "key": "peak_bytes"},
        },
        STEPS,
    ),
    "ablation": Table(
        "graph, model: stage",
        {
            f"{graph}, {model}: {stage}": {"case": f"{graph} {model.lower()} ablation", **spec}
            for graph in ("arxiv", "reddit")
            for model in _ABLATED
            for stage, spec in _STAGES.items()
            if (graph, model, stage) not in _TOO_LARGE
        },
        {
            "ms": _ABLATION,
            "peak memory, GB": {**_ABLATION, "key": "peak_bytes"},
            "through L2, GB": {**_BYTES, "key": "l2_bytes"},
            "through HBM, GB": {**_BYTES, "key": "hbm_bytes"},
        },
        {},
    ),
    "cpu-steps": Table(
        "model",
        {model: {"case": f"rmat-dense {model.lower()}"} for model in MODELS},
        {
            "jaxgnn, s": {"key": "seconds"},
            "GB": {"key": "peak_bytes"},
            "plain JAX, s": {"impl": PLAIN, "key": "seconds"},
            "GB ": {"impl": PLAIN, "key": "peak_bytes"},
            "times as fast": {"over": {"impl": PLAIN}},
        },
        {"file": "amd-epyc-2-threads-attention-steps*", "impl": "jaxgnn", "pass": "step"},
    ),
}
