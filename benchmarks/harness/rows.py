"""Rows of results: how those of a specification are found, and a row's ratio to another."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import plan

Row = dict[str, Any]
Spec = dict[str, Any]
_DEFAULTS = {"dtype": "float32", "pass": "forward", "k": None, "S": None}
_ABSENT = dict.fromkeys(("k", "S", "seeds", "children", "sources", "neighbors"))


def flat(row: Row) -> Row:
    """A row with its shape's fields; a case such as `arxiv gat` is also a graph and a model."""
    graph, _, model = row["case"].partition(" ")
    return {**_ABSENT, "graph": graph, "model": model, **row, **row["shape"]}


def matching(rows: Sequence[Row], spec: Spec) -> list[Row]:
    """The accurate rows with a specification's fields; `impl` is one pattern or several."""
    wanted = {**_DEFAULTS, **spec}
    impl = wanted.pop("impl")
    impls = (impl,) if isinstance(impl, str) else impl
    return [
        row
        for row in rows
        if row["accurate"]
        and any(fnmatch.fnmatchcase(row["impl"], pattern) for pattern in impls)
        and wanted.items() <= {key: flat(row).get(key) for key in wanted}.items()
    ]


def fastest(rows: Sequence[Row], spec: Spec) -> Row | None:
    """The fastest of the matching rows."""
    return min(matching(rows, spec), key=lambda row: row["ms"], default=None)


def compare(row: Row, rows: Sequence[Row], spec: Spec, same: Sequence[str]) -> bool:
    """Writes a row's baseline, and how many times the baseline's time is the row's.

    The baseline is the fastest row of the specification that has the `same` fields as the row.
    Without one nothing is written, and the result is false.
    """
    best = fastest(rows, {name: flat(row)[name] for name in same} | spec)
    if best is not None:
        row["baseline"], row["ratio"] = best["impl"], round(best["ms"] / row["ms"], 3)
    return best is not None


def of_model(row: Row) -> bool:
    """Whether a row is of a model, its training step or its forward pass."""
    return row["pass"] == "step" or "widths" in row["shape"]


def compare_steps(rows: Sequence[Row]) -> None:
    """The baseline of a model's row is the fastest of all others, else ours with ReLU.

    Of a step with MaxK it is ours with ReLU. `ratio_pyg` is the ratio to PyG beside it.
    """
    same = ("case", "dtype", "pass")
    others = {"impl": ("jax *", "PyG*", "cuSPARSE*")}
    for row in rows:
        if of_model(row):
            if flat(row)["k"] is not None or not compare(row, rows, others, same):
                compare(row, rows, {"impl": plan.DENSE_STEPS}, same)
            pyg = fastest(rows, {"impl": "PyG*"} | {name: row[name] for name in same})
            row["ratio_pyg"] = None if pyg is None else round(pyg["ms"] / row["ms"], 3)
