"""`TrainConfig`: every option of a training run, checked, and saved beside its results."""

from __future__ import annotations

import dataclasses
import math
import os
import reprlib
from typing import Annotated, Any, Literal, get_args

import tyro

from jaxgnn._core.text import printable
from jaxgnn.ops._sampling.negative_edges import NegativeMethod
from jaxgnn.ops._sampling.sample import LARGEST_SAMPLE

Activation = Literal["relu", "elu", "maxk"]
DType = Literal["float32", "bfloat16", "float16", "float64"]
Features = Literal["auto", "raw", "normalized", "embedding", "categories"]
Decay = Literal["l2", "decoupled"]
DecayLayers = Literal["all", "first"]
Method = Literal["uniform", "labor"]
TaskName = Literal["node", "link", "graph"]
Readout = Literal["sum", "mean", "max", "min", "attention"]
EdgeFeatures = Literal["auto", "none", "raw", "categories"]
GraphMetric = Literal["auto", "accuracy", "roc_auc", "average_precision", "micro_f1", "rmse", "mae"]
Decoder = Literal["dot", "mlp"]
FeaturesOn = Literal["device", "host"]
Shard = Literal["auto", "rows", "features", "both"]
Sampling = Literal["bucket", "fastrand", "stride", "random", "dropedge"]

# Options that say how a run is watched and kept, not what it computes: free to change on resume.
_PRESENTATION = (
    *("resume", "run_directory", "checkpoint_interval", "checkpoint_steps", "steps_per_call"),
    *("plain", "profile", "devices", "shard", "k_epochs", "k_tolerance"),
    *("distributed", "coordinator", "processes", "process", "stall_timeout"),
)

# Options of links alone.
_LINK = ("decoder", "negatives", "val_share", "test_share", "disjoint_train", "directed")

# Options of many graphs alone.
_GRAPH = ("readout", "edge_features", "metric")

# Options that runs of older versions lack: those have the defaults.
_LATER = (
    "sample_size",
    "sample_rate",
    "strategy",
    "fixed_sample",
    "num_neighbors",
    "batch_size",
    "replace",
    "method",
    "deduplicate",
    "task",
    *_LINK,
    *_GRAPH,
    "features_on",
    "evaluation_batch_size",
    "kernel_size",
    "dim",
    "train_eps",
    "recompute",
    "head_k",
)

# Options that need `num_neighbors`.
_OF_MINI_BATCHES = (
    "batch_size",
    "replace",
    "method",
    "deduplicate",
    "steps_per_call",
    "checkpoint_steps",
    "features_on",
    "evaluation_batch_size",
)

# Options that may be raised on resume: the epochs before are the same.
_EXTENDABLE = ("epochs", "patience")


def _directory(hint: str) -> Any:
    return tyro.conf.arg(metavar="DIRECTORY", help_behavior_hint=hint)


