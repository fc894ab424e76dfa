"""The experiments of MaxK-GNN on its five data sets, with their published settings.

    python examples/maxk_paper.py reddit --data PATH/TO/reddit --model sage --k 32
    python examples/maxk_paper.py reddit --data PATH/TO/reddit --model sage --activation relu
    python examples/maxk_paper.py yelp --slice 2000 --epochs 20     # a trial, without any file
    python examples/maxk_paper.py --all --json OUT.json             # every table, without any file
    python examples/maxk_paper.py --all --json OUT.json --data flickr=PATH reddit=PATH
    python examples/maxk_paper.py --all --help

The first three train one model. `--all` measures the paper's Tables 2, 4 and 5 and Figures 8 to 10,
and prints them beside the paper's figures; it needs the checkout, whose `benchmarks/` it runs.

`--data` is a directory as its publisher packs it: GraphSAINT's `adj_full.npz`, `feats.npy`,
`class_map.json`, `role.json` for flickr and yelp; `reddit_data.npz` and `reddit_graph.npz` (PyG's
and DGL's) for reddit; an unpacked OGB archive (`raw/`, `split/`) for ogbn-products and
ogbn-proteins.

The settings are those of the scripts that the authors published with the paper (Peng et al.,
"MaxK-GNN", ASPLOS 2024; github.com/xiexi51/MaxK-GNN, `scripts_train/*.sh` and `utils/config.py`):
layers, hidden width, dropout, learning rate, epochs, self-loops, layer normalization, Adam without
weight decay, seed 97, k from 2 to 128. Layers, width, dropout, learning rate and epochs are those
of the paper's Table 3, too. As theirs, the model begins and ends with a linear layer. What is
different:

- After the last convolution the activation is applied again, before the last linear layer.
- GCN and GIN: theirs project before the activation and aggregate its result; here it
  follows the aggregation, and a GIN layer has two.
- GCN gets one self-loop a node everywhere, by its definition; theirs two on flickr, and none on
  ogbn-proteins.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse
import tyro
from rich.console import Console

from jaxgnn.data import DataError, Metadata, Metric, NodeDataset, Split, load
from jaxgnn.graph import Graph
from jaxgnn.train import CheckpointError, ConfigError, DivergenceError, TrainConfig, run
from jaxgnn.transform import add_remaining_self_loops

Name = Literal["flickr", "yelp", "reddit", "ogbn-products", "ogbn-proteins"]
Model = Literal["sage", "gcn", "gin"]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A data set and its published settings.

    Attributes:
        layers, hidden, dropout, learning_rate, epochs: as published.
        self_loops: the models whose graph gets a self-loop at each node.
        features, classes, metric: of the data, for a slice that is made without them.
    """

    layers: int
    hidden: int
    dropout: float
    learning_rate: float
    epochs: int
    self_loops: tuple[Model, ...]
    features: int
    classes: int
    metric: Metric = "accuracy"


