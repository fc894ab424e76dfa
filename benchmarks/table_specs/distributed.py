"""Steps over several devices: the page distributed.md."""

from __future__ import annotations

from benchmarks.harness import plan
from benchmarks.harness.rows import Spec
from benchmarks.table_specs.common import Table

# Of a step over several devices, each part's share timed by itself.
_SHARES: dict[str, Spec] = {
    "slowest part, ms": {},
    "by an even one": {"key": "share_of_even"},
    "packing, %": {"key": "packing_share"},
    "exchange, GB": {"key": "exchange_bytes"},
    "padding": {"key": "padding"},
    "predicted, ms": {"key": "predicted_ms"},
    "× one device": {"key": "speed_up"},
    "`plan`, ms": {"key": "planned_ms"},
    "measured, ms": {"key": "measured_ms"},
}

TABLES = {
    "scale": Table(
        "4-layer GraphSAGE, Reddit's size",
        {
            f"{layout} on {count}{name}": {"layout": layout, "devices": count, **step}
            for name, step, layouts, counts in (
                ("", {}, ("features", "rows"), (2, 4, 8)),
                (", bfloat16", {"dtype": "bfloat16"}, ("rows",), (2, 4, 8)),
                (", bfloat16", {"dtype": "bfloat16"}, ("features",), (8,)),
                (", tiles", {"impl": plan.ESTIMATED}, ("features",), (2, 4, 8)),
                (
                    ", tiles, bfloat16",
                    {"impl": plan.ESTIMATED, "dtype": "bfloat16"},
                    ("features",),
                    (8,),
                ),
            )
            for layout in layouts
            for count in counts
        },
        _SHARES,
        {"file": "nvidia-h200-scale*", "case": "reddit", "impl": "jaxgnn", "pass": "step"},
    ),
    "scale-maxk": Table(
        "4-layer GraphSAGE, Reddit's size, MaxK 32",
        {f"rows on {count}": {"layout": "rows", "devices": count} for count in (2, 4, 8)},
        _SHARES,
        {"file": "nvidia-h200-scale-maxk*", "impl": "jaxgnn", "pass": "step", "k": 32},
    ),
}
