"""`--task link`: a model learns which pairs of nodes an edge joins."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxgnn import metrics
from jaxgnn._core.checksum import checksum
from jaxgnn.data import Metric
from jaxgnn.graph import Graph, transform
from jaxgnn.nn import DotDecoder, MLPDecoder
from jaxgnn.ops import NegativeEdges, negative_edges
from jaxgnn.train.loop.epochs import Compiled
from jaxgnn.train.reports.description import LinkDescription, digest_of_names
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps.build_program import program_of
from jaxgnn.train.steps.embedded_model import EmbeddedModel, WithEncoder
from jaxgnn.train.steps.model import build_model, param_dtype
from jaxgnn.train.steps.optimizer import steps_done
from jaxgnn.train.steps.step import Program, TrainState
from jaxgnn.train.steps.task import masked_accuracy, masked_loss
from jaxgnn.train.steps.tiling import tiled

_STREAM = 0xC2B2AE35
"""Keeps the keys of the negatives from those of dropout and samples."""


class LinkData(NamedTuple):
    """A graph whose edges are to be predicted.

    Attributes:
        name: short name.
        graph: a square graph.
        features: of the nodes, or `None`: they are learned then (`NodeEmbedding`).
        node_names: the user's ids of the nodes, where they are not 0 to n - 1.
        normalized: whether the rows of `features` were scaled to sum 1.
        feature_names: the user's names of the features.
    """

    name: str
    graph: Graph
    features: Float[np.ndarray, "num_nodes num_features"] | None
    node_names: tuple[str, ...] | None = None
    normalized: bool = False
    feature_names: tuple[str, ...] | None = None

    def arrays(self) -> list[Any]:
        """What a run records a checksum of; the split follows from the settings."""
        found = [self.graph.row_offsets, self.graph.senders]
        return found if self.features is None else [*found, self.features]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "graph",
        "known",
        "features",
        "senders",
        "receivers",
        "scored_graph",
        "scored_senders",
        "scored_receivers",
        "labels",
        "train",
        "val",
    ],
    meta_fields=["negatives", "metric"],
)
@dataclasses.dataclass(frozen=True)
class LinkTask:
    """What a training step and the evaluation of some links see.

    Attributes:
        graph: the edges that messages pass over in training.
        known: all training edges, which no negative is.
        features: of the nodes, or `None`.
        senders, receivers: the training links.
        scored_graph, scored_senders, scored_receivers, labels: the same of the links to evaluate,
            with their labels, `[links, 1]`.
        train, val: masks of these: none and all.
        negatives: how training draws them.
        metric: `"roc_auc"`.
    """

    graph: Graph
    known: Graph
    features: Float[Array, "nodes features"] | None
    senders: Int[Array, " links"]
    receivers: Int[Array, " links"]
    scored_graph: Graph
    scored_senders: Int[Array, " scored"]
    scored_receivers: Int[Array, " scored"]
    labels: Float[Array, "scored 1"]
    train: Bool[Array, " scored"]
    val: Bool[Array, " scored"]
    negatives: Any
    metric: Metric = "roc_auc"

    def scoring(self, part: transform.LinkPart, graph: Graph) -> LinkTask:
        """The same with other links to evaluate; `graph` is the part's, prepared."""
        count = part.labels.size
        return dataclasses.replace(
            self,
            scored_graph=graph,
            scored_senders=jnp.asarray(part.senders),
            scored_receivers=jnp.asarray(part.receivers),
            labels=jnp.asarray(part.labels)[:, None],
            train=jnp.zeros(count, bool),
            val=jnp.ones(count, bool),
        )


def model_features(
    config: TrainConfig, data: LinkData
) -> Float[np.ndarray, "num_nodes num_features"] | None:
    """The features that the encoder reads; `None` where it has an embedding."""
    return None if config.features == "embedding" else data.features


def describe(config: TrainConfig, data: LinkData) -> LinkDescription:
    """What a run records of its data."""
    features = model_features(config, data)
    return LinkDescription(
        name=data.name,
        num_nodes=data.graph.num_nodes,
        num_edges=data.graph.num_edges,
        num_features=None if features is None else features.shape[1],
        normalized=data.normalized and features is not None,
        feature_names=None if features is None else data.feature_names,
        node_names=digest_of_names(data.node_names),
    )


