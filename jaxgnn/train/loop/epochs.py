"""The training loop: epochs, selection by validation, patience."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.data import Metric
from jaxgnn.distributed._placement import to_host
from jaxgnn.train.loaders.compiler_options import of_steps
from jaxgnn.train.loaders.host_features import HostFeatures
from jaxgnn.train.steps import sharded
from jaxgnn.train.steps.optimizer import steps_done
from jaxgnn.train.steps.step import LossSums, Program, TrainState, mean_of, no_loss
from jaxgnn.train.steps.task import ERRORS, Task, score


class DivergenceError(ArithmeticError):
    """The loss is no longer a finite number."""


@dataclasses.dataclass
class Progress:
    """Where a run is: the part of its state that is not arrays.

    Attributes:
        epoch: epochs done.
        best_epoch: the selected one: of the best validation score, of equal ones the lowest
            validation loss; the last epoch if there are no validation nodes.
        best_score, best_loss: its validation score, of errors times -1, and its loss.
        stopped: whether patience ran out.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: float = -math.inf
    best_loss: float = math.inf
    stopped: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON, which has no infinities."""
        values = dataclasses.asdict(self)
        return {k: None if v in (math.inf, -math.inf) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, values: Any, epoch: int) -> Progress:
        """The inverse.

        Args:
            values: what `to_json` made of the progress.
            epoch: the epochs done by then.

        Raises:
            ValueError: it is something else.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or values.keys() != fields.keys():
            raise ValueError(f"expected the keys {', '.join(fields)}")
        for name, value in values.items():
            kind = type(fields[name].default)
            # Only the scores, which begin as infinities, may be null.
            if type(value) is not kind and not (kind is float and value is None):
                raise ValueError(f"{name}: expected {kind.__name__}, got {reprlib.repr(value)}")
        if values["epoch"] != epoch or not 0 <= values["best_epoch"] <= epoch:
            raise ValueError(
                f"expected epoch {epoch} and a best epoch up to it, got {values['epoch']} and "
                f"{values['best_epoch']}"
            )
        return cls(**{name: value for name, value in values.items() if value is not None})


@dataclasses.dataclass
class Best:
    """The selected parameters and other variables."""

    params: Any
    rest: Any


jax.tree_util.register_dataclass(Best, data_fields=["params", "rest"], meta_fields=[])


class UnfinishedEpoch(KeyboardInterrupt):
    """An interrupt between two calls of an epoch.

    Attributes:
        state: after the last call.
        sums: the losses of the epoch's batches so far.
    """

    def __init__(self, state: TrainState, sums: LossSums):
        super().__init__("interrupted within an epoch")
        self.state, self.sums = state, sums


