"""Inference with a part of the edges: score and time of a trained model, sample by sample."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from rich.console import Console
from rich.progress import track

from jaxgnn._core import checks
from jaxgnn.ops import sampled_spmm, spmm
from jaxgnn.train.problems.node_problem import score_or_none
from jaxgnn.train.process import machine
from jaxgnn.train.steps.model import check_samples
from jaxgnn.train.steps.step import Program, features_of_all
from jaxgnn.train.steps.task import Task
from jaxgnn.train.trained.restored import RestoredRun

STRATEGIES = ("bucket", "fastrand", "stride", "random")
"""Those that take a number of edges."""


@dataclasses.dataclass(frozen=True)
class InferenceSample:
    """The edges that inference takes: all of them as it is made without arguments.

    Attributes:
        strategy: one of `jaxgnn.sampled_spmm`.
        sample_size: the most edges of a node.
        drop_rate: with `"dropedge"`, the probability to drop an edge, to twelve decimals.

    Raises:
        TypeError, ValueError: an unknown strategy, a number that it does not take, is without or
            that is out of range.
    """

    strategy: str = "all"
    sample_size: int | None = None
    drop_rate: float | None = None

    def __post_init__(self) -> None:
        checks.choice(self.strategy, "strategy", ("all", *STRATEGIES, "dropedge"))
        for name, strategies in (("sample_size", STRATEGIES), ("drop_rate", ("dropedge",))):
            value = getattr(self, name)
            if (value is not None) != (self.strategy in strategies):
                expected = "a number" if value is None else "None"
                raise ValueError(
                    f"{name}: expected {expected} with strategy={self.strategy!r}, got {value}"
                )
        if self.sample_size is not None:
            checks.integer(self.sample_size, "sample_size", 1, 4096)
        if self.drop_rate is not None:
            checks.number(self.drop_rate, "drop_rate", 0, 1)
            if _kept(self.drop_rate) == 0:
                raise ValueError(f"drop_rate: expected less than 1, got {self.drop_rate}")

    @property
    def draws(self) -> bool:
        """Whether each key gives other edges."""
        return self.strategy in ("random", "dropedge")

    def options(self) -> dict[str, Any]:
        """The arguments of `sampled_spmm`; none for all edges."""
        if self.drop_rate is not None:
            return {"strategy": "dropedge", "sample_rate": _kept(self.drop_rate)}
        if self.sample_size is not None:
            return {"strategy": self.strategy, "sample_size": self.sample_size}
        return {}

    def edge_share(self, degrees: Int[np.ndarray, " nodes"]) -> float:
        r"""Share of the edges that are taken, as ES-SpMM counts it.

        $$\sum_i \min(d_i, S) / \sum_i d_i$$

        An edge that `"fastrand"` takes several times counts as often. With `"dropedge"` it is the
        expected share.
        """
        if self.drop_rate is not None:
            return _kept(self.drop_rate)
        if self.sample_size is None or not degrees.any():
            return 1.0
        return float(np.minimum(degrees, self.sample_size).sum() / degrees.sum(dtype=np.int64))


def _kept(drop_rate: float) -> float:
    """The probability to keep an edge, as the decimal fraction that is meant."""
    return round(1 - drop_rate, 12)


def sampled_logits(
    program: Program,
    options: Mapping[str, Any],
    params: Any,
    rest: Any,
    task: Task,
    key: Array | None = None,
) -> Float[Array, "nodes classes"]:
    """A model's outputs from a sample of the edges, without dropout.

    Args:
        program: the model, taken apart.
        options: those of an `InferenceSample`.
        params, rest: its parameters and other variables.
        task: the graph and the features.
        key: of the sample, where edges are drawn.
    """
    model = nnx.merge(program.inference, params, rest, copy=True)
    return model(task.graph, features_of_all(task), task.weights, key=key, **options)


def evaluate(
    run: RestoredRun,
    samples: Sequence[InferenceSample],
    *,
    num_runs: int = 10,
    num_draws: int = 5,
    seed: int = 0,
    console: Console | None = None,
) -> dict[str, Any]:
    """Scores and times a trained model's inference, with all edges and with each sample of them.

    The parameters are those that training selected. A time is the median of `num_runs` calls of a
    compiled program, each waited for. `aggregation_seconds` is that of one aggregation of rows of
    the hidden width; `inference_seconds` that of the whole model on all nodes. Where edges are
    drawn, scores are means and standard deviations over `num_draws` keys.

    Args:
        run: a run, as `restore_run` gives it.
        samples: what to measure beside all edges.
        num_runs: calls to time.
        num_draws: keys to score with, where edges are drawn.
        seed: of the keys.
        console: where to show progress; nowhere if None.

    Returns:
        `rows`, an object a sample, that of all edges first, and what was measured: run, dataset,
        model, metric, device.

    Raises:
        ConfigError: a model that cannot aggregate a sample.
        TypeError: `run` is no restored run, `samples` no sequence of `InferenceSample`, or a number
            no integer.
        ValueError: `num_runs` or `num_draws` below 1, or a `seed` below 0.

    Source: Liao et al., "ES-SpMM" (2021), whose evaluation this repeats.
    """
    if not isinstance(run, RestoredRun):
        raise TypeError(f"run: expected one of restore_run, got {type(run).__name__}")
    if not isinstance(samples, Sequence) or any(
        not isinstance(sample, InferenceSample) for sample in samples
    ):
        raise TypeError(f"samples: expected a sequence of InferenceSample, got {samples!r}")
    checks.integer(num_runs, "num_runs", 1, 10**6)
    checks.integer(num_draws, "num_draws", 1, 10**6)
    checks.integer(seed, "seed", 0, 2**32 - 1)
    check_samples(run.config.model, "run")
    measure = _Measurement(run, num_runs, num_draws, seed)
    wanted = [InferenceSample(), *samples]
    if console is not None and console.is_terminal:
        shown = track(wanted, "measuring", console=console, transient=True)
        rows = [measure(sample) for sample in shown]
    else:
        rows = [measure(sample) for sample in wanted]
    for row in rows:
        _compare(row, rows[0])
    return {
        "run": str(run.directory.absolute()),
        "dataset": run.dataset.name,
        "model": run.config.model,
        "metric": run.task.metric,
        "num_nodes": run.dataset.num_nodes,
        "num_edges": run.dataset.graph.num_edges,
        "aggregated_width": run.config.hidden,
        "dtype": run.config.dtype,
        "epochs": run.progress.epoch,
        "best_epoch": run.progress.best_epoch,
        "num_runs": num_runs,
        "num_draws": num_draws,
        "seed": seed,
        "device": machine.describe_device(),
        "environment": machine.environment(),
        "rows": rows,
    }


class _Measurement:
    """Measures one sample after the other."""

    def __init__(self, run: RestoredRun, num_runs: int, num_draws: int, seed: int):
        self._run, self._num_runs = run, num_runs
        self._keys = jax.random.split(jax.random.key(seed), num_draws)
        task = run.task
        self._degrees = np.asarray(task.graph.in_degrees)
        shape = (task.graph.num_senders, run.config.hidden)
        self._x = jax.random.normal(jax.random.key(seed), shape, task.features.dtype)
        model = nnx.merge(run.program.inference, run.best.params, run.best.rest, copy=True)
        self._is_mean = model.convs[0].sample.aggr == "mean"

    def __call__(self, sample: InferenceSample) -> dict[str, Any]:
        options, keys = sample.options(), self._keys if sample.draws else [None]
        row: dict[str, Any] = dataclasses.asdict(sample)
        row["edge_share"] = sample.edge_share(self._degrees)
        row |= self._inference(options, keys)
        row["aggregation_seconds"] = self._aggregation(options, keys[0])
        return row

    def _inference(self, options: dict[str, Any], keys: Any) -> dict[str, Any]:
        """The scores and the time of the whole model."""
        run = self._run
        operands = (run.best.params, run.best.rest, run.task)
        logits = functools.partial(sampled_logits, run.program, options)
        program = jax.jit(logits).lower(*operands, keys[0]).compile()
        outputs = [np.asarray(jax.device_get(program(*operands, key))) for key in keys]
        row: dict[str, Any] = {}
        for name in ("test", "val"):
            mask = getattr(run.split, name)
            scores = [score_or_none(run.dataset, output, mask) for output in outputs]
            known = [score for score in scores if score is not None]
            whole = len(known) == len(scores)
            row[f"{name}_score"] = statistics.fmean(known) if whole else None
            row[f"{name}_std"] = statistics.pstdev(known) if whole and len(known) > 1 else None
        row["inference_seconds"] = self._seconds(lambda: program(*operands, keys[0]))
        return row

    def _aggregation(self, options: dict[str, Any], key: Any) -> float:
        """The time of one aggregation, as a layer of the model has it."""

        def aggregation(graph, x, weights, key):
            if not options:
                return spmm(graph, x, weights, reduce="mean" if self._is_mean else "sum")
            normalize = "mean" if self._is_mean else "rescale"
            return sampled_spmm(graph, x, weights, key=key, normalize=normalize, **options)

        operands = (self._run.task.graph, self._x, self._run.task.weights, key)
        program = jax.jit(aggregation).lower(*operands).compile()
        return self._seconds(lambda: program(*operands))

    def _seconds(self, call: Callable[[], Any]) -> float:
        """The median time of a call, after as many for up to 50 ms, and one at least."""
        first = time.perf_counter()
        for _ in range(self._num_runs):
            jax.block_until_ready(call())
            if time.perf_counter() - first > 0.05:
                break
        times = []
        for _ in range(self._num_runs):
            start = time.perf_counter()
            jax.block_until_ready(call())
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def _compare(row: dict[str, Any], everything: dict[str, Any]) -> None:
    """Adds how much better and faster than all edges a sample is."""
    for name in ("test", "val"):
        one, other = row[f"{name}_score"], everything[f"{name}_score"]
        row[f"{name}_difference"] = None if one is None or other is None else one - other
    for name in ("aggregation", "inference"):
        row[f"{name}_speedup"] = everything[f"{name}_seconds"] / row[f"{name}_seconds"]
