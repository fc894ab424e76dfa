"""`--task graph`: classes, labels or numbers of many graphs."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Generator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxgnn._core.checksum import checksum
from jaxgnn.data import GraphSet, Metric
from jaxgnn.train.loaders.compiler_options import of_steps
from jaxgnn.train.loaders.device_graphs import DeviceGraphs
from jaxgnn.train.loaders.graph_loader import GraphLoader
from jaxgnn.train.loaders.graph_minibatch import GraphMinibatch
from jaxgnn.train.loaders.graph_programs import run_steps, runs
from jaxgnn.train.loop.epochs import Compiled, UnfinishedEpoch, kernel_calls
from jaxgnn.train.problems.graph_data import GraphSetDescription, graph_split
from jaxgnn.train.problems.graph_model import GraphProgram, build_graphs
from jaxgnn.train.problems.graph_step import batches_of, first_batch
from jaxgnn.train.problems.node_problem import confusion_counts
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.steps.optimizer import steps_done
from jaxgnn.train.steps.step import LossSums, TrainState, mean_of, zero_sums
from jaxgnn.train.steps.task import score

_IN_FLIGHT = 8  # steps that the device may be behind: each holds its batch
_STEPS_OF_CALL = 8  # of graphs on the device; an interrupt waits for them


@dataclasses.dataclass(frozen=True)
class GraphTask:
    """What training and the evaluation of some graphs read, on the host.

    Attributes:
        training: the graphs to learn from.
        scored: the graphs to evaluate; `None` if there are none.
        labels: of these.
        train, val: masks of these: none and all.
        num_outputs: of the model.
        metric: the score.
        features: nothing; those of the nodes come with a batch.
    """

    training: GraphLoader
    scored: GraphLoader | None
    labels: np.ndarray
    train: Bool[np.ndarray, " scored"]
    val: Bool[np.ndarray, " scored"]
    num_outputs: int
    metric: Metric
    features: None = None


class CompiledGraphs(Compiled):
    """The step and the evaluation of batches of graphs; a program for each shape of a batch.

    Attributes:
        seconds: time to trace and compile so far.
        kernels: how often a step and the evaluation of a batch call each of our kernels.
        programs: how many were compiled.
    """

    def __init__(self, program: GraphProgram, state: TrainState, task: GraphTask, dtype: Any):
        self._program, self._dtype = program, dtype
        self._programs: dict[tuple[str, int, int], Callable[..., Any]] = {}
        self.seconds, self.kernels = 0.0, {}
        loader, sums = task.training, zero_sums(dtype)
        place = loader.state
        first = first_batch(loader)
        # A step takes the leaves alone: to take Flax's variables apart costs a millisecond.
        leaves, self._structure = jax.tree.flatten(state)
        if loader.device_graphs is None:
            self._compiled("step", (leaves, sums, first), _sizes(first))
        else:
            chosen, sizes = loader.batches_of_epoch()
            arguments = leaves, sums, loader.device_graphs, chosen, *_numbers(0, 0)
            self._compiled("steps", arguments, sizes[place["position"]])
        self._compiled("evaluate", (state.params, state.rest, sums, first), _sizes(first))

    @property
    def programs(self) -> int:
        """How many were compiled."""
        return len(self._programs)

    def no_loss(self, task: Any) -> LossSums:
        """The sums before an epoch's first batch."""
        return zero_sums(self._dtype)

    def _compiled(
        self, kind: Literal["step", "steps", "evaluate"], arguments: Any, sizes: tuple[int, int]
    ) -> Callable[..., Any]:
        key = (kind, *sizes)
        if key not in self._programs:
            start = time.perf_counter()
            if kind == "step":
                function = jax.jit(self._step_of_leaves, donate_argnums=0)
            elif kind == "steps":
                function = jax.jit(
                    functools.partial(self._steps_of_leaves, sizes), donate_argnums=0
                )
            else:
                function = jax.jit(self._program.outputs_and_loss)
            lowered = function.lower(*arguments)
            if not any(known == kind for known, *_ in self._programs):
                for name, calls in kernel_calls(lowered.as_text()).items():
                    self.kernels[name] = self.kernels.get(name, 0) + calls
            options = of_steps(counted=False) if kind == "steps" else None
            self._programs[key] = lowered.compile(options)
            self.seconds += time.perf_counter() - start
        return self._programs[key]

    def _step_of_leaves(
        self, leaves: list[Any], sums: LossSums, minibatch: GraphMinibatch
    ) -> tuple[list[Any], LossSums]:
        state, sums = self._program.step_on_graphs(self._state(leaves), sums, minibatch)
        return jax.tree.leaves(state), sums

    def _steps_of_leaves(
        self,
        sizes: tuple[int, int],
        leaves: list[Any],
        sums: LossSums,
        graphs: DeviceGraphs,
        chosen: Array,
        first: Array,
        end: Array,
    ) -> tuple[list[Any], LossSums]:
        """Some steps on batches of one shape, of the graphs that a row of `chosen` has for each."""

        def step(state: Any, minibatch: GraphMinibatch) -> tuple[Any, None]:
            leaves, sums = state
            return self._step_of_leaves(leaves, sums, minibatch), None

        state = leaves, sums
        return run_steps(step, sizes, graphs, chosen, state, None, first, end)[0]

    def step(
        self,
        state: TrainState,
        task: Any,
        interrupted: Callable[[], bool] = lambda: False,
        sums: LossSums | None = None,
        *,
        checkpoint: Callable[[TrainState, LossSums], None] = lambda *_: None,
        checkpoint_steps: int = 0,
    ) -> tuple[TrainState, Any]:
        """One epoch, a step on each batch, or the rest of one: which batch is next follows from the
        steps that the state has counted. Arguments are those of `Compiled.step`.

        Raises:
            UnfinishedEpoch: `interrupted` says so, between two batches.
        """
        loader: GraphLoader = task.training
        epoch, position = divmod(int(steps_done(state.optimizer)), len(loader))
        loader.state = {"epoch": epoch, "position": position}
        total = zero_sums(self._dtype) if sums is None else sums
        behind = collections.deque([total])
        leaves = jax.tree.leaves(state)
        calls = self._calls(loader, checkpoint_steps)
        with contextlib.closing(calls):
            for number, kind, sizes, arguments in calls:
                if number and interrupted():
                    jax.block_until_ready(total)
                    raise UnfinishedEpoch(self._state(leaves), total)
                if number and checkpoint_steps and number % checkpoint_steps == 0:
                    checkpoint(self._state(leaves), total)
                step = self._compiled(kind, (leaves, total, *arguments), sizes)
                leaves, total = step(leaves, total, *arguments)
                behind.append(total)
                if len(behind) > (_IN_FLIGHT if kind == "step" else 1):
                    jax.block_until_ready(behind.popleft())
        return self._state(leaves), mean_of(total)

    def _calls(
        self, loader: GraphLoader, checkpoint_steps: int
    ) -> Generator[tuple[int, Literal["step", "steps"], tuple[int, int], tuple[Any, ...]]]:
        """The rest of an epoch: of each call the number of its first step, and what it takes beside
        the state. None goes across a checkpoint."""
        if loader.device_graphs is None:
            with batches_of(loader) as batches:
                for number, minibatch in enumerate(batches):
                    yield number, "step", _sizes(minibatch), (minibatch,)
            return
        chosen, sizes = loader.batches_of_epoch()
        start = loader.state["position"]
        for run in runs(sizes[start:], _STEPS_OF_CALL, checkpoint_steps or len(sizes)):
            places = _numbers(start + run.first, start + run.end)
            yield run.first, "steps", run.sizes, (loader.device_graphs, chosen, *places)

    def _state(self, leaves: list[Any]) -> TrainState:
        return jax.tree.unflatten(self._structure, leaves)

    def evaluate(  # type: ignore[override]
        self, params: Any, rest: Any, task: GraphTask
    ) -> tuple[Float[np.ndarray, "scored outputs"], dict[str, Any]]:
        """The outputs of the graphs to evaluate, and their loss and accuracy."""
        total, found = zero_sums(self._dtype), []
        loader = task.scored
        if loader is None:
            return np.zeros((0, task.num_outputs), np.float32), {}
        loader.state = {"epoch": 0, "position": 0}
        for minibatch in loader:
            arguments = params, rest, total, minibatch
            function = self._compiled("evaluate", arguments, _sizes(minibatch))
            outputs, total = function(params, rest, total, minibatch)
            found.append((outputs, int(minibatch.batch.graph_mask.sum())))
        outputs = np.concatenate([np.asarray(rows)[:count] for rows, count in found])
        scores: dict[str, Any] = {"val_loss": mean_of(total)}
        if task.metric == "accuracy":
            value = score("accuracy", task.labels, outputs, task.val)
            if np.isfinite(value):
                scores["val_accuracy"] = value
        return outputs, scores


