"""The rates of `jaxgnn/ops/_maxk/choice.py`, fitted to the committed results of the suite `maxk`.

Reads each time of a MaxK kernel by rows and over windows, and of `spmm` of the dense rows, from
`benchmarks/results`. Builds the graphs' windows on the host for their sizes (minutes; kept in
`--sizes`). Fits the picoseconds of each term by non-negative least squares of relative errors,
which count more where the choice was wrong, round by round, until it costs at most 5 %. Prints the
rates, and by how much the choices of the present table and of the fitted one are slower than the
fastest engines.

    python -m benchmarks.experiments.maxk_choice [--sizes FILE] [--rounds 60]
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from scipy.optimize import nnls

from benchmarks.harness import graphs, plan
from jaxgnn.ops._maxk import choice
from jaxgnn.ops._maxk.choice import Case, Engine, Operation, Rates

RESULTS = Path(__file__).parents[1] / "results"
WEIGHTED = "nvidia-h200-maxk-weighted"
# The second has bfloat16, and no time of dense rows: they are `spmm`, and written at this rate.
FILES = ("nvidia-h200-maxk-choice*", "nvidia-h200-maxk")
DENSE_BYTES = 3.5e12  # a second
OPERATIONS: dict[str, Operation] = {"forward": "spgemm", "backward": "sspmm"}
ENGINES: dict[str, Engine] = {
    plan.MAXK: "rows",
    plan.MAXK_WINDOWS: "windows",
    plan.MAXK_DENSE: "dense",
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Fits the rates of the choice between MaxK's kernels."""

    sizes: Path = Path(tempfile.gettempdir()) / "maxk-window-sizes.json"
    """Where the windows' sizes are kept."""
    rounds: int = 60
    """Fits, each after the wrong choices of the one before."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """The measured milliseconds of one call by engine."""

    name: str
    operation: Operation
    case: Case
    ms: dict[Engine, float]


def rows_of(pattern: str) -> list[dict[str, Any]]:
    """The rows of the committed results of that name."""
    files = sorted(RESULTS.glob(f"*-{pattern}.json"))
    return [
        {**row, "file": file.stem} for file in files for row in json.loads(file.read_text())["rows"]
    ]


def sizes_of(names: list[str], file: Path) -> dict[str, dict[str, int]]:
    """Nodes, edges, entries and parts of the windows of each graph."""
    sizes = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        if name in sizes:
            continue
        with graphs.stored(name) as stored:
            graph = stored.to_graph()
        windows = graph.with_windows().windows
        assert windows is not None
        sizes[name] = {
            "nodes": graph.num_receivers,
            "edges": graph.num_edges,
            "entries": windows.senders.shape[0],
            "parts": windows.parts.shape[0],
        }
        file.write_text(json.dumps(sizes))
    return sizes


def samples(sizes_file: Path) -> list[Sample]:
    """All that was measured with and without windows."""
    kept: dict[tuple, dict[Engine, float]] = defaultdict(dict)
    dense: dict[tuple, float] = {}
    for row in (row for pattern in FILES for row in rows_of(pattern)):
        case, dtype, way = row["case"], row["dtype"], row["pass"]
        k, ms = row["shape"].get("k"), row["ms"]
        if way == "select" or case.endswith(" weighted"):
            continue
        if k is None and row["impl"] in (plan.OURS, plan.ORDERED):
            dense[case, dtype, way] = min(ms, dense.get((case, dtype, way), ms))
        elif row["impl"] in ENGINES:
            of = kept[case, dtype, way, k, row["shape"]["width"]]
            of.setdefault(ENGINES[row["impl"]], ms)  # of the first file
    sizes = sizes_of(sorted({key[0] for key in kept}), sizes_file)
    out = []
    for (name, dtype, way, k, width), ms in kept.items():
        size, itemsize = sizes[name], np.dtype(jax.numpy.dtype(dtype)).itemsize
        nodes = size["nodes"]
        case = Case(size["edges"], nodes, nodes, width, k, itemsize, size["entries"], size["parts"])
        if "dense" not in ms:
            extra = choice.terms("dense", OPERATIONS[way], case)["dense_byte"] / DENSE_BYTES * 1e3
            ms["dense"] = dense[name, dtype, way] + extra
        what, operation = f"{name}, {dtype}, k = {k}", OPERATIONS[way]
        out.append(Sample(f"{what}, {way}", operation, case, ms))
        # The same graph without its windows.
        case = case._replace(num_entries=0, num_parts=0)
        ms = {engine: time for engine, time in ms.items() if engine != "windows"}
        out.append(Sample(f"{what}, no windows, {way}", operation, case, ms))
    return out


def weighted_rates() -> Rates:
    """What an edge's weight costs: the median over k of the difference that weights make."""
    differences: dict[tuple[Operation, Engine], list[float]] = defaultdict(list)
    rows = rows_of(WEIGHTED)
    key = ("impl", "dtype", "pass", "shape")
    plain = {str([row[name] for name in key]): row["ms"] for row in rows if row["case"] == "reddit"}
    for row in rows:
        before = plain.get(str([row[name] for name in key]))
        if row["case"] != "reddit weighted" or row["impl"] not in ENGINES or before is None:
            continue
        of = OPERATIONS[row["pass"]], ENGINES[row["impl"]]
        differences[of].append((row["ms"] - before) * 1e9 / row["shape"]["edges"])
    return {
        of: {"weighted_edge": max(0.0, float(np.median(each)))} for of, each in differences.items()
    }


