"""Tables and figures of the pages, from the result files: `python -m benchmarks.tables [--check]`.

A page marks what is generated, a table or a figure within a sentence, and names its specification:

    <!-- table: NAME -->                <!-- figure: NAME -->2.85<!-- end -->
    <!-- end -->

`<!-- accuracy: NAME -->` is a table of `examples/sampling_accuracy.py`, by its name there.

The command rewrites what stands between the marks; with `--check` it changes nothing, names what
differs and ends with status 1. A specification is a dict of what a result's row must have (see
`benchmarks.harness.rows`; `file` has wildcards). Of each implementation the newest accurate row
counts, of several implementations the fastest. `key` is the field shown, and with `over` the ratio
of another row's field to it. A cell of a table merges the specifications of its `base`, row and
column.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.rows import Row, Spec, flat, matching
from benchmarks.table_specs import FIGURES, TABLES, Table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# Pages whose every figure is generated, and pages that have generated tables beside trials.
CHECKED = ("README.md", "docs/performance.md")
PAGES = (
    *CHECKED,
    *(
        f"docs/kernels/{name}.md"
        for name in ("aggregation", "maxk", "attention", "sampling", "tiles")
    ),
    "docs/distributed.md",
    "docs/sampling.md",
    "docs/minibatches.md",
)
_REGION = re.compile(r"(<!-- (table|figure|accuracy): ([\w.-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)
_UNIT = r"ms|µs|s|seconds|[KMGT]i?B(?:/s)?|bytes|x|×|times|%"
_LOOSE = re.compile(rf"\d[\d.,]*\s*(?:{_UNIT})(?!\w|\s*\d)")


class Result(NamedTuple):
    """A result file: its name without the date and suffix, its header, graphs and rows."""

    name: str
    header: dict[str, Any]
    graphs: list[dict[str, Any]]
    rows: list[Row]


@functools.cache
def results() -> list[Result]:
    """The result files of the suites, the newest first."""
    read = []
    for path in RESULTS.glob("*.json"):
        content = json.loads(path.read_text())
        if "rows" in content:
            rows = [flat(row) for row in content["rows"]]
            read.append(Result(path.stem[11:], content["header"], content["graphs"], rows))
    return sorted(read, key=lambda result: result.header["date"], reverse=True)


def find(spec: Spec) -> tuple[Result, Row] | None:
    """The fastest of the implementations that match, each by its newest row, and its file."""
    fields = {key: value for key, value in spec.items() if key != "file"}
    newest: dict[str, tuple[Result, Row]] = {}
    for result in results():
        if fnmatch.fnmatchcase(result.name, spec["file"]):
            rows = matching(result.rows, fields)
            if len({row["impl"] for row in rows}) < len(rows):
                raise ValueError(f"{spec}: several rows of one implementation in {result.name}")
            newest = {row["impl"]: (result, row) for row in rows} | newest
    return min(newest.values(), key=lambda found: found[1]["ms"], default=None)


def figure(spec: Spec, used: list[Result]) -> Any:
    """The figure of a specification, or `None` if no file has it; `used` gets the files."""
    spec = dict(spec)
    key, over = spec.pop("key", "ms"), spec.pop("over", None)
    if over is not None:
        ours, other = figure({**spec, "key": key}, used), figure({**spec, "key": key, **over}, used)
        return None if ours is None or other is None else other / ours
    found = find(spec)
    if found is None:
        return None
    result, row = found
    used.append(result)
    if key.startswith("graph."):
        return next(g for g in result.graphs if g["name"] == row["graph"])[key[6:]]
    if key == "date":
        return result.header[key][:10]
    if key == "seconds":
        return row["ms"] / 1e3
    if key.endswith("bytes"):
        return row[key] / 1e9
    return 100 * row[key] if key.endswith("share") else row.get(key)


def shown(value: Any) -> str:
    """Three digits, or all of those before the point."""
    if value is None or isinstance(value, str):
        return value or "–"
    if isinstance(value, list):
        return " / ".join(map(shown, value))
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def table(spec: Table) -> str:
    """The lines of a table, and the line that says what it was measured on, when, and its files."""
    used: list[Result] = []
    lines = [f"| {spec.corner} | " + " | ".join(map(str.strip, spec.columns)) + " |"]
    lines.append("| --- |" + " ---: |" * len(spec.columns))
    files = set()
    for label, row in spec.rows.items():
        cells = [{**spec.base, **row, **column} for column in spec.columns.values()]
        files |= {cell["file"] for cell in cells}
        texts = [shown(figure(cell, used)) for cell in cells]
        if set(texts) == {"–"}:
            raise ValueError(f"no result file has the row {label!r} of {spec.corner!r}")
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    headers = [result.header for result in used]
    dates = sorted({header["date"][:10] for header in headers})
    jaxlibs = ", ".join(sorted({header["jaxlib"] for header in headers}))
    hardware = " and ".join(sorted({header["hardware"] for header in headers}))
    sources = ", ".join(
        f"`*-{name if name[-1] == '*' else name + '.json'}`" for name in sorted(files)
    )
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    caption = f"<sub>{hardware}; jaxlib {jaxlibs}; {when}. {sources}</sub>"
    lines += ["", textwrap.fill(caption, 118, break_on_hyphens=False)]
    return "\n" + "\n".join(lines) + "\n"


@functools.cache
def accuracy_tables() -> dict[str, str]:
    """The tables of the newest results of `examples/sampling_accuracy.py`, by name."""
    path = max(RESULTS.glob("*-sampling-accuracy.json"))
    result = json.loads(path.read_text())
    example = runpy.run_path(str(ROOT / "examples" / "sampling_accuracy.py"))
    jaxlib = result["environment"]["jaxlib"]
    caption = (
        f"<sub>Means and standard deviations over the seeds, differences to all edges in points. "
        f"{result['hardware']}; jaxlib {jaxlib}; {result['date']}. `*-{path.stem[11:]}.json`</sub>"
    )
    caption = textwrap.fill(caption, 118, break_on_hyphens=False)
    found = example["tables"](result["records"])
    return {name: f"\n{table}\n{caption}\n" for name, table in found.items()}


@functools.cache
def generated(kind: str, name: str) -> str:
    """What belongs into a region."""
    if kind == "table":
        return table(TABLES[name])
    if kind == "accuracy":
        return accuracy_tables()[name]
    value = figure(FIGURES[name], [])
    if value is None:
        raise ValueError(f"no result file has the figure {name!r}")
    return shown(value)


def rewritten(text: str) -> str:
    """A page with its regions generated."""
    return _REGION.sub(lambda m: m[1] + generated(m[2], m[3]) + m[5], text)


def problems(text: str, every_figure: bool) -> list[str]:
    """What differs from the result files, and figures with a unit outside of any region."""
    found = [
        f"{m[2]} {m[3]}: the page has {m[4].strip()!r}"
        for m in _REGION.finditer(text)
        if m[4] != generated(m[2], m[3])
    ]
    if every_figure:
        # A unit behind a region is the region's, so the region's place is kept by a letter.
        found += [f"no source: {m[0]}" for m in _LOOSE.finditer(_REGION.sub("N", text))]
    return found


def main(check: bool = False) -> int:
    """Writes what is generated into the pages; with `check` only names what differs."""
    failed = False
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()
        if not check:
            text = rewritten(text)
            path.write_text(text)
        for problem in problems(text, page in CHECKED):
            print(f"{page}: {problem}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    import tyro

    sys.exit(tyro.cli(main))
