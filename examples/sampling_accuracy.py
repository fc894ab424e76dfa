"""What sampling costs in accuracy: ten seeds, as tables and a JSON file.

    python examples/sampling_accuracy.py --data PATH/TO/FOLDER --output results.json
    python examples/sampling_accuracy.py --tables results.json     # the tables alone

The folder holds the sets as `jaxgnn.data.load` reads them: `cora/`, `amazon_photo/`, `dblp/`,
`minesweeper/`; the community graph, of mean degree 220, is generated. Four questions, each for GCN
and GraphSAGE, everything else equal:

- Inference: a model is trained on all edges, and infers from at most S edges a node, by strategy,
  or with edges dropped at random.
- Training on a sample of the edges, the same in each step or a fresh one, inference from all.
- Training on mini-batches of sampled neighborhoods, inference from all.

Where a set has ten splits, seed s takes split s. Each program is compiled once for all seeds.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import json
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro

from jaxgnn.data import DataError, NodeDataset, load
from jaxgnn.train import (
    PRESETS,
    ConfigError,
    InferenceSample,
    SeedRun,
    TrainConfig,
    environment,
    load_dataset,
    sampled_logits,
    score,
    train_in_sequence,
)

Dataset = Literal["cora", "amazon_photo", "dblp", "minesweeper", "community"]
Model = Literal["gcn", "sage"]
Row = dict[str, Any]

STRATEGIES = ("bucket", "fastrand", "stride")
SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
MOST_SHARE = 0.99
"""Sizes that leave out less than a hundredth of the edges are not measured."""
DROP_RATES = (0.2, 0.4, 0.6, 0.8)
COMMUNITY = {
    "num_nodes": 3000,
    "num_edges": 660_000,
    "classes": 10,
    "intra_share": 0.3,
    "features": 32,
    "noise": 4.0,
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """How the models of a set are trained.

    Attributes:
        config: on all edges.
        sample_sizes: the most edges of a node, where they are trained on a sample.
        num_neighbors, batch_size, deduplicate: of mini-batches.
    """

    config: TrainConfig
    sample_sizes: tuple[int, ...]
    num_neighbors: tuple[str, ...]
    batch_size: int
    deduplicate: bool = False


_CITATIONS = dataclasses.replace(PRESETS["gcn-pyg"], epochs=100, patience=30)
_WIDE = TrainConfig(hidden=64, dropout=0.5, weight_decay=5e-4, patience=0)
_MINESWEEPER = dataclasses.replace(
    _WIDE, dropout=0.2, norm="layer", residual=True, weight_decay=0.0, epochs=100, patience=30
)
SETTINGS: dict[Dataset, Setting] = {
    "cora": Setting(_CITATIONS, (2,), ("10,5",), 64),
    "amazon_photo": Setting(
        dataclasses.replace(_WIDE, norm="layer", epochs=60, patience=20), (8,), ("10,5",), 64
    ),
    "dblp": Setting(dataclasses.replace(_CITATIONS, epochs=50, patience=15), (2,), ("10,5",), 64),
    "minesweeper": Setting(_MINESWEEPER, (2, 4), ("5,5", "8,8"), 1024),
    "community": Setting(
        *(dataclasses.replace(_WIDE, epochs=80), (32, 128), ("15,10", "64,64"), 512, True)
    ),
}
"""Two layers: of width 16 on the citation graphs (PyG's benchmark, fewer epochs), else 64."""

PUBLISHED: tuple[tuple[str, str, str, str], ...] = (
    ("Pubmed", "gcn, sage", "16", "16"),
    ("ogbn-arxiv", "gcn, sage", "16", "16"),
    ("ogbn-proteins", "gcn", "1,792", "128"),
    ("ogbn-proteins", "sage", "2,304", "64"),
    ("Reddit", "gcn", "32", "32"),
    ("Reddit", "sage", "16", "16"),
)
"""Liao et al., "ES-SpMM" (2021): the least S within a point, by data, model and strategy."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Measures what sampling costs in accuracy."""

    data: Path = Path("data")
    """The folder of the data sets."""
    output: Path = Path("sampling_accuracy.json")
    """Where to write. Data sets and models that a file there has are not measured again."""
    tables: Path | None = None
    """Print the tables of this file instead of measuring."""
    datasets: tuple[Dataset, ...] = ("cora", "amazon_photo", "dblp", "minesweeper", "community")
    """Which data sets."""
    models: tuple[Model, ...] = ("gcn", "sage")
    """Which models."""
    seeds: int = 10
    """Number of seeds."""
    quick: bool = False
    """A trial: two seeds, four epochs, a small community graph, an eighth of the samples."""


def read(name: Dataset, options: Options) -> NodeDataset:
    """A data set."""
    if name == "community":
        small = {"num_nodes": 200, "num_edges": 8000, "classes": 3} if options.quick else {}
        return load("chung_lu", **(COMMUNITY | small))
    return load_dataset(TrainConfig(dataset=str(options.data / name)))


def measure(options: Options, done: Collection[tuple[str, str]] = ()) -> Iterator[list[Row]]:
    """The rows of each data set and model that is not `done`."""
    for name in options.datasets:
        models = [model for model in options.models if (name, model) not in done]
        if not models:
            continue
        setting, dataset = SETTINGS[name], read(name, options)
        if options.quick:
            setting = dataclasses.replace(
                setting,
                config=dataclasses.replace(setting.config, epochs=4),
                sample_sizes=setting.sample_sizes[:1],
                num_neighbors=setting.num_neighbors[:1],
            )
        config = dataclasses.replace(setting.config, dataset=name)
        for model in models:
            yield list(_measure_model(name, model, config, setting, dataset, options))


def _measure_model(
    name: Dataset,
    model: Model,
    config: TrainConfig,
    setting: Setting,
    dataset: NodeDataset,
    options: Options,
) -> Iterator[Row]:
    config = dataclasses.replace(config, model=model)
    seeds = range(2 if options.quick else options.seeds)
    splits = seeds if len(dataset.splits) >= len(seeds) else None
    train = functools.partial(train_in_sequence, seeds=seeds, splits=splits, dataset=dataset)
    degrees = np.asarray(dataset.graph.in_degrees)
    common = {"dataset": name, "model": model, "metric": dataset.metric}
    common["mean_degree"] = round(float(degrees.mean()), 1)

    def row(trained: str, sample: InferenceSample, scores: Sequence[float], **more: Any) -> Row:
        percent = [round(100 * value, 3) for value in scores]
        print(f"{name} {model} {trained} {_label(sample)}: {np.mean(percent):.2f}", flush=True)
        share = round(sample.edge_share(degrees), 4)
        inference = dataclasses.asdict(sample) | {"edge_share": share}
        return common | {"trained": trained, **inference, "scores": percent} | more

    def trained_row(trained: str, config: TrainConfig, start: float, runs: list[SeedRun]) -> Row:
        return row(
            trained,
            InferenceSample(),
            [run.test_score for run in runs],
            epochs=[run.progress.best_epoch for run in runs],
            seconds=round(time.perf_counter() - start, 1),
            settings=config.settings() | {"dataset": name},
        )

    start = time.perf_counter()
    runs = list(train(config))
    yield trained_row("all", config, start, runs)
    for sample in samples(degrees)[:: 8 if options.quick else 1]:
        yield row("all", sample, infer(dataset, runs, sample))
    for size, kind in itertools.product(setting.sample_sizes, ("fixed", "fresh")):
        start = time.perf_counter()
        sampled = dataclasses.replace(config, sample_size=size, fixed_sample=kind == "fixed")
        runs = list(train(sampled))
        yield trained_row(kind, sampled, start, runs)
        same = InferenceSample("stride", size)
        yield row(kind, same, infer(dataset, runs, same))
    for neighbors in setting.num_neighbors:
        start = time.perf_counter()
        batches = dataclasses.replace(
            config,
            num_neighbors=neighbors,
            batch_size=setting.batch_size,
            deduplicate=setting.deduplicate,
        )
        yield trained_row("mini-batches", batches, start, list(train(batches)))


def samples(degrees: np.ndarray) -> list[InferenceSample]:
    """What models infer from beside all edges."""
    taken = [InferenceSample(*pair) for pair in itertools.product(STRATEGIES, SIZES)]
    part = [sample for sample in taken if sample.edge_share(degrees) <= MOST_SHARE]
    return part + [InferenceSample("dropedge", drop_rate=rate) for rate in DROP_RATES]


def infer(
    dataset: NodeDataset, runs: Sequence[SeedRun], sample: InferenceSample
) -> Iterator[float]:
    """Test scores from a sample of the edges; where it is drawn, each seed draws its own."""
    # One program: a seed's parameters, task and key are its arguments.
    logits = jax.jit(functools.partial(sampled_logits, runs[0].program, sample.options()))
    for run in runs:
        key = jax.random.key(run.seed) if sample.draws else None
        found = np.asarray(logits(run.best.params, run.best.rest, run.task, key))
        yield score(dataset.metric, dataset.labels, found, run.split.test)


def _label(sample: InferenceSample) -> str:
    numbers = (sample.sample_size, sample.drop_rate)
    return " ".join([sample.strategy, *(str(number) for number in numbers if number is not None)])


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """The tables in Markdown, by name."""
    order = list(SETTINGS)
    pairs = dict.fromkeys((row["dataset"], row["model"]) for row in rows)
    groups = {
        pair: [row for row in rows if (row["dataset"], row["model"]) == pair]
        for pair in sorted(pairs, key=lambda pair: order.index(pair[0]))
    }
    return {
        "least": _least_table(groups),
        "inference": _inference_table(groups),
        "dropped": _dropped_table(groups),
        "trained": _trained_table(groups),
        "mini-batches": _batches_table(groups),
    }


Groups = dict[tuple[str, str], list[Row]]


def _find(rows: Sequence[Row], trained: str = "all", **fields: Any) -> Row | None:
    wanted = {"trained": trained, "strategy": "all", "sample_size": None, "drop_rate": None}
    wanted |= fields
    return next((row for row in rows if wanted.items() <= row.items()), None)


def _difference(row: Row, other: Row) -> float:
    """Points that the mean over the seeds is above the other's."""
    return float(np.mean(row["scores"]) - np.mean(other["scores"]))


def _mean(row: Row | None) -> str:
    return "–" if row is None else f"{np.mean(row['scores']):.1f} ± {np.std(row['scores']):.1f}"


def _compared(row: Row | None, other: Row | None) -> str:
    """A mean with its distance to another's, marked where that is below a point."""
    if row is None or other is None:
        return "–"
    difference = _difference(row, other)
    mark = r" \*" if difference < -1 else ""
    return f"{_mean(row)} ({difference:+.1f}){mark}"


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    table = [list(heads), ["---"] * 2 + ["---:"] * (len(heads) - 2), *map(list, lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table) + "\n"


def least_size(rows: Sequence[Row], strategy: str) -> Row | None:
    """The least S from which on all that were measured are within a point of all edges."""
    whole, least = _find(rows), None
    assert whole is not None
    measured = [row for row in rows if row["trained"] == "all" and row["strategy"] == strategy]
    for row in sorted(measured, key=lambda row: -row["sample_size"]):
        if _difference(row, whole) < -1:
            break
        least = row
    return least


def _least_table(groups: Groups) -> str:
    lines = []
    for (name, model), rows in groups.items():
        cells = []
        for strategy in STRATEGIES:
            row = least_size(rows, strategy)
            if row is None:
                found = [r["sample_size"] for r in rows if r["strategy"] == strategy]
                cells.append(f"> {max(found)}" if found else "–")
            else:
                cells.append(f"{row['sample_size']} ({100 * row['edge_share']:.0f} %)")
        lines.append([name, model, f"{rows[0]['mean_degree']:.1f}", *cells])
    lines += [[f"{name}, published", model, "", *sizes, ""] for name, model, *sizes in PUBLISHED]
    return _markdown(["data", "model", "mean degree", *STRATEGIES], lines)


def _inference_table(groups: Groups) -> str:
    lines = []
    for (name, model), rows in groups.items():
        whole = _find(rows)
        assert whole is not None
        for strategy in STRATEGIES:
            found = [_find(rows, strategy=strategy, sample_size=size) for size in SIZES]
            cells = ["–" if row is None else f"{_difference(row, whole):+.1f}" for row in found]
            lines.append([name, model, strategy, _mean(whole), *cells])
    sizes = [f"S = {size}" for size in SIZES]
    table = _markdown(["data", "model", "strategy", "all edges", *sizes], lines)
    return table


def _dropped_table(groups: Groups) -> str:
    lines = []
    for (name, model), rows in groups.items():
        whole = _find(rows)
        found = [_find(rows, strategy="dropedge", drop_rate=rate) for rate in DROP_RATES]
        lines.append([name, model, _mean(whole), *(_compared(row, whole) for row in found)])
    rates = [f"{rate} dropped" for rate in DROP_RATES]
    return _markdown(["data", "model", "all edges", *rates], lines)


def _trained_table(groups: Groups) -> str:
    lines = []
    for (name, model), rows in groups.items():
        whole = _find(rows)
        sampled = [row for row in rows if row["trained"] == "fixed" and row["strategy"] == "stride"]
        for row in sampled:
            size = row["sample_size"]
            share = f"{size} ({100 * row['edge_share']:.0f} %)"
            cells = []
            for kind in ("fixed", "fresh"):
                trained = [r for r in rows if r["trained"] == kind]
                full = [r for r in trained if r.get("settings", {}).get("sample_size") == size]
                same = _find(trained, kind, strategy="stride", sample_size=size)
                cells += [_compared(full[0] if full else None, whole), _compared(same, whole)]
            lines.append([name, model, share, _mean(whole), *cells])
    heads = ["data", "model", "S", "all edges"]
    for kind in ("fixed", "fresh"):
        heads += [f"{kind} sample", f"{kind}, tested from S too"]
    return _markdown(heads, lines)


def _batches_table(groups: Groups) -> str:
    lines = []
    for (name, model), rows in groups.items():
        whole = _find(rows)
        for row in rows:
            if row["trained"] == "mini-batches":
                settings = row["settings"]
                kind = f"{settings['num_neighbors']} × {settings['batch_size']}"
                lines.append([name, model, kind, _mean(whole), _compared(row, whole)])
    columns = ["data", "model", "neighbors × batch size", "full batch", "mini-batches"]
    return _markdown(columns, lines)


def write(path: Path, rows: Sequence[Row]) -> None:
    """What there is so far, one row a line."""
    head = {
        "date": datetime.date.today().isoformat(),
        "hardware": _cpu(),
        "environment": environment(),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    listed = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    path.write_text("\n".join(["{", *lines, ' "records": [', listed, " ]", "}"]) + "\n")


def _cpu() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "unknown")


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of this script.

    Raises:
        DataError: it is none.
    """
    try:
        return json.loads(path.read_text())["records"]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path}: expected a file of this script") from None


def main(arguments: list[str] | None = None) -> None:
    """Parses, measures, writes, prints."""
    options = tyro.cli(Options, args=arguments)
    if options.seeds < 1:
        sys.exit(f"--seeds: expected at least 1, got {options.seeds}")
    try:
        if options.tables is not None:
            rows = read_rows(options.tables)
        else:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            rows = read_rows(options.output) if options.output.exists() else []
            for found in measure(options, {(row["dataset"], row["model"]) for row in rows}):
                rows += found
                write(options.output, rows)
    except (ConfigError, DataError, OSError) as error:
        sys.exit(str(error))
    for name, table in tables(rows).items():
        print(f"\n{name}\n\n{table}")


if __name__ == "__main__":
    main()
