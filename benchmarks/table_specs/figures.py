"""Figures within sentences, by name."""

from __future__ import annotations

from benchmarks.harness import plan
from benchmarks.table_specs.attention import STEPS
from benchmarks.table_specs.common import BACKWARD, BF16
from benchmarks.table_specs.training import RELU

_STEP = {"file": "nvidia-h200-training*", "case": "reddit", "pass": "step", "impl": "jaxgnn"}
_TILED_STEP = {**_STEP, "impl": plan.ESTIMATED}
_BUILD = {"file": "*-graph", "case": "rmat20m", "dtype": "int32", "pass": "build", "impl": "jaxgnn"}
_CPU_MAXK = {"file": "amd-epyc-2-threads-maxk", "case": "rmat", "impl": plan.MAXK, "k": 32}
_GPU_MAXK = {"file": "nvidia-h200-maxk", "case": "reddit", "impl": plan.MAXK_WINDOWS, "k": 32}
_OTHERS = {"impl": ("PyG*", "jax *", "torch*", "cuSPARSE*")}
_SAGE = {"file": "nvidia-h200-training-maxk-tiles-*", "case": "reddit sage", "pass": "step"}
_GAT = {"file": "nvidia-h200-attention-memory*", "impl": "jaxgnn", "pass": "step"}
_GAT |= {"case": "reddit gat 4 layers"}
_REDDIT = {"file": "nvidia-h200-spmm", "case": "reddit"}

FIGURES = {
    "step-date": {**_TILED_STEP, "key": "date"},
    "step-best": {**_TILED_STEP, "over": _OTHERS},
    "step-best-name": {**_TILED_STEP, **_OTHERS, "key": "impl"},
    "step-rows": {**_STEP, "over": _OTHERS},
    "step-pyg": {**_TILED_STEP, "over": {"impl": "PyG*"}},
    "step-pyg-memory": {**_TILED_STEP, "key": "peak_bytes", "over": {"impl": "PyG*"}},
    "sage-date": {**_SAGE, "impl": "jaxgnn", "k": 32, "key": "date"},
    "sage-maxk": {**_SAGE, "impl": "jaxgnn", "k": 32, "over": RELU},
    "sage-bfloat16-date": {**_SAGE, **BF16, "impl": "jaxgnn", "k": 32, "key": "date"},
    "sage-maxk-bfloat16": {**_SAGE, **BF16, "impl": "jaxgnn", "k": 32, "over": RELU},
    "sage-cusparse-ms": {**_SAGE, "impl": "cuSPARSE*"},
    "sage-pyg-ms": {**_SAGE, "file": "nvidia-h200-training-maxk-sage", "impl": "PyG*"},
    "gat-memory": {**STEPS, "case": "arxiv gat", "key": "peak_bytes"},
    "gat-pyg-memory": {**STEPS, "case": "arxiv gat", "impl": "PyG*", "key": "peak_bytes"},
    "gat4-ms": _GAT,
    "gat4-memory": {**_GAT, "key": "peak_bytes"},
    "gat4-bfloat16-ms": {**_GAT, **BF16},
    "gat4-bfloat16-memory": {**_GAT, **BF16, "key": "peak_bytes"},
    "spmm-jax-ms": {**_REDDIT, "impl": "jax segment_sum sorted"},
    "spmm-jax-gradient-ms": {**_REDDIT, "impl": "jax segment_sum sorted", **BACKWARD},
    "spmm-jax-unsorted-ms": {**_REDDIT, "impl": "jax segment_sum unsorted"},
    "row-schedule-seconds": {**_STEP, "key": "preprocessing_seconds"},
    "tiles-seconds": {
        **{"file": "nvidia-h200-tensor-core", "impl": plan.TILES, "case": "reddit"},
        **{"width": 256, "dtype": "float32", "pass": "forward", "key": "preprocessing_seconds"},
    },
    "windows-seconds": {**_GPU_MAXK, "key": "preprocessing_seconds"},
    "build-seconds": {**_BUILD, "key": "seconds"},
    "build-scipy": {**_BUILD, "over": {"impl": "SciPy*"}},
    "build-memory": {**_BUILD, "key": "memory_ratio"},
    "cpu-maxk-ms": _CPU_MAXK,
    "cpu-maxk-dense": {**_CPU_MAXK, "over": {"impl": "jaxgnn", "k": None}},
}