class LinkModel(WithEncoder):
    """An encoder of the nodes, over their features or an embedding, and a decoder of pairs."""

    def __init__(
        self, config: TrainConfig, num_nodes: int, num_features: int | None, rngs: nnx.Rngs
    ):
        width = config.hidden
        if num_features is None:
            self.encoder = EmbeddedModel(config, num_nodes, width, rngs)
        else:
            self.encoder = build_model(config, num_features, width, rngs)
        self.decoder: DotDecoder | MLPDecoder = DotDecoder()
        if config.decoder == "mlp":
            types = {"dtype": jnp.dtype(config.dtype), "param_dtype": param_dtype(config)}
            self.decoder = MLPDecoder(width, width, dropout=config.dropout, **types, rngs=rngs)

    def encode(
        self, graph: Graph, features: Float[Array, "nodes features"] | None
    ) -> Float[Array, "nodes hidden"]:
        """The nodes' outputs."""
        encoder: Any = self.encoder
        return encoder(graph, features)


class LinkProgram(Program):
    """A `Program` whose loss and scores are those of links."""

    def step(self, state: TrainState, task: LinkTask) -> tuple[TrainState, Float[Array, ""]]:  # type: ignore[override]
        """A step of gradient descent on all training links and as many new negatives."""
        assert state.seed is not None
        key = jax.random.fold_in(jax.random.key(state.seed), steps_done(state.optimizer))
        drawn = negative_edges(task.known, task.senders.shape[0], key, task.negatives)

        def loss(model: LinkModel) -> Array:
            return _link_loss(model, task, drawn)

        return self._descend(state, loss)

    def logits(self, params: Any, rest: Any, task: LinkTask) -> Float[Array, "scored 1"]:  # type: ignore[override]
        """The logits of the links to evaluate, without dropout."""
        model = nnx.merge(self.inference, params, rest)
        nodes = model.encode(task.scored_graph, task.features)
        return model.decoder(nodes, task.scored_senders, task.scored_receivers)[:, None]

    def evaluate(self, params: Any, rest: Any, task: LinkTask) -> tuple[Array, dict[str, Array]]:  # type: ignore[override]
        """These, and their loss and accuracy."""
        logits = self.logits(params, rest, task)
        return logits, {
            "val_loss": masked_loss(task, logits, task.val),
            "val_accuracy": masked_accuracy(task, logits, task.val),
        }


def _link_loss(model: LinkModel, task: LinkTask, drawn: NegativeEdges) -> Float[Array, ""]:
    """Mean cross entropy of the positives and of the negatives, half each."""
    nodes = model.encode(task.graph, task.features)
    count = task.senders.shape[0]
    logits = model.decoder(
        nodes,
        jnp.concatenate([task.senders, drawn.senders]),
        jnp.concatenate([task.receivers, drawn.receivers]),
    )
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    labels = jnp.arange(2 * count) < count
    losses = optax.sigmoid_binary_cross_entropy(logits, labels.astype(logits.dtype))
    kept = jnp.concatenate([jnp.ones(count, bool), drawn.mask])
    halves = jnp.where(kept, losses, jnp.zeros_like(losses)).reshape(2, -1).sum(axis=1)
    counts = jnp.maximum(kept.reshape(2, -1).sum(axis=1), 1).astype(logits.dtype)
    return (halves / counts).mean()


