"""`TrainConfig`: every option of a training run, checked, and saved beside its results."""

from __future__ import annotations

import dataclasses
import os
import reprlib
from typing import Annotated, Any

import tyro

from jaxgnn._core.text import printable
from jaxgnn.ops._sampling.negative_edges import NegativeMethod
from jaxgnn.ops._sampling.sample import LARGEST_SAMPLE
from jaxgnn.train.settings.config_checks import check
from jaxgnn.train.settings.options import (
    Activation,
    ConfigError,
    Decay,
    DecayLayers,
    Decoder,
    DType,
    EdgeFeatures,
    Features,
    FeaturesOn,
    GraphMetric,
    Method,
    Readout,
    Sampling,
    Shard,
    TaskName,
)

# Options that say how a run is watched and kept, not what it computes: free to change on resume.
PRESENTATION = (
    *("resume", "run_directory", "checkpoint_interval", "checkpoint_steps", "steps_per_call"),
    *("plain", "profile", "devices", "shard", "k_epochs", "k_tolerance"),
    *("distributed", "coordinator", "processes", "process", "stall_timeout"),
)

HEAD_K_AUTO = -1
"""The `head_k` that says auto: 0 is all features."""

_DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"norm": "layer", "weight_decay": 5e-3},
}


def _directory(hint: str) -> Any:
    return tyro.conf.arg(metavar="DIRECTORY", help_behavior_hint=hint)


_INTEGERS: Any = tyro.conf.arg(metavar="INT,INT,...", help_behavior_hint="(optional)")