def _optional(metavar: str) -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(default: the job's)")


class ConfigError(ValueError):
    """An option that cannot be: one line that names it, what was expected and what came."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Train a graph neural network to classify the nodes of a graph, to predict its edges, or to
    predict labels of whole graphs.

    Writes a checkpoint, the metrics of each epoch, a plot and a summary into a run directory.
    """

    dataset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")] = "digits"
    """The data: a name (see `jaxgnn info --help`), or the path of Planetoid's raw files or of an
    .npz file. Also as --dataset."""

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
    moved in every epoch."""

    anneal_epochs: int = 100
    """Epochs in which they fall to --k, one step at a time."""

    packed: bool = False
    """Round what maxk keeps in float32 to 15 bits of mantissa (13 with --hidden above 256), so
    that a feature and its place take 4 bytes."""

    input_layer: bool = False
    """Begin with a linear layer to the hidden width and the activation, so that every aggregation
    is one of hidden features."""

    heads: int = 1
    """Attention heads, in the models that have them: concatenated to --hidden, which they must
    divide."""

    out_heads: int = 0
    """Heads of the last layer, which are averaged; 0: the number of --heads."""

    head_k: int = 0
    """Features of each head that gat's hidden layers average, the largest of a node's; 0: all."""

    kernel_size: int = 3
    """Gaussians of monet."""

    dim: int = 2
    """Coordinates of its edges, learned functions of the degrees at both ends."""

    train_eps: bool = False
    """Learn the weight of a node's own row, 1 + epsilon, in gin."""

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

    num_neighbors: Annotated[str, tyro.conf.arg(metavar="INT,INT,...")] = ""
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
    categories: columns of whole numbers, each with learned rows. none: leave them out."""

    metric: GraphMetric = "auto"
    """The score that selects the epoch, of many graphs: accuracy, roc_auc, average_precision,
    micro_f1, or of targets that are numbers rmse, or mae, whose loss is the absolute error. auto:
    that of the data's publication."""

    decoder: Decoder = "dot"
    """What scores a link by the outputs of its ends: their dot product, or mlp, a perceptron of
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
    for the rest. embedding: a learned row a node, of width --hidden, in place of the features.
    categories, with --task graph: columns of whole numbers, each with learned rows of width
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
    """Split the graph over the devices of several processes, such as one a host, of which each runs
    this command. SLURM and Open MPI tell them who they are; else --coordinator, --processes and
    --process. Process 0 alone logs; the run directory is one that all of them see."""

    coordinator: Annotated[str | None, _optional("HOST:PORT")] = None
    """Where process 0 listens, with --distributed."""

    processes: Annotated[int | None, _optional("INT")] = None
    """The number of processes."""

    process: Annotated[int | None, _optional("INT")] = None
    """The number of this one, from 0."""

    stall_timeout: int = 600
    """Seconds without an epoch's end after which the processes of --distributed end, and name the
    one that is stuck; 0: never."""

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
        for name, (low, high, expected) in _RANGES.items():
            value = getattr(self, name)
            if "integer" in expected and not isinstance(value, int):
                raise ConfigError(f"{option(name)}: expected {expected}, got {value!r}")
            # In this order: an integer beyond every float is out of every range of integers.
            if not (low <= value <= high and (isinstance(value, int) or math.isfinite(value))):
                got = reprlib.repr(value)
                raise ConfigError(f"{option(name)}: expected {expected}, got {got}")
        for name, kind in _CHOICES.items():
            value = getattr(self, name)
            if value not in kind:
                raise ConfigError(
                    f"{option(name)}: expected one of {', '.join(kind)}, got {value!r}"
                )
        if self.activation == "maxk" and self.k > self.hidden:
            raise ConfigError(f"--k: expected at most --hidden, {self.hidden}, got {self.k}")
        if self.anneal_from and not self.k <= self.anneal_from <= self.hidden:
            raise ConfigError(
                f"--anneal-from: expected 0 or a number from --k, {self.k}, to --hidden, "
                f"{self.hidden}, got {self.anneal_from}"
            )
        if self.anneal_from and not self.k:
            raise ConfigError("--anneal-from: expected a number --k with it, got auto")
        for name in ("k_epochs", "k_tolerance"):
            if self.k and getattr(self, name) != getattr(TrainConfig, name):
                raise ConfigError(f"{option(name)}: expected --k auto with it, got {self.k}")
        for name in ("k", "anneal_from", "packed"):
            if self.activation != "maxk" and getattr(self, name) != getattr(TrainConfig, name):
                raise ConfigError(
                    f"{option(name)}: expected --activation maxk with it, got --activation "
                    f"{self.activation}"
                )
        if not self.anneal_from and self.anneal_epochs != TrainConfig.anneal_epochs:
            raise ConfigError("--anneal-epochs: expected --anneal-from with it, got none")
        if self.packed and (self.hidden > 1024 or self.dtype == "float64"):
            raise ConfigError(
                f"--packed: expected --hidden of at most 1024 and 32 or 16 bits, got {self.hidden} "
                f"and {self.dtype}"
            )
        self._check_sample()
        self._check_batches()
        self._check_links()
        self._check_devices()
        self._check_graphs()
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
        parts = self.num_neighbors.split(",") if self.num_neighbors else []
        values = [int(p) if p.strip().isdecimal() and len(p) < 10 else 0 for p in parts]
        if not all(1 <= value <= LARGEST_SAMPLE for value in values):
            raise ConfigError(
                f"--num-neighbors: expected integers from 1 to {LARGEST_SAMPLE} with commas "
                f"between, got {printable(reprlib.repr(self.num_neighbors))}"
            )
        return tuple(values)

    def _check_batches(self) -> None:
        neighbors = self.neighbors
        if not neighbors:
            for name in _OF_MINI_BATCHES:
                used = self.task == "graph" and name in ("batch_size", "checkpoint_steps")
                if not used and getattr(self, name) != getattr(TrainConfig, name):
                    raise ConfigError(f"{option(name)}: expected --num-neighbors with it, got none")
            return
        if len(neighbors) != self.layers:
            raise ConfigError(
                f"--num-neighbors: expected one for each of {self.layers} layers, got "
                f"{len(neighbors)}"
            )
        if self.replace and self.method != "uniform":
            raise ConfigError(f"--method: expected uniform with --replace, got {self.method}")
        if self.features == "embedding":
            raise ConfigError("--features: expected the data's with --num-neighbors, got embedding")
        if self.samples:
            raise ConfigError(
                "--num-neighbors: expected no --sample-size and no --sample-rate with it, got "
                f"{self.sample_size} and {self.sample_rate}"
            )

    def _check_links(self) -> None:
        if self.task != "link":
            for name in _LINK:
                if getattr(self, name) != getattr(TrainConfig, name):
                    raise ConfigError(
                        f"{option(name)}: expected --task link with it, got --task {self.task}"
                    )
            return
        if self.val_share + self.test_share >= 1:
            raise ConfigError(
                "--val-share, --test-share: expected shares that sum to less than 1, got "
                f"{self.val_share} and {self.test_share}"
            )
        if self.num_neighbors:
            raise ConfigError(
                f"--num-neighbors: expected --task node with it, got {self.num_neighbors!r}"
            )
        if self.decay_layers != "all":
            raise ConfigError(
                f"--decay-layers: expected all with --task link, got {self.decay_layers}"
            )

    def _check_devices(self) -> None:
        count = self.devices
        if count != "all" and not (count.isdecimal() and len(count) < 10 and int(count) > 0):
            got = printable(reprlib.repr(count))
            raise ConfigError(f"--devices: expected a positive integer or all, got {got}")
        self._check_processes()
        if not self.over_devices:
            if self.shard != "auto":
                raise ConfigError(f"--shard: expected --devices with it, got {self.shard}")
            return
        name = "--distributed: expected none" if self.distributed else "--devices: expected 1"
        got = "" if self.distributed else f", got {printable(count)}"
        if self.task != "node":
            raise ConfigError(f"{name} with --task {self.task}{got}")
        if not self.num_neighbors:
            return
        if self.distributed:
            raise ConfigError(f"{name} with --num-neighbors: mini-batches are one process's")
        if self.shard != "auto":
            raise ConfigError(
                f"--shard: expected none with --num-neighbors, whose seeds are split, got "
                f"{self.shard}"
            )

    @property
    def over_devices(self) -> bool:
        """Whether the graph may be split."""
        return self.devices != "1" or self.distributed

    def _check_processes(self) -> None:
        given = {name: getattr(self, name) for name in ("coordinator", "processes", "process")}
        for name, value in given.items():
            if value is not None and not self.distributed:
                raise ConfigError(f"{option(name)}: expected --distributed with it, got none")
        if not self.distributed:
            if self.stall_timeout != TrainConfig.stall_timeout:
                raise ConfigError("--stall-timeout: expected --distributed with it, got none")
            return
        if self.devices not in ("1", "all"):
            raise ConfigError(
                f"--devices: expected all with --distributed, got {printable(self.devices)}"
            )
        if self.activation == "maxk" and not self.k:  # each process would choose by its own times
            raise ConfigError("--k: expected a number with --distributed, got auto")
        missing = [option(name) for name, value in given.items() if value is None]
        if self.coordinator is None or self.processes is None or self.process is None:
            if len(missing) < len(given):
                raise ConfigError(f"{missing[0]}: expected one with the others of them, got none")
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port[:9]) < 1 << 16:
            got = printable(reprlib.repr(self.coordinator))
            raise ConfigError(f"--coordinator: expected HOST:PORT, got {got}")
        if self.processes < 1:
            raise ConfigError(f"--processes: expected a positive integer, got {self.processes}")
        if not 0 <= self.process < self.processes:
            raise ConfigError(f"--process: expected 0 to {self.processes - 1}, got {self.process}")

    def _check_graphs(self) -> None:
        if self.task != "graph":
            if self.features == "categories":
                raise ConfigError(
                    f"--features: expected --task graph with categories, got --task {self.task}"
                )
            for name in _GRAPH:
                if getattr(self, name) != getattr(TrainConfig, name):
                    raise ConfigError(
                        f"{option(name)}: expected --task graph with it, got --task {self.task}"
                    )
            for name, value in (("norm", "graph"), ("model", "pna")):
                if getattr(self, name) == value:
                    raise ConfigError(
                        f"{option(name)}: expected --task graph with {value}, got --task "
                        f"{self.task}"
                    )
            return
        if self.num_neighbors:
            raise ConfigError(
                f"--num-neighbors: expected --task node with it, got {self.num_neighbors!r}"
            )
        if self.features == "embedding":
            raise ConfigError("--features: expected the data's with --task graph, got embedding")
        if self.decay_layers != "all":
            raise ConfigError(
                f"--decay-layers: expected all with --task graph, got {self.decay_layers}"
            )

    def _check_sample(self) -> None:
        if not self.samples:
            for name in ("strategy", "fixed_sample"):
                if getattr(self, name) != getattr(TrainConfig, name):
                    raise ConfigError(
                        f"{option(name)}: expected --sample-size or --sample-rate with it, got none"
                    )
        elif self.strategy == "dropedge" and (self.sample_size or not self.sample_rate):
            raise ConfigError(
                "--strategy: dropedge expected --sample-rate, the share of edges kept, without "
                f"--sample-size, got {self.sample_rate} and {self.sample_size}"
            )
        elif self.strategy == "random" and not self.sample_size:
            raise ConfigError("--strategy: random expected --sample-size with it, got none")
        if self.fixed_sample and self.strategy in ("random", "dropedge"):
            raise ConfigError(
                f"--fixed-sample: expected --strategy bucket, fastrand or stride with it, got "
                f"--strategy {self.strategy}"
            )

    def settings(self) -> dict[str, Any]:
        """The options that decide the result, for `config.json`; paths absolute."""
        values = dataclasses.asdict(self)
        for name in _PRESENTATION:
            del values[name]
        values["dataset"] = _absolute(self.dataset)
        return values


def option(name: str) -> str:
    """The command line's spelling of a field."""
    return "--" + name.replace("_", "-")


def check_same_settings(saved: dict[str, Any], given: TrainConfig) -> None:
    """Refuses to resume a run with settings other than its own; a run may be made longer.

    Raises:
        ConfigError: naming the options that differ.
    """
    saved = _with_later(saved)
    settings = given.settings()
    differing = [
        f"{option(name)} {printable(settings[name])} (the run's: {printable(saved[name])})"
        for name in settings
        if name in saved and settings[name] != saved[name] and name not in _EXTENDABLE
    ]
    if differing:
        raise ConfigError(
            f"--resume: a run continues with its own settings, got {', '.join(differing)}"
        )
    # A shorter patience might have ended the run before.
    patience = saved.get("patience", given.patience)
    if given.patience and (not patience or given.patience < patience):
        expected = f"0 or at least the run's, {patience}" if patience else "the run's, 0"
        raise ConfigError(f"--patience: expected {expected}, got {given.patience}")


def from_settings(saved: dict[str, Any]) -> TrainConfig:
    """The configuration of a saved `settings()`.

    Raises:
        ConfigError: missing, unknown or ill-typed settings.
    """
    fields = {
        field.name: field
        for field in dataclasses.fields(TrainConfig)
        if field.name not in _PRESENTATION
    }
    saved = _with_later(saved)
    for what, names in (("unknown", set(saved) - set(fields)), ("no", set(fields) - set(saved))):
        if names:
            listed = printable(reprlib.repr(sorted(names)))
            raise ConfigError(f"config.json: {what} settings {listed}")
    for name, value in saved.items():
        kind = type(fields[name].default)
        accepted = (int, float) if kind is float else (kind,)
        if type(value) not in accepted or (isinstance(value, str) and "\0" in value):
            got = printable(reprlib.repr(value))
            raise ConfigError(f"config.json: {name}: expected {kind.__name__}, got {got}")
    return TrainConfig(**saved).check()


def _with_later(saved: dict[str, Any]) -> dict[str, Any]:
    """Saved settings with those that came later, which an older run did without."""
    return {name: getattr(TrainConfig, name) for name in _LATER} | saved


def _absolute(dataset: str) -> str:
    """A path made absolute, so that a run can be resumed from elsewhere; a name as it is."""
    return os.path.abspath(dataset) if os.path.exists(dataset) else dataset


_DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"norm": "layer", "weight_decay": 5e-3},
}
_BELOW_1 = math.nextafter(1, 0)
_FLOAT32_MAX = math.ldexp(2 - 2**-23, 127)
_RANGES: dict[str, tuple[float, float, str]] = {
    "layers": (1, 1000, "an integer from 1 to 1000"),
    "hidden": (1, 1 << 20, "a positive integer"),
    "k": (0, 4096, "an integer from 1 to 4096 or auto"),
    "k_epochs": (1, 1 << 31, "a positive integer"),
    "k_tolerance": (0, 1, "a number from 0 to 1"),
    "anneal_from": (0, 4096, "an integer from 0 to 4096"),
    "anneal_epochs": (1, 1 << 30, "a positive integer"),
    "heads": (1, 1024, "an integer from 1 to 1024"),
    "out_heads": (0, 1024, "an integer from 0 to 1024"),
    "head_k": (0, 4096, "an integer from 0 to 4096"),
    "kernel_size": (1, 1024, "an integer from 1 to 1024"),
    "dim": (1, 16, "an integer from 1 to 16"),
    "dropout": (0, _BELOW_1, "a number from 0 to less than 1"),
    "input_dropout": (0, _BELOW_1, "a number from 0 to less than 1"),
    "sample_size": (0, 4096, "an integer from 0 to 4096"),
    "sample_rate": (0, 1, "a number from 0 to 1"),
    "val_share": (0, _BELOW_1, "a number from 0 to less than 1"),
    "test_share": (0, _BELOW_1, "a number from 0 to less than 1"),
    "disjoint_train": (0, _BELOW_1, "a number from 0 to less than 1"),
    "batch_size": (1, 1 << 30, "a positive integer"),
    "steps_per_call": (0, 1 << 30, "an integer from 0"),
    "evaluation_batch_size": (1, 1 << 30, "a positive integer"),
    "learning_rate": (math.ulp(0), _FLOAT32_MAX, "a finite number above 0"),
    "weight_decay": (0, _FLOAT32_MAX, "a finite number from 0"),
    "epochs": (1, 1 << 31, "a positive integer"),
    "patience": (0, 1 << 31, "an integer from 0"),
    "split": (0, 1 << 31, "an integer from 0"),
    "seed": (0, 2**32 - 1, "an integer from 0 to 2**32 - 1"),
    "stall_timeout": (0, 1 << 30, "an integer from 0"),
    "checkpoint_interval": (1, 1 << 31, "a positive integer"),
    "checkpoint_steps": (0, 1 << 30, "an integer from 0"),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "activation": get_args(Activation),
    "dtype": get_args(DType),
    "features": get_args(Features),
    "features_on": get_args(FeaturesOn),
    "decay": get_args(Decay),
    "decay_layers": get_args(DecayLayers),
    "strategy": get_args(Sampling),
    "shard": get_args(Shard),
    "task": get_args(TaskName),
    "readout": get_args(Readout),
    "edge_features": get_args(EdgeFeatures),
    "metric": get_args(GraphMetric),
    "decoder": get_args(Decoder),
    "negatives": get_args(NegativeMethod),
    "norm": ("none", "batch", "layer", "graph"),
    "jumping": ("none", "last", "cat", "max"),
}