class Compiled:
    """The step and the evaluation of a task, compiled ahead of the first epoch.

    Attributes:
        seconds: time to trace and compile.
        kernels: how often the step and the evaluation call each of our kernels.
    """

    def __init__(self, program: Program, state: TrainState, task: Task):
        start = time.perf_counter()
        step, evaluate, self.kernels = lower(program, state, task)
        self._program = program
        self._steps: dict[int, jax.stages.Compiled] = {}
        calls = [] if program.batches is None else program.batches.calls()
        self._in_calls = len(calls) > 1
        # Over several devices collectives are between the kernels.
        alone = program.batches is not None and program.batches.mesh is None
        self._options = of_steps(counted=True) if alone else None
        if self._in_calls:
            for length in set(calls):
                self._compile_steps(length, state, task)
        else:
            self._step = step.compile(self._options)
        self.evaluate = evaluate.compile()
        self.seconds = time.perf_counter() - start

    def at(self, epoch: int) -> Compiled:
        """The program after so many epochs: this one, but for annealing in stages, whose last one
        this is."""
        del epoch
        return self

    def no_loss(self, task: Task) -> LossSums:
        """The sums before an epoch's first batch."""
        return sharded.replicate(no_loss(task), getattr(task, "graph", None))

    def _compile_steps(self, length: int, state: TrainState, task: Task) -> None:
        steps = jax.jit(self._program.step_on_batches, static_argnums=0, donate_argnums=1)
        lowered = steps.lower(length, state, self.no_loss(task), task)
        self._steps[length] = lowered.compile(self._options)

    def step(
        self,
        state: TrainState,
        task: Task,
        interrupted: Callable[[], bool] = lambda: False,
        sums: LossSums | None = None,
        *,
        checkpoint: Callable[[TrainState, LossSums], None] = lambda *_: None,
        checkpoint_steps: int = 0,
    ) -> tuple[TrainState, Any]:
        """One epoch, as `Program.step`, in one call or several; or the rest of one.

        Args:
            state, task: what to train, on what.
            interrupted: asked between two calls.
            sums: those of an `UnfinishedEpoch`, whose state `state` is.
            checkpoint: called between two calls with the state and the losses of the epoch so far.
            checkpoint_steps: after how many steps; 0: never.

        Raises:
            UnfinishedEpoch: `interrupted` says so.
        """
        batches = self._program.batches
        if batches is None or (sums is None and not self._in_calls):
            return self._step(state, task)
        done = 0 if sums is None else int(steps_done(state.optimizer)) % batches.steps
        total = self.no_loss(task) if sums is None else sums
        unsaved = 0
        for number, length in enumerate(batches.calls(done)):
            if number and interrupted():
                raise UnfinishedEpoch(state, total)
            if 0 < checkpoint_steps <= unsaved:
                checkpoint(state, total)
                unsaved = 0
            unsaved += length
            if length not in self._steps:
                self._compile_steps(length, state, task)
            state, total = self._steps[length](state, total, task)
            jax.block_until_ready(total)  # nothing waits in line when Ctrl-C comes
        return state, mean_of(total)


def lower(
    program: Program, state: TrainState, task: Task
) -> tuple[jax.stages.Lowered, jax.stages.Lowered, dict[str, int]]:
    """The step and the evaluation before they are compiled, and their `kernel_calls`.

    Raises:
        ConfigError: a model that a sharded graph does not have.
    """
    with sharded.tracing(task.graph):
        out = sharded.step_shardings(state, task.graph)
        step = jax.jit(program.step, donate_argnums=0, out_shardings=out).lower(state, task)
        evaluate = jax.jit(program.evaluate).lower(state.params, state.rest, task)
    return step, evaluate, kernel_calls(step.as_text() + evaluate.as_text())


def kernel_calls(program: str) -> dict[str, int]:
    """Counts the calls of our kernels in a lowered program's text."""
    counts: dict[str, int] = {}
    for part in program.split("stablehlo.custom_call @jaxgnn_")[1:]:
        name = part[: len(part) - len(part.lstrip("abcdefghijklmnopqrstuvwxyz_0123456789"))]
        counts[name] = counts.get(name, 0) + 1
    return counts


def copy(tree: Any) -> Any:
    """A copy that survives the donation of the original."""
    return jax.tree.map(jnp.copy, tree)