def _optional(metavar: str) -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(default: the job's)")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Train a graph neural network to classify the nodes of a graph, to predict its edges, or to
    predict labels of whole graphs.

    Writes a checkpoint, the metrics of each epoch, a plot and a summary into a run directory.
    """

    dataset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")] = "digits"
    """The data: a name (see `jaxgnn info --help`), or a path that `jaxgnn.data.load` reads. Also as
    --dataset."""

    task: TaskName = "node"
    """node: classify the nodes. link: predict the edges, also of a graph without labels (an edge
    list, say); where nodes have no features they get a learned embedding of width --hidden. graph:
    predict the classes or the targets of many graphs."""

    model: str = "gcn"
    """The architecture: gcn, sage, sage_embedding (whose matrices `jaxgnn embed` takes), gin, gat,
    gatv2, agnn, transformer, edgeconv or monet; with --task graph also pna; or mlp, which does not
    look at the graph."""

    layers: int = 2
    """Number of message-passing layers."""

    hidden: int = 64
    """Width of the hidden layers."""

    activation: Activation = "relu"
    """The nonlinearity: relu, elu, or maxk, which keeps the --k largest of a node's hidden features
    and so makes the next aggregation a sparse one."""

    k: int = 32
    """Features that maxk keeps, at most --hidden; auto, or 0: the cheapest of a few numbers by a
    short run of each."""

    k_epochs: int = 50
    """Epochs of each of the short runs, at most --epochs."""

    k_tolerance: float = 0.01
    """How far below the best one's its validation score may be."""

    anneal_from: int = 0
    """Features that maxk keeps at first, from --k to --hidden; 0: --k. Rows of that width are
    moved in every epoch, but for --anneal-stages."""

    anneal_epochs: int = 100
    """Epochs in which they fall to --k, one step at a time."""

    anneal_stages: bool = False
    """Let them fall by halves, in stages of equally many epochs. Each stage is compiled by itself
    and moves rows of its own width, which takes less time. The epoch is selected after them."""

    packed: bool = False
    """Round what maxk keeps in float32 to 15 bits of mantissa (13 with --hidden above 256), so
    that a value and its column index take 4 bytes."""

    input_layer: bool = False
    """Begin with a linear layer to the hidden width and the activation, so that every aggregation
    is one of hidden features."""

    heads: int = 1
    """Attention heads, in the models that have them: concatenated to --hidden, which they must
    divide."""

    out_heads: int = 0
    """Heads of the last layer, which are averaged; 0: the number of --heads."""

    head_k: int = 0
    """Features of each head that the hidden layers of gat and transformer average, the largest of a
    node's; 0: all; auto, or -1: chosen as --k auto chooses."""

    kernel_size: int = 3
    """Gaussians of monet."""

    dim: int = 2
    """Coordinates of its edges, learned functions of the degrees at both ends."""

    train_eps: bool = False
    """Learn the weight of the root features, 1 + epsilon, in gin."""

    dropout: float = 0.5
    """Share of the hidden features dropped in training, and of the weights of an attention."""

    input_dropout: float = 0.0
    """Share of the input features dropped in training (0.5 in Kipf and Welling's GCN)."""

    norm: str = "none"
    """Normalization between layers: none, batch or layer (on digits by default: layer); graph, of
    each graph's nodes, with --task graph."""

    residual: bool = False
    """Add each hidden layer's input to its output."""

    recompute: bool = False
    """Compute normalization, activation and dropout again in the backward pass, to keep less."""

    jumping: str = "none"
    """Combine the outputs of all layers before a last linear layer: none, last (that of the last
    layer alone), cat or max."""

    sample_size: int = 0
    """The most edges of a node that a training step aggregates, at most 4096; 0: all. Validation
    and test take all edges."""

    sample_rate: float = 0.0
    """The largest share of a node's edges that a training step aggregates; with --strategy
    dropedge the probability to keep an edge; 0: all."""

    strategy: Sampling = "stride"
    """Which edges those are. stride, random and dropedge draw others in each step, bucket and
    fastrand take the same ones always."""

    fixed_sample: bool = False
    """Take the same edges in each step, with --strategy stride too."""

    num_neighbors: Annotated[str, _INTEGERS] = ""
    """Train on mini-batches of sampled neighborhoods: the most edges of a node, hop by hop from the
    seeds, as many numbers as --layers, such as 15,10,5. Validation and test take all neighbors."""

    batch_size: int = 1024
    """Training nodes of a mini-batch; with --task graph its graphs, by default 128."""

    replace: bool = False
    """Draw a node's neighbors of a mini-batch with replacement."""

    method: Method = "uniform"
    """How they are drawn: uniform, each node apart; labor, so that nodes share neighbors and a
    mini-batch has fewer of them, with --deduplicate."""

    deduplicate: bool = False
    """Let a node that several others of a mini-batch sampled occur, and be computed, once."""

    steps_per_call: int = 0
    """The most mini-batches that are trained on between two looks at Ctrl-C; 0: an epoch. The
    results are the same but for rounding."""

    features_on: FeaturesOn = "device"
    """Where the features are, with --num-neighbors: in the device's memory, or in the host's, of
    which a mini-batch, and a batch of the evaluation, reads its rows. The results are the same but
    for rounding."""

    evaluation_batch_size: int = 65536
    """Nodes of a batch where a model trained with --num-neighbors is evaluated: one layer after the
    other, each in batches of nodes with all of their neighbors. Fewer take less memory. With
    --features-on host a batch has a quarter of the nodes at most."""

    readout: Readout = "sum"
    """How the rows of a graph's nodes become one: sum, mean, max, min, or attention, a sum by
    learned weights."""

    edge_features: EdgeFeatures = "auto"
    """auto: take the features of the edges where the graphs have some and the model takes them
    (gat, gatv2, gin, pna, transformer), as categories where the data say so. raw: as numbers.
    categories: columns of whole numbers, each with embeddings. none: leave them out."""

    metric: GraphMetric = "auto"
    """The score that selects the epoch, of many graphs: accuracy, roc_auc, average_precision,
    micro_f1, or of targets that are numbers rmse, or mae, whose loss is the absolute error. auto:
    that of the data's publication."""

    decoder: Decoder = "dot"
    """What scores a link by the outputs of its ends: their dot product, or mlp, an MLP of
    their elementwise product."""

    negatives: NegativeMethod = "uniform"
    """How training draws pairs without an edge, anew in each step: uniform; structured, with the
    senders of edges; degree, with the ends of edges."""

    val_share: float = 0.05
    """Share of the links to select on."""

    test_share: float = 0.1
    """Share of the links to test."""

    disjoint_train: float = 0.0
    """Share of the training links that pass no messages in training; 0: all are links and pass
    messages."""

    directed: bool = False
    """Keep the directions of edges; else links join both ways."""

    undirected: bool = False
    """Of nodes to classify: add the reverse of each edge, as where tables of your own list an edge
    once. Repeated edges are merged."""

    edge_weights: bool = False
    """Multiply the message of each edge by the weight that the data give it, such as the column
    weight of edges.csv: of nodes to classify, with gcn, sage and gin."""

    learning_rate: Annotated[float, tyro.conf.arg(aliases=["--lr"])] = 0.01
    """Learning rate of Adam."""

    weight_decay: float = 5e-4
    """Weight decay (on digits by default: 0.005)."""

    decay: Decay = "l2"
    """l2: the decay joins the gradient, as in PyTorch's Adam and most published GNN settings.
    decoupled: AdamW."""

    decay_layers: DecayLayers = "all"
    """The layers that decay; "first" is Kipf and Welling's setting."""

    epochs: int = 200
    """The most epochs (one step on the whole graph each, or one on each mini-batch)."""

    patience: int = 100
    """Stop after this many epochs without a better validation score; 0: never."""

    dtype: DType = "float32"
    """Type of the features and of the linear layers' outputs. Parameters and sums stay float32 (in
    float64: float64)."""

    features: Features = "auto"
    """normalized: each row of the features sums to 1. auto: normalized for Planetoid's sets, raw
    for the rest. embedding: learned for each node, of width --hidden, in place of the features.
    categories, with --task graph: columns of whole numbers, each with embeddings of width
    --hidden, whose sum a node reads; auto has them where the data say so, as OGB's molecules."""

    split: int = 0
    """Which of the dataset's splits; of links the seed of the split. Graphs without splits get ten
    folds: fold N tests, the next one validates."""

    seed: int = 0
    """Seed of the initial parameters and of dropout."""

    devices: Annotated[str, tyro.conf.arg(metavar="INT|all")] = "1"
    """Devices of this host over which a run on the whole graph splits it, or a run with
    --num-neighbors the nodes of each mini-batch. A run may be continued on another number; dropout
    then draws otherwise, and with --deduplicate the sample."""

    shard: Shard = "auto"
    """How the graph is split, with --devices: rows, each device has its nodes' edges; features,
    each has the whole graph and aggregates its columns; both, rows between processes and features
    among the devices of each; auto: rows of a folder of jaxgnn partition, else what is predicted to
    be faster."""

    distributed: bool = False
    """Split the graph, or the nodes of each mini-batch, over the devices of several processes, such
    as one a host, of which each runs this command. SLURM and Open MPI tell them who they are; else
    --coordinator, --processes and --process. Process 0 alone logs; the run directory is one that
    all of them see."""

    coordinator: Annotated[str | None, _optional("HOST:PORT")] = None
    """Where process 0 listens, with --distributed."""

    processes: Annotated[int | None, _optional("INT")] = None
    """The number of processes."""

    process: Annotated[int | None, _optional("INT")] = None
    """The number of this one, from 0."""

    stall_timeout: int = 600
    """Seconds without an epoch's end, or of loading, after which the processes of --distributed
    end, and name the one that is stuck; 0: never."""

    run_directory: Annotated[str | None, _directory("(default: runs/DATASET-MODEL-TIME)")] = None
    """Where to write."""

    resume: Annotated[str | None, _directory("(optional)")] = None
    """Continue the run in this directory from its last complete checkpoint, with its settings.
    Without a value: the run of --run-directory."""

    checkpoint_interval: int = 25
    """Epochs between checkpoints; there is one at the end in any case."""

    checkpoint_steps: int = 0
    """Mini-batches between checkpoints within an epoch, where a call ends (--steps-per-call, by
    default as many): a run that is killed goes on from there; 0: between epochs alone."""

    plain: bool = False
    """Print lines instead of a live display (the default where the output is no terminal)."""

    profile: Annotated[str | None, _directory("(optional)")] = None
    """Write a trace of the first ten epochs by JAX's profiler."""

    @classmethod
    def for_dataset(cls, dataset: str) -> TrainConfig:
        """The defaults for a dataset: the general ones but for digits, whose features are few
        and dense."""
        return cls(dataset=dataset, **_DATASET_DEFAULTS.get(dataset, {}))

    def for_task(self, task: str) -> TrainConfig:
        """The same for another task, with the defaults that differ there."""
        if task != "graph":
            return self
        return dataclasses.replace(self, task="graph", batch_size=128)

    def check(self) -> TrainConfig:
        """Returns itself.

        Raises:
            ConfigError: an option out of range.
        """
        check(self)
        return self

    @property
    def samples(self) -> bool:
        """Whether a training step aggregates a sample of the edges."""
        return bool(self.sample_size or self.sample_rate)

    @property
    def neighbors(self) -> tuple[int, ...]:
        """The numbers of `num_neighbors`.

        Raises:
            ConfigError: they are no integers in range.
        """
        given: Any = self.num_neighbors
        parts = given.split(",") if isinstance(given, str) else [""]  # such as a list
        parts = parts if given != "" else []
        values = [int(p) if p.strip().isdecimal() and len(p) < 10 else 0 for p in parts]
        if not all(1 <= value <= LARGEST_SAMPLE for value in values):
            raise ConfigError(
                f"--num-neighbors: expected integers from 1 to {LARGEST_SAMPLE} with commas "
                f"between, got {printable(reprlib.repr(self.num_neighbors))}"
            )
        return tuple(values)

    @property
    def over_devices(self) -> bool:
        """Whether the graph may be split."""
        return self.devices != "1" or self.distributed

    def settings(self) -> dict[str, Any]:
        """The options that decide the result, for `config.json`; paths absolute."""
        values = dataclasses.asdict(self)
        for name in PRESENTATION:
            del values[name]
        values["dataset"] = _absolute(self.dataset)
        return values


def _absolute(dataset: str) -> str:
    """A path made absolute, so that a run can be resumed from elsewhere; a name as it is."""
    return os.path.abspath(dataset) if os.path.exists(dataset) else dataset


def check_config(config: Any) -> None:
    """Refuses an argument that is no configuration.

    Raises:
        TypeError: naming what it is.
    """
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config: expected a TrainConfig, got {type(config).__name__}")
