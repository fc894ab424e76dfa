"""The part `ablation` of the suite `attention`: what each step of "Understanding GNN Computational
Graph" (Zhang et al., MLSys 2022) saves, by the same algebra: nothing, reorganization, fusion,
recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import plan
from benchmarks.harness.options import Options
from benchmarks.harness.rows import Row, compare
from benchmarks.harness.setting import Setting

MODELS = ("gat", "edgeconv", "monet")
# Widths and GAT's heads by graph; others have the first's.
_SIZES = {"arxiv": ((128, 128, 40), plan.ATTENTION_HEADS), "reddit": ((602, 128, 41), 1)}
LABEL = " ablation"
# How many times less memory a step takes when the fused values of edges are recomputed: theirs.
PUBLISHED_SAVING = {"gat": 2.21}


def cases(options: Options) -> Iterator[tuple[str, tuple[int, ...], list[Setting]]]:
    """Graphs, widths and the stages on them, with the library's model beside them."""
    default = tuple(_SIZES) if options.device == "gpu" else (plan.CPU_SHAPE,)
    if options.dtypes and "float32" not in options.dtypes:
        return
    for graph in options.shapes or default:
        widths, heads = _SIZES.get(graph, _SIZES["arxiv"])
        settings = [
            Setting(impl, model, heads=heads if model == "gat" else None, label=LABEL)
            for model in MODELS
            if model in (options.models or MODELS)
            for impl in (*plan.STAGES, plan.OURS)
        ]
        yield graph, (12, 8, 5) if options.quick else widths, settings


def set_baseline(row: Row, rows: list[Row]) -> None:
    """The layer as it is written; and what recomputing saves of the memory, beside the paper's."""
    compare(row, rows, {"impl": plan.WRITTEN}, ("case", "dtype", "pass"))
    if row["impl"] != plan.RECOMPUTED:
        return
    same = ("case", "dtype", "pass")
    stored = [r for r in rows if r["impl"] == plan.STORED and all(r[n] == row[n] for n in same)]
    if stored and stored[0]["peak_bytes"] and row["peak_bytes"]:
        row["memory_saved"] = round(stored[0]["peak_bytes"] / row["peak_bytes"], 3)
    model = row["case"].removesuffix(LABEL).split()[-1]
    if model in PUBLISHED_SAVING:
        row["published_memory_saved"] = PUBLISHED_SAVING[model]
