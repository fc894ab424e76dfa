"""What the tables of several pages share."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.harness import plan
from benchmarks.harness.rows import Spec


class Table(NamedTuple):
    """The head of the first column, rows and columns by their heads, and what all cells share."""

    corner: str
    rows: dict[str, Spec]
    columns: dict[str, Spec]
    base: Spec


OURS = ("jaxgnn", "jaxgnn row *")  # rows in their original order, or by a row schedule
SCHEDULED = "jaxgnn row *"
CUSPARSE = "cuSPARSE*"
PLAIN = "jax segment ops sorted*"
MAXK = (plan.MAXK, plan.MAXK_WINDOWS)
SHAPES = ("reddit", "proteins", "products", "arxiv", "amazon0601", "artist", "dd")
BF16 = {"dtype": "bfloat16"}
BACKWARD = {"pass": "backward"}


def cases(*names: str) -> dict[str, Spec]:
    return {name: {"case": name} for name in names}


def dtypes(rows: dict[str, Spec]) -> dict[str, Spec]:
    """Each row in float32, and beside it in bfloat16."""
    names = {"": {}, ", bfloat16": BF16}
    return {row + name: {**rows[row], **names[name]} for row in rows for name in names}


def ks(*numbers: int, **fields: Any) -> dict[str, Spec]:
    return {f"k = {k}": {"k": k, **fields} for k in numbers}