def _sizes(minibatch: GraphMinibatch) -> tuple[int, int]:
    graph = minibatch.batch.graph
    return graph.num_receivers, graph.num_edges


def _numbers(*values: int) -> tuple[np.int32, ...]:
    return tuple(np.int32(value) for value in values)


class GraphProblem:
    """Many graphs, split: what a run of `--task graph` trains on and is scored by.

    Attributes:
        name: of the data.
        task: what training sees, with the validation graphs to evaluate.
    """

    def __init__(self, config: TrainConfig, graphs: GraphSet):
        """Sorts the graphs once, and splits them by `--split`.

        Raises:
            ConfigError: no such split, or a metric that the targets do not have.
            DataError: a set without labels.
        """
        self._config, self._graphs, self.name = config, graphs, graphs.name
        self.description = GraphSetDescription.of(config, graphs)
        self._split = graph_split(graphs, config.split)
        store: Any = self.description.store(graphs)
        loader = GraphLoader(
            store,
            config.batch_size,
            seed=config.seed,
            indices=np.flatnonzero(self._split.train),
        )
        empty = np.zeros(0, bool)
        start = GraphTask(
            training=loader,
            scored=None,
            labels=empty,
            train=empty,
            val=empty,
            num_outputs=self.description.num_outputs,
            metric=self.description.metric,
        )
        self.task = self._scoring(start, self._split.val)

    def _scoring(self, task: GraphTask, mask: np.ndarray) -> GraphTask:
        """The same with other graphs to evaluate."""
        indices = np.flatnonzero(mask)
        assert self._graphs.labels is not None
        return dataclasses.replace(
            task,
            scored=task.training.part(indices) if indices.size else None,
            labels=self._graphs.labels[indices],
            train=np.zeros(indices.size, bool),
            val=np.ones(indices.size, bool),
        )

    def fingerprint(self) -> str:
        """Of all that a run reads."""
        return checksum(*graph_arrays(self._graphs, self._split))

    def record(self) -> dict[str, Any]:
        """What `config.json` says of the data, for a model without them."""
        return {"dataset": self.description.to_json()}

    def describe(self) -> str:
        """What is trained on, in a line."""
        graphs, data = self._graphs, self.description
        train, val, test = self._split.sizes
        kinds = {"class": "classes", "labels": "labels", "values": "targets"}
        edges = f" and {data.num_edge_features:,} an edge" if data.num_edge_features else ""
        inputs = data.inputs if data.node_categories is None else "categories"
        return (
            f"{self.name}: {len(graphs):,} graphs, {graphs.num_nodes:,} nodes, "
            f"{graphs.num_edges:,} edges, {data.num_features:,} {inputs} a node{edges}, "
            f"{data.num_outputs:,} {kinds[data.targets]}; {train:,} training, {val:,} validation, "
            f"{test:,} test graphs"
        )

    def build(self) -> tuple[GraphProgram, TrainState]:
        """The program, and the state it starts from."""
        assert self._graphs.labels is not None
        targets = self._graphs.labels[self._split.train]
        return build_graphs(self._config, self.description, len(self.task.training), targets)

    def compile(self, program: Any, state: TrainState) -> CompiledGraphs:
        """The programs of the first batch's shape; others are compiled when they come."""
        return CompiledGraphs(program, state, self.task, jnp.dtype(self._config.dtype))

    def results(
        self, program: Any, evaluate: Callable[..., Any], params: Any, rest: Any
    ) -> dict[str, Any]:
        """The scores of validation and test, and the confusion of the test graphs."""
        del program
        scores, outputs = {}, {}
        for name in ("val", "test"):
            task = self._scoring(self.task, getattr(self._split, name))
            outputs[name] = evaluate(params, rest, task)[0]
            scores[name] = scores_of(self.description, task.labels, outputs[name])
        metric, labels = self.description.metric, self._graphs.labels
        confusion = None
        if self.description.targets == "class" and outputs["test"].size:
            assert labels is not None
            found = outputs["test"].argmax(axis=-1)
            classes = self.description.num_outputs
            confusion = confusion_counts(labels[self._split.test], found, classes)
        return {
            "test_score": scores["test"].get(metric),
            "val_score": scores["val"].get(metric),
            "test_scores": scores["test"],
            "confusion": confusion,
        }


def scores_of(
    data: GraphSetDescription, labels: np.ndarray, outputs: np.ndarray
) -> dict[str, float]:
    """The scores of some graphs by name, that of the set first; without those not defined."""
    others = {"class": ("accuracy",), "labels": ("roc_auc", "average_precision")}
    names: Any = dict.fromkeys((data.metric, *others.get(data.targets, ("rmse", "mae"))))
    if not len(labels):
        return {}
    everything = np.ones(len(labels), bool)
    found = {name: score(name, labels, outputs, everything) for name in names}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def graph_arrays(graphs: GraphSet, split: Any) -> list[Any]:
    """All that a run of graphs reads."""
    found = [graphs.node_offsets, graphs.edge_offsets, graphs.senders, graphs.receivers]
    optional = (graphs.features, graphs.positions, graphs.edge_features, graphs.labels)
    found += [array for array in optional if array is not None]
    return [*found, split.train, split.val, split.test]
