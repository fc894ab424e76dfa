"""All experiments of the paper in one command, of `examples/maxk_paper.py --all`."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.experiments.maxk_paper import counters, kernels, scores, steps
from benchmarks.experiments.maxk_paper.published import TABLE_5
from benchmarks.experiments.maxk_paper.report import report
from benchmarks.experiments.maxk_paper.store import Results
from benchmarks.harness import graphs
from benchmarks.harness.options import Options, default_device
from jaxgnn import transform
from jaxgnn.data import NodeDataset, benchmark_shapes
from jaxgnn.train import DivergenceError, TrainConfig

Part = Literal["steps", "kernels", "counters", "scores"]
PARTS: tuple[Part, ...] = ("steps", "kernels", "counters", "scores")
MODELS = ("sage", "gcn", "gin")
# The stand-ins of the five sets.
SHAPES = {
    "reddit": "reddit",
    "ogbn-proteins": "proteins",
    "ogbn-products": "products",
    "yelp": "yelp",
    "flickr": "flickr",
}
WIDTH = 256  # of Figure 8, Tables 2 and 4
GRAPHS = (
    *("reddit", "proteins", "ddi", "ppa", "products"),
    *("artist", "yelp", "arxiv", "flickr", "amazon0601", "dd"),
)


@dataclasses.dataclass(frozen=True)
class PaperOptions:
    """All tables and figures of MaxK-GNN, ours beside the paper's."""

    all: bool = False
    """What asks for this."""
    json: Path | None = None
    """The file of all results, saved after each: the same command goes on with what it lacks."""
    datasets: tuple[str, ...] = tuple(SHAPES)
    """Of Table 5."""
    models: tuple[Literal["sage", "gcn", "gin"], ...] = MODELS
    """Of Table 5."""
    data: tuple[str, ...] = ()
    """NAME=DIRECTORY of the sets' own files; of the others random graphs of their sizes are timed,
    and no score is measured."""
    parts: tuple[Part, ...] = PARTS
    """steps and scores: Table 5, Figures 9 and 10; kernels: Figure 8, Table 4; counters: Table 2.
    """
    graphs: tuple[str, ...] = GRAPHS
    """Of Figure 8, by the names of `jaxgnn.data.benchmark_shapes`; Tables 2 and 4 are of the first.
    """
    k: tuple[int, ...] = (8, 16, 32, 64, 96, 128)
    """Entries kept, of Figure 8; 32 is Table 4's."""
    num_seeds: int = 5
    """Of scores."""
    epochs: int | None = None
    """Of scores, if not the published number."""
    budget: float = 0.0
    """Start no measurement after that many seconds; 0: measure all. The last one may take a minute.
    """
    repeats: int = 10
    """Timed batches of each measurement."""
    scale: float = 1.0
    """Of the random graphs."""
    cache: Path | None = None
    """Keep generated graphs in this folder."""
    device: Literal["cpu", "gpu"] | None = None
    """Default: a GPU if there is one."""
    threads: int = 2
    """On the CPU."""


@dataclasses.dataclass(frozen=True)
class Experiments:
    """The paper's experiments as the example has them.

    Attributes:
        settings: by set, with the attributes layers, hidden, features and classes.
        configure: the options of training, of a set, model, k (`None` is ReLU) and epochs.
        read: the data, of a set, its directory and the model.
    """

    settings: dict[str, Any]
    configure: Callable[[str, str, int | None, int | None], TrainConfig]
    read: Callable[[str, Path, str], NodeDataset]