def kernel_of(engine: Engine, sample: Sample) -> tuple[Operation, Engine, bool]:
    """What is fitted together; the last: rows that gather, not scatter."""
    gathers = "gathered_edge" in choice.terms(engine, sample.operation, sample.case)
    return sample.operation, engine, gathers


def fit(every: list[Sample], weights: dict[tuple[str, Engine], float]) -> Rates:
    """Picoseconds of each term by operation and engine."""
    groups: dict[tuple, list[Sample]] = defaultdict(list)
    for sample in every:
        for engine in sample.ms:
            groups[kernel_of(engine, sample)].append(sample)
    rates: Rates = defaultdict(dict)
    for (operation, engine, _), group in groups.items():
        counts = [choice.terms(engine, operation, sample.case) for sample in group]
        names = sorted({name for of in counts for name, n in of.items() if n})
        ps = np.array([sample.ms[engine] * 1e9 for sample in group])
        matrix = np.array([[of.get(name, 0.0) for name in names] for of in counts]) / ps[:, None]
        weight = np.array([weights[sample.name, engine] for sample in group])
        scale = matrix.max(axis=0)
        found = nnls(matrix / scale * weight[:, None], weight)[0] / scale
        named = {name: float(rate) for name, rate in zip(names, found, strict=True) if rate}
        rates[operation, engine] |= named
    return dict(rates)


def estimates(sample: Sample, rates: Rates) -> dict[Engine, float]:
    """Seconds of each engine with these rates."""
    return choice.estimate(sample.case, sample.operation, rates)


def chosen(every: list[Sample], rates: Rates) -> list[Engine]:
    """The choice for each sample with these rates."""
    every_seconds = [estimates(sample, rates) for sample in every]
    return [min(seconds, key=lambda engine: seconds[engine]) for seconds in every_seconds]


def together(every: list[Sample], engines: list[Engine]) -> dict[str, float]:
    """By how much forward and backward together are slower than with the fastest engines."""
    taken: dict[str, float] = defaultdict(float)
    least: dict[str, float] = defaultdict(float)
    for sample, engine in zip(every, engines, strict=True):
        name = sample.name.rpartition(",")[0]
        taken[name] += sample.ms[engine]
        least[name] += min(sample.ms.values())
    return {name: taken[name] / least[name] - 1 for name in taken}


def errors(every: list[Sample], rates: Rates) -> str:
    """How far the estimates are from the measured times."""
    off = [
        abs(seconds * 1e3 / sample.ms[engine] - 1)
        for sample in every
        for engine, seconds in estimates(sample, rates).items()
    ]
    return f"estimates off by {np.median(off):.1%} (median), {np.quantile(off, 0.9):.1%} (9 of 10)"


def say(what: str, every: list[Sample], rates: Rates) -> None:
    """Prints how good the choices are."""
    engines = chosen(every, rates)
    slower = together(every, engines)
    worst = max(slower, key=lambda name: slower[name])
    wrong = sum(value > 0.05 for value in slower.values())
    print(
        f"{what}: forward and backward together, {wrong} of {len(slower)} cases more than 5 % "
        f"slower than the fastest engines; the worst {slower[worst]:.1%}, {worst}; "
        f"{errors(every, rates)}"
    )
    for sample, engine in zip(every, engines, strict=True):
        best = min(sample.ms, key=lambda engine: sample.ms[engine])
        loss = sample.ms[engine] / sample.ms[best] - 1
        if loss > 0.05:
            print(f"  {sample.name}: {engine}, {loss:.1%} slower than {best}")


def main(options: Options) -> None:
    """Fits, and prints."""
    every = samples(options.sizes)
    weights: dict[tuple[str, Engine], float] = defaultdict(lambda: 1.0)
    best: tuple[tuple[int, float], Rates] | None = None
    for _ in range(options.rounds):
        fitted = fit(every, weights)
        engines = chosen(every, fitted)
        slower = together(every, engines).values()
        score = sum(value > 0.05 for value in slower), max(slower)
        if best is None or score < best[0]:
            best = score, fitted
        if not score[0]:
            break  # more rounds would make the times themselves less right
        for sample, engine in zip(every, engines, strict=True):
            fastest = min(sample.ms, key=lambda engine: sample.ms[engine])
            loss = sample.ms[engine] / sample.ms[fastest] - 1
            if loss > 0.02:
                for one in (engine, fastest):
                    weights[sample.name, one] *= 1 + min(loss, 0.3)
    assert best is not None
    rates = best[1]
    for key, named in weighted_rates().items():
        rates[key] |= named
    for key, named in rates.items():
        print(f"    {key}: {{")
        for name, rate in named.items():
            print(f'        "{name}": {rate:.4g},')
        print("    },")
    if choice.RATES:
        say("the present table", every, choice.RATES)
    say("the fitted one", every, rates)


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.maxk_choice"))
