"""Aggregation: the pages performance.md and kernels/aggregation.md."""

from __future__ import annotations

from benchmarks.harness.rows import Spec
from benchmarks.table_specs.common import (
    BACKWARD,
    BF16,
    CUSPARSE,
    OURS,
    SCHEDULED,
    SHAPES,
    Table,
    cases,
    dtypes,
)


def _cpu_spmm(direction: Spec) -> Table:
    machines = {"EPYC": {"file": "amd-epyc-2-*spmm*"}, "Xeon": {"file": "intel-*-spmm"}}
    return Table(
        "R-MAT",
        {
            f"F = {width}, {machine}": {**spec, "width": width}
            for machine, spec in machines.items()
            for width in (64, 256)
        },
        {
            "jaxgnn, ms": {},
            "`torch.sparse` (MKL), ms": {"impl": "torch.sparse*"},
            "times as fast": {"over": {"impl": "torch.sparse*"}},
            "plain JAX, ms": {"impl": "jax segment_sum sorted"},
            "times as fast ": {"over": {"impl": "jax segment_sum sorted"}},
        },
        {"case": "rmat", "impl": "jaxgnn", **direction},
    )


TABLES = {
    "spmm": Table(
        "graph",
        {
            **cases(*SHAPES),
            "reddit, bfloat16": {"case": "reddit", **BF16},
            **dtypes({"reddit, weighted": {"case": "reddit weighted"}}),
        },
        {
            "nodes": {"key": "graph.nodes"},
            "mean degree": {"key": "graph.mean_degree"},
            "original order, ms": {"impl": "jaxgnn"},
            "row schedule, ms": {"impl": SCHEDULED},
            "cuSPARSE's best, ms": {"impl": CUSPARSE},
            "times as fast": {"impl": OURS, "over": {"impl": CUSPARSE}},
        },
        {"file": "nvidia-h200-spmm*", "impl": "jaxgnn"},
    ),
    "maximum": Table(
        "F = 256",
        dtypes(cases("reddit", "arxiv", "amazon0601")),
        {
            "sum, ms": {"impl": "jaxgnn", "file": "nvidia-h200-spmm*"},
            "maximum, ms": {},
            "with its gradient, ms": BACKWARD,
            "plain JAX: maximum, ms": {"impl": "jax segment_max*"},
            "with its gradient, ms ": {**BACKWARD, "impl": "jax segment_max*"},
        },
        {"file": "nvidia-h200-spmm-max", "impl": "jaxgnn max"},
    ),
    "cpu-spmm": _cpu_spmm({}),
    "cpu-spmm-gradient": _cpu_spmm(BACKWARD),
}