def train(
    compiled: Compiled,
    task: Task,
    state: TrainState,
    best: Best,
    progress: Progress,
    *,
    epochs: int,
    patience: int = 0,
    on_epoch: Callable[[dict[str, Any]], None] = lambda row: None,
    checkpoint: Callable[[TrainState, Best, Progress], None] = lambda *_: None,
    checkpoint_interval: int = 1,
    interrupted: Callable[[], bool] = lambda: False,
    agree: Callable[[bool], bool] = lambda better: better,
    sums: LossSums | None = None,
    checkpoint_within: Callable[[TrainState, Best, Progress, LossSums], None] = lambda *_: None,
    checkpoint_steps: int = 0,
) -> tuple[TrainState, Best, Progress]:
    """Trains to the last epoch, or until patience runs out.

    Args:
        compiled, task: what to run, on what. Before the last of several stages the newest epoch
            is the selected one, as the model is to keep that stage's entries.
        state, best, progress: where to start; `state` is donated.
        epochs: the last epoch.
        patience: epochs without a better validation score after which to stop; 0: never.
        on_epoch: called with each epoch's metrics.
        checkpoint: called every `checkpoint_interval` epochs, and at the end.
        checkpoint_interval: in epochs, from 1.
        interrupted: asked after each epoch; where it says so, training ends with a checkpoint.
            Between two calls of an epoch it ends at once.
        agree: of several processes, the decision of one: whether an epoch is the best.
        sums: of the epoch that `state` is within, if it is.
        checkpoint_within: called where training ends between two calls of an epoch, and between
            two of them every `checkpoint_steps` steps.
        checkpoint_steps: of an epoch; 0: `checkpoint_within` is called only where training ends.

    Raises:
        UnfinishedEpoch: `interrupted` said so between two calls of an epoch; a KeyboardInterrupt.
        DivergenceError: a loss is not finite.
    """
    has_validation = bool(jax.jit(jnp.any)(task.val))
    host = _HostMasks(task) if task.metric != "accuracy" else None
    finished = progress.stopped or progress.epoch >= epochs

    def within_epoch(state: TrainState, sums: LossSums) -> None:
        checkpoint_within(state, best, progress, sums)

    while not finished:
        start = time.perf_counter()
        stage = compiled.at(progress.epoch)
        try:
            with jax.profiler.StepTraceAnnotation("epoch", step_num=progress.epoch + 1):
                state, loss = stage.step(
                    *(state, task, interrupted, sums),
                    checkpoint=within_epoch,
                    checkpoint_steps=checkpoint_steps,
                )
        except UnfinishedEpoch as stop:
            checkpoint_within(stop.state, best, progress, stop.sums)
            raise
        sums = None
        logits, metrics = stage.evaluate(state.params, state.rest, task)
        if isinstance(task.features, HostFeatures):
            task.features.keep_until(logits)
        row = _row(progress.epoch + 1, loss, metrics, has_validation)
        if host is not None:
            row = host.scores(row, logits)
        progress.epoch += 1
        value, val_loss = row.get(f"val_{task.metric}"), row.get("val_loss", math.inf)
        value = -math.inf if value is None else -value if task.metric in ERRORS else value
        better = (value, -val_loss) > (progress.best_score, -progress.best_loss)
        if stage is not compiled:  # worse than any of the last stage
            better, value, val_loss = True, -math.inf, math.inf
        if agree(better or not has_validation):
            progress.best_epoch = progress.epoch
            progress.best_score, progress.best_loss = value, val_loss
            best = Best(copy(state.params), copy(state.rest))
        progress.stopped = 0 < patience <= progress.epoch - progress.best_epoch
        finished = progress.stopped or progress.epoch >= epochs
        row["seconds"] = round(time.perf_counter() - start, 6)
        on_epoch(row)
        finished = finished or interrupted()
        if finished or progress.epoch % checkpoint_interval == 0:
            checkpoint(state, best, progress)
    return state, best, progress


def _row(epoch: int, loss: Any, metrics: dict[str, Any], has_validation: bool) -> dict[str, Any]:
    loss, metrics = jax.device_get((loss, metrics))
    row: dict[str, Any] = {"epoch": epoch, "loss": float(loss)}
    for name, value in metrics.items():
        if has_validation or not name.startswith("val"):
            row[name] = float(value)
    for name in ("loss", "val_loss"):
        if not math.isfinite(row.get(name, 0.0)):
            raise DivergenceError(
                f"{name} is {row[name]} at epoch {epoch}: try a lower --learning-rate"
            )
    return row


class _HostMasks:
    """Scores that the device does not compute."""

    def __init__(self, task: Task):
        self.metric: Metric = task.metric
        self.labels, self.train, self.val = map(to_host, (task.labels, task.train, task.val))

    def scores(self, row: dict[str, Any], logits: Any) -> dict[str, Any]:
        logits = to_host(logits).astype(np.float64)
        for name, mask in (("train", self.train), ("val", self.val)):
            value = score(self.metric, self.labels, logits, mask) if mask.any() else math.nan
            if math.isfinite(value):
                row[f"{name}_{self.metric}"] = value
        return row
