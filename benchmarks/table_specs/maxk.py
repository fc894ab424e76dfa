"""MaxK: the pages performance.md and kernels/maxk.md."""

from __future__ import annotations

from benchmarks.harness import plan
from benchmarks.table_specs.common import (
    BACKWARD,
    BF16,
    CUSPARSE,
    MAXK,
    OURS,
    SHAPES,
    Table,
    cases,
    ks,
)

_DENSE = {"impl": CUSPARSE, "k": None}
_GATHERED = {"impl": plan.MAXK_DETERMINISTIC}
_FIXED_POINT = {"impl": plan.MAXK_WINDOWS_DETERMINISTIC}

TABLES = {
    "maxk": Table(
        "",
        ks(8, 16, 32, 64),
        {
            "forward, ms": {},
            "over cuSPARSE": {"over": _DENSE},
            "backward, ms": BACKWARD,
            "over cuSPARSE ": {**BACKWARD, "over": {**_DENSE, "pass": "forward"}},
            "bfloat16, ms": BF16,
            "over cuSPARSE in bfloat16": {**BF16, "over": {**_DENSE, "file": "nvidia-h200-spmm*"}},
        },
        {"file": "nvidia-h200-maxk", "case": "reddit", "impl": plan.MAXK_WINDOWS},
    ),
    "maxk-kernels": Table(
        "ms",
        {
            "forward, windows, packed float32": {"impl": plan.MAXK_PACKED},
            "forward, rows": {"impl": plan.MAXK},
            "forward in floating point alone": {"impl": plan.MAXK_FLOAT},
            "backward, reductions without windows": {"impl": plan.MAXK, **BACKWARD},
            "deterministic, windows (64-bit fixed point)": {**_FIXED_POINT, **BACKWARD},
            "deterministic, gathered": {**_GATHERED, **BACKWARD},
            "the same, bfloat16": {**_GATHERED, **BACKWARD, **BF16},
            "selection": {"impl": plan.MAXK, "pass": "select"},
        },
        ks(32, 16, 8, 64),
        {"file": "nvidia-h200-maxk", "case": "reddit"},
    ),
    "maxk-wide": Table(
        "columns, k",
        {
            f"{width:,}, {k}": {"width": width, "k": k}
            for width, k in ((256, 32), (512, 32), (512, 64), (1024, 32), (1024, 128))
        },
        {
            "forward, ms": {},
            "entries a second, by 256 columns": {"key": "ratio"},
            "packed, ms": {"impl": plan.MAXK_PACKED},
            "backward, ms": BACKWARD,
            "entries a second, by 256 columns ": {**BACKWARD, "key": "ratio"},
        },
        {"file": "nvidia-h200-maxk-wide", "case": "reddit", "impl": plan.MAXK_WINDOWS},
    ),
    "maxk-traffic": Table(
        "kernel",
        {
            "dense SpMM": {"impl": "jaxgnn"},
            "dense SpMM, bfloat16": {"impl": "jaxgnn", **BF16},
            **{
                f"forward{dtype}, k = {k}: {rows}": {"impl": impl, "k": k, **spec}
                for dtype, k, spec in (("", 32, {}), ("", 8, {}), (", bfloat16", 32, BF16))
                for rows, impl in zip(("rows", "windows"), MAXK, strict=True)
            },
            "backward, k = 32: reductions": {"impl": MAXK[0], "k": 32, **BACKWARD},
            "backward, k = 32: windows": {"impl": MAXK[1], "k": 32, **BACKWARD},
            "deterministic, k = 32: gathered": {**_GATHERED, "k": 32, **BACKWARD},
            "deterministic, k = 32: windows": {**_FIXED_POINT, "k": 32, **BACKWARD},
            "selection, k = 32": {"impl": MAXK[0], "k": 32, "pass": "select"},
        },
        {
            "ms": {},
            "L2, GB": {"key": "l2_bytes"},
            "HBM, GB": {"key": "hbm_bytes"},
            "L1 hits, %": {"key": "l1_hit_percent"},
            "L2 hits, %": {"key": "l2_hit_percent"},
        },
        {"file": "nvidia-h200-traffic", "case": "reddit"},
    ),
    "maxk-any-k": Table(
        "over windows, ms",
        {
            "reddit, forward": {"case": "reddit"},
            "reddit, backward": {"case": "reddit", **BACKWARD},
            "arxiv, forward": {"case": "arxiv"},
        },
        ks(2, 3, 5, 6, 10, 15, 30, 50, 99),
        {"file": "nvidia-h200-maxk-any-k", "impl": plan.MAXK_WINDOWS},
    ),
    "maxk-weighted": Table(
        "ms",
        {
            f"{name}, {how}": {"case": case, "impl": impl, **way}
            for name, way in (("forward", {}), ("backward", BACKWARD))
            for how, case, impl in (
                ("windows", "reddit", MAXK[1]),
                ("windows, weighted", "reddit weighted", MAXK[1]),
                ("rows", "reddit", MAXK[0]),
                ("rows, weighted", "reddit weighted", MAXK[0]),
            )
        },
        ks(32, 16, 8),
        {"file": "nvidia-h200-maxk-weighted"},
    ),
    "maxk-weights": Table(
        "reddit",
        {
            "forward, weighted edges": {"case": "reddit weighted"},
            "backward, weighted edges": {"case": "reddit weighted", **BACKWARD},
        },
        ks(
            32,
            16,
            8,
            over={
                "impl": (*OURS, CUSPARSE),
                "case": "reddit",
                "k": None,
                "pass": "forward",
                "file": "nvidia-h200-maxk-sweep*",
            },
        ),
        {"file": "nvidia-h200-maxk-weighted", "impl": plan.MAXK_WINDOWS},
    ),
    "maxk-shapes": Table(
        "forward",
        cases(*SHAPES),
        {
            "dense, ms": {"impl": (*OURS, CUSPARSE), "k": None},
            **ks(8, 16, 32, 64, 96, 128, over={"impl": (*OURS, CUSPARSE), "k": None}),
        },
        {"file": "nvidia-h200-maxk-sweep*", "impl": MAXK},
    ),
    "maxk-shapes-backward": Table(
        "backward",
        cases(*SHAPES),
        {
            "dense, ms": {"impl": OURS, "k": None},
            **ks(8, 16, 32, 64, 96, 128, over={"impl": OURS, "k": None}),
        },
        {"file": "nvidia-h200-maxk-sweep*", "impl": MAXK, **BACKWARD},
    ),
}