_ALL: tuple[Model, ...] = ("sage", "gcn", "gin")
EXPERIMENTS: dict[str, Experiment] = {
    "flickr": Experiment(3, 256, 0.2, 0.001, 400, _ALL, 500, 7),
    "yelp": Experiment(4, 384, 0.1, 0.001, 3000, _ALL, 300, 100, "micro_f1"),
    "reddit": Experiment(4, 256, 0.5, 0.01, 3000, _ALL, 602, 41),
    "ogbn-products": Experiment(3, 256, 0.5, 0.003, 500, ("gcn", "gin"), 100, 47),
    "ogbn-proteins": Experiment(3, 256, 0.5, 0.01, 1000, (), 8, 112, "roc_auc"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Trains a model of the paper on one of its data sets."""

    dataset: tyro.conf.Positional[Name]
    """Which."""
    data: Path | None = None
    """The directory of its files; without it, only --slice runs."""
    model: Model = "sage"
    """The architecture."""
    activation: Literal["maxk", "relu"] = "maxk"
    """The nonlinearity."""
    k: int = 32
    """Features that MaxK keeps."""
    epochs: int | None = None
    """The most epochs, if not the published number."""
    seed: int = 97
    """Seed of the parameters and of dropout."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the features and of the linear layers' outputs."""
    slice: int | None = None
    """Train on that many nodes of the data, taken breadth-first; without --data, on a random graph
    with the data's numbers of features and classes."""
    run_directory: str | None = None
    """Where to write (default: runs/DATASET-MODEL-TIME)."""
    resume: bool = False
    """Continue the run of --run-directory."""
    max_gigabytes: float = 8.0
    """Refuse a file whose arrays take more."""


def configuration(options: Options) -> TrainConfig:
    """The published settings, as those of `jaxgnn train`."""
    experiment = EXPERIMENTS[options.dataset]
    if options.resume and options.run_directory is None:
        raise ConfigError("--resume: expected --run-directory with it, got none")
    return TrainConfig(
        dataset=options.dataset if options.data is None else str(options.data),
        model=options.model,
        layers=experiment.layers,
        hidden=experiment.hidden,
        activation=options.activation,
        k=options.k if options.activation == "maxk" else TrainConfig.k,
        train_eps=options.model == "gin",
        input_layer=True,
        jumping="last",
        norm="layer",
        dropout=experiment.dropout,
        learning_rate=experiment.learning_rate,
        weight_decay=0.0,
        epochs=experiment.epochs if options.epochs is None else options.epochs,
        patience=0,
        seed=options.seed,
        dtype=options.dtype,
        features="raw",
        run_directory=options.run_directory,
        resume=options.run_directory if options.resume else None,
    ).check()


def read(options: Options) -> NodeDataset:
    """The data, or a slice, with the self-loops that the model gets."""
    if options.slice is not None and options.slice < 1:
        raise ConfigError(f"--slice: expected at least 1, got {options.slice}")
    if options.data is not None:
        dataset = load(options.data, max_bytes=int(options.max_gigabytes * 1e9))
        if options.slice is not None:
            dataset = sliced(dataset, options.slice)
    elif options.slice is not None:
        dataset = random_slice(EXPERIMENTS[options.dataset], options.slice)
    else:
        raise ConfigError("--data: expected the directory of the files (or --slice), got none")
    if options.model in EXPERIMENTS[options.dataset].self_loops:
        graph, _ = add_remaining_self_loops(dataset.graph)
        dataset = dataclasses.replace(dataset, graph=graph)
    return dataset


def sliced(dataset: NodeDataset, num_nodes: int) -> NodeDataset:
    """The graph between the first nodes that a breadth-first walk from a training node meets."""
    graph, split = dataset.graph, dataset.split()
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    ones = np.ones(len(senders), np.float32)
    shape = (dataset.num_nodes, dataset.num_nodes)
    matrix = scipy.sparse.csr_array((ones, (senders, receivers)), shape=shape)
    start = int(split.train.argmax())
    order, _ = scipy.sparse.csgraph.breadth_first_order(matrix, start, directed=False)
    nodes = order[:num_nodes]
    new = np.full(dataset.num_nodes, -1)
    new[nodes] = np.arange(len(nodes))
    inside = (new[senders] >= 0) & (new[receivers] >= 0)
    return dataclasses.replace(
        dataset,
        graph=Graph.from_edges(new[senders[inside]], new[receivers[inside]], num_nodes=len(nodes)),
        features=dataset.features[nodes],
        labels=dataset.labels[nodes],
        splits={"slice": Split(split.train[nodes], split.val[nodes], split.test[nodes])},
    )


def random_slice(experiment: Experiment, num_nodes: int) -> NodeDataset:
    """A random graph of mean degree 20 whose nodes' features betray their labels a little."""
    rng = np.random.default_rng(0)
    ends = rng.integers(num_nodes, size=(2, 10 * num_nodes))
    classes = rng.integers(experiment.classes, size=num_nodes).astype(np.int32)
    labels: Any = classes
    if experiment.metric != "accuracy":
        labels = rng.random((num_nodes, experiment.classes)) < 0.2
        labels[np.arange(num_nodes), classes] = True
        labels = labels.astype(np.float32)
    means = rng.normal(size=(experiment.classes, experiment.features))
    features = means[classes] + rng.normal(size=(num_nodes, experiment.features))
    part = np.arange(num_nodes) % 4
    return NodeDataset(
        name="slice",
        graph=Graph.from_edges(*ends, num_nodes=num_nodes, undirected=True, self_loops="remove"),
        features=features.astype(np.float32),
        labels=labels,
        num_classes=experiment.classes,
        splits={"slice": Split(part < 2, part == 2, part == 3)},
        metadata=Metadata(source="random", metric=experiment.metric),
    )


def whole_paper(arguments: Sequence[str]) -> Any:
    """Every table and figure; returns the results."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # of `benchmarks`
    try:
        from benchmarks.experiments.maxk_paper.run import Experiments
        from benchmarks.experiments.maxk_paper.run import main as run_all
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("benchmarks"):
            raise
        sys.exit("--all: expected a checkout of jaxgnn, whose benchmarks/ it runs")

    def options_of(name: Any, model: Any, k: int | None, epochs: int | None) -> Options:
        activation = "relu" if k is None else "maxk"
        return Options(name, model=model, activation=activation, k=k or Options.k, epochs=epochs)

    return run_all(
        arguments,
        Experiments(
            EXPERIMENTS,
            lambda *chosen: configuration(options_of(*chosen)),
            lambda name, path, model: read(
                dataclasses.replace(options_of(name, model, None, None), data=path)
            ),
        ),
    )


def main(arguments: list[str] | None = None) -> Any:
    """Parses, trains, prints, and returns the summary; with `--all`, the results."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--all" in given:
        return whole_paper(given)
    options = tyro.cli(Options, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    try:
        return run(configuration(options), Console(), dataset=read(options))
    except (CheckpointError, ConfigError, DataError, DivergenceError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