class LinkProblem:
    """The links of a graph, split: what a run of `--task link` trains on and is scored by.

    Attributes:
        name: of the data.
        task: what training sees, with the validation links to evaluate.
        description: of the data.
    """

    def __init__(
        self, config: TrainConfig, data: LinkData, prepare: Callable[[Graph, TrainConfig], Graph]
    ):
        """Splits the edges by `--split`; `prepare` readies a graph for the device's kernels.

        Raises:
            ConfigError: a graph without edges to learn from, or too dense for its shares.
        """
        self._config, self._data, self._prepare = config, data, prepare
        self.name = data.name
        try:
            self._split = transform.link_split(
                data.graph,
                config.val_share,
                config.test_share,
                seed=config.split,
                disjoint_train=config.disjoint_train,
            )
        except ValueError as error:
            raise ConfigError(f"--val-share, --test-share: {error}") from error
        train, val = self._split.train, self._split.val
        if not train.labels.size:
            raise ConfigError(f"--task: link expected edges to learn from, {data.name} has none")
        known = tiled(prepare(val.graph, config), config)
        graph = known
        if train.graph is not val.graph:
            graph = tiled(prepare(train.graph, config), config)
        features = model_features(config, data)
        empty = jnp.zeros(0, jnp.int32)
        start = LinkTask(
            graph=graph,
            known=val.graph,
            features=None if features is None else jnp.asarray(features, config.dtype),
            senders=jnp.asarray(train.senders),
            receivers=jnp.asarray(train.receivers),
            scored_graph=known,
            scored_senders=empty,
            scored_receivers=empty,
            labels=jnp.zeros((0, 1), jnp.float32),
            train=jnp.zeros(0, bool),
            val=jnp.zeros(0, bool),
            negatives=config.negatives,
        )
        self.task = start.scoring(val, known)
        self.description = describe(config, data)

    def fingerprint(self) -> str:
        """Of all that a run reads."""
        return checksum(*self._data.arrays())

    def record(self) -> dict[str, Any]:
        """What `config.json` says of the data, for a model without them."""
        return {"dataset": self.description.to_json()}

    def describe(self) -> str:
        """What is trained on, in a line."""
        graph, features = self._data.graph, self._data.features
        given = "no features" if features is None else f"{features.shape[1]:,} features"
        counts = [f"{int((part.labels > 0).sum()):,}" for part in self._split]
        return (
            f"{self.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {given}; "
            f"{counts[0]} training, {counts[1]} validation, {counts[2]} test links, and as many "
            "negatives"
        )

    def build(self) -> tuple[Program, TrainState]:
        """The program, and the state it starts from."""
        features = self.task.features
        return build_links(
            self._config, self.task.graph.num_nodes, None if features is None else features.shape[1]
        )

    def compile(self, program: Program, state: TrainState) -> Compiled:
        """The step and the evaluation."""
        return Compiled(program, state, self.task)  # type: ignore[arg-type]

    def results(
        self, program: Program, evaluate: Callable[..., Any], params: Any, rest: Any
    ) -> dict[str, Any]:
        """The scores of validation and test, for `summary.json`."""
        logits = evaluate(params, rest, self.task)[0]
        test_task = self.task.scoring(
            self._split.test, self._prepare(self._split.test.graph, self._config)
        )
        test = _scores(self._split.test, jax.jit(program.logits)(params, rest, test_task))
        return {
            "test_score": test.get("roc_auc"),
            "val_score": _scores(self._split.val, logits).get("roc_auc"),
            "test_scores": test,
        }


def _scores(part: transform.LinkPart, logits: Any) -> dict[str, float]:
    """The scores of a part's links; none of none."""
    if not part.labels.size:
        return {}
    values = np.asarray(jax.device_get(logits), np.float64)[:, 0]
    positive = part.labels > 0
    found = {
        "roc_auc": metrics.roc_auc(part.labels, values),
        "average_precision": metrics.average_precision(part.labels, values),
        "hits_at_20": metrics.hits_at_k(values[positive], values[~positive], 20),
        "hits_at_100": metrics.hits_at_k(values[positive], values[~positive], 100),
    }
    return {name: float(value) for name, value in found.items()}


def build_links(
    config: TrainConfig, num_nodes: int, num_features: int | None
) -> tuple[Program, TrainState]:
    """The program of a configuration, and the state it starts from.

    Without `num_features` the nodes get an embedding; else `num_nodes` does not matter.

    Raises:
        ConfigError: an unknown model, or an option that the model does not have.
    """
    program, state = program_of(
        config, lambda rngs: LinkModel(config, num_nodes, num_features, rngs)
    )
    seed = jnp.uint32(config.seed ^ _STREAM)
    return LinkProgram(*program), dataclasses.replace(state, seed=seed)