def main(arguments: Sequence[str], experiments: Experiments) -> Results:
    """Measures, prints the tables, and returns the results."""
    options = tyro.cli(PaperOptions, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    try:
        files = check(options)
        return run(options, files, experiments)
    except (ValueError, DivergenceError, OSError) as error:  # `ConfigError` and `DataError` too
        sys.exit(str(error))


def check(options: PaperOptions) -> dict[str, Path]:
    """The directories of the sets' files.

    Raises:
        ValueError: an option that cannot be.
    """
    for name, given, known in (
        ("datasets", options.datasets, list(SHAPES)),
        ("graphs", options.graphs, list(benchmark_shapes())),
    ):
        if unknown := set(given) - set(known):
            raise ValueError(
                f"--{name}: expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}"
            )
    for name in ("num_seeds", "repeats", "threads"):
        if (value := getattr(options, name)) < 1:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least 1, got {value}")
    if not options.budget >= 0:
        raise ValueError(f"--budget: expected a number from 0, got {options.budget}")
    if not options.k or not all(1 <= k <= WIDTH for k in options.k):
        raise ValueError(f"--k: expected numbers from 1 to {WIDTH}, got {options.k}")
    if not 0 < options.scale <= 1:
        raise ValueError(f"--scale: expected a number in (0, 1], got {options.scale}")
    files = {}
    for text in options.data:
        name, equals, path = text.partition("=")
        if not equals or name not in SHAPES:
            raise ValueError(f"--data: expected NAME=DIRECTORY of a set, got {text!r}")
        files[name] = Path(path)
    return files


def run(options: PaperOptions, files: dict[str, Path], experiments: Experiments) -> Results:
    """Measures part by part, kernels and whole steps before trainings."""
    device = options.device or ("gpu" if default_device() == "gpu" else "cpu")
    harness = Options(
        suite="training",
        device=device,
        repeats=options.repeats,
        rounds=1,
        scale=options.scale,
        threads=options.threads,
    )
    # The children that are timed need the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    results = Results.open(options.json, harness, options.budget)
    results.save()  # a file that cannot be written is known before anything is measured
    with tempfile.TemporaryDirectory(prefix="jaxgnn-maxk-paper-") as folder:
        workspace = Path(folder)
        cache = options.cache or workspace
        if "steps" in options.parts:
            for name in options.datasets:
                if results.out_of_time():
                    break
                graph = _graph(name, files, options, experiments, results, cache)
                own = experiments.settings[name]
                widths = (own.features, *(own.hidden,) * (own.layers + 1), own.classes)
                steps.run(name, graph, widths, options.models, harness, results, workspace)
        for number, shape in enumerate(options.graphs):
            counted = number == 0 and "counters" in options.parts
            timed = "kernels" in options.parts
            if not (timed or counted) or results.out_of_time():
                break
            graph = _random_graph(shape, cache, options.scale)
            _note(results, graph)
            setting = (harness, results, workspace)
            if timed:
                kernels.run(shape, graph, options.k, WIDTH, *setting)
            if counted:
                counters.run(shape, graph, WIDTH, kernels.SELECTION_K, *setting)
    if "scores" in options.parts:
        _train(options, files, experiments, results)
    results.save()
    print(report(results, options.k, list(files)))
    return results


def _train(
    options: PaperOptions, files: dict[str, Path], experiments: Experiments, results: Results
) -> None:
    for name in options.datasets:
        if name not in files:
            results.leave_out(f"scores of {name}", "its files were not given (--data)")
            continue
        for model in options.models:
            data: NodeDataset | None = None
            for k in TABLE_5[name, model]:
                if results.out_of_time():
                    return
                config = experiments.configure(name, model, k, options.epochs)
                data = data or experiments.read(name, files[name], model)
                seeds = range(config.seed, config.seed + options.num_seeds)
                scores.run(name, config, data, seeds, results)


def _graph(
    name: str,
    files: dict[str, Path],
    options: PaperOptions,
    experiments: Experiments,
    results: Results,
    cache: Path,
) -> Path:
    """The folder of a set's stored graph: its own, or a random one of its size."""
    if name not in files:
        folder = _random_graph(SHAPES[name], cache, options.scale)
    else:
        print(f"{name}: reading {files[name]}", file=sys.stderr)
        folder = cache / f"{name}-files"
        # The models of the steps add their own self-loops.
        graph, _ = transform.remove_self_loops(experiments.read(name, files[name], "sage").graph)
        graphs.save(graph, folder, {"name": name, "scale": 1.0}, {"source": str(files[name])})
    _note(results, folder)
    return folder


def _random_graph(shape: str, cache: Path, scale: float) -> Path:
    """The folder of a stored graph; the largest take minutes."""
    print(f"{shape}: generating a graph of its size, if --cache has none", file=sys.stderr)
    return graphs.store_all([shape], cache, scale)[shape]


def _note(results: Results, folder: Path) -> None:
    facts = graphs.read_facts(folder)
    if not results.find("graphs", name=facts["name"]):
        results.add("graphs", facts)
