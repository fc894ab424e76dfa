"""Dropout by the kernel's mask, beside Flax's module and none at all.

    python -m benchmarks.experiments.dropout [--rows 169343] [--width 256] [--json FILE]
    python -m benchmarks.experiments.dropout --step [--shape arxiv] [--model gcn] [--json FILE]

Without `--step` nanoseconds a value, of the mask alone and of ReLU and dropout, forward and with
the backward pass. With it milliseconds of a training step, as `jaxgnn train` takes it, of random
features. On a CPU it is the processor time of all threads, which what else the machine does hardly
changes; on a GPU the clock's. All are the medians of calls in turns in one process.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

from benchmarks.harness.record import write_records
from jaxgnn.nn import Dropout, _dropout
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._dropout.mask import kept_by_jax, packed_by_kernel

_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    rows: int = 169_343
    width: int = 256
    rate: float = 0.5
    repeats: int = 7
    step: bool = False
    """A training step."""
    shape: str = "arxiv"
    """Of a step: the benchmark graph."""
    scale: float = 1.0
    """Of its nodes and edges."""
    features: int = 128
    classes: int = 40
    model: str = "gcn"
    layers: int = 3
    json: Path | None = None
    """A file for the results."""


def in_turns(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median seconds of each, after a first call; in a random order, as what a call leaves of
    the heap has the next one touch more or fewer new pages."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        order = list(calls)
        random.Random(repeat).shuffle(order)
        for name in order:
            before = clock()
            calls[name]()
            if repeat:
                seconds[name].append(clock() - before)
    return {name: statistics.median(times) for name, times in seconds.items()}


def ready(function: Callable[..., Any], *operands: Any) -> Callable[[], Any]:
    """A call of the compiled function that waits for its results."""
    compiled = jax.jit(function).lower(*operands).compile()
    return lambda: jax.block_until_ready(compiled(*operands))


def value_cases(options: Options, dtype: str) -> dict[str, Callable[[], Any]]:
    """ReLU and dropout of a matrix."""
    shape = options.rows, options.width
    x, ct = (
        jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)
        for seed in range(2)
    )
    key = jax.random.key(0)
    modules = {"jaxgnn": Dropout(options.rate), "Flax": nnx.Dropout(options.rate)}

    def of(module: nnx.Dropout | None) -> Callable[..., Any]:
        def forward(x: jax.Array, key: jax.Array) -> jax.Array:
            out = jax.nn.relu(x)
            return out if module is None else module(out, rngs=key)

        return forward

    def both(forward: Callable[..., Any], x: Any, key: Any, ct: Any) -> Any:
        out, pullback = jax.vjp(lambda x: forward(x, key), x)
        return out, pullback(ct)

    calls = {}
    for name, module in {"no dropout": None, **modules}.items():
        calls[f"{name}, forward"] = ready(of(module), x, key)
        calls[f"{name}, both"] = ready(functools.partial(both, of(module)), x, key, ct)
    return calls


def mask_cases(options: Options) -> dict[str, Callable[[], Any]]:
    """What is kept: the kernel's, and by JAX in both generators."""
    shape = options.rows, options.width
    drop_below, words = dropout_mask.arguments(options.rate, jax.random.key(0))
    return {
        "mask, jaxgnn": ready(functools.partial(packed_by_kernel, drop_below, *shape), words),
        "mask, Philox in JAX": ready(functools.partial(kept_by_jax, drop_below, *shape), words),
        "mask, jax.random": ready(
            lambda key: jax.random.bernoulli(key, 1 - options.rate, shape), jax.random.key(0)
        ),
    }


def step_cases(options: Options) -> dict[str, Callable[[], Any]]:
    """A training step, each from its own state."""
    from jaxgnn.data import NodeDataset, Split, benchmark_graph
    from jaxgnn.train import TrainConfig, build
    from jaxgnn.train.planning.estimate import one_step
    from jaxgnn.train.problems.node_problem import make_task

    graph = benchmark_graph(options.shape, options.scale).to_graph()
    rng, nodes = np.random.default_rng(0), graph.num_nodes
    part = np.arange(nodes) % 4
    split = Split(part < 2, part == 2, part == 3)
    features = rng.standard_normal((nodes, options.features), np.float32)
    labels = rng.integers(options.classes, size=nodes).astype(np.int32)
    data = NodeDataset(options.shape, graph, features, labels, options.classes, {"random": split})

    def case(kind: type[nnx.Dropout], rate: float) -> Callable[[], None]:
        config = TrainConfig(
            dataset=options.shape,
            model=options.model,
            layers=options.layers,
            hidden=options.width,
            dropout=rate,
        ).check()
        task = make_task(config, data, split)
        with mock.patch.object(_dropout, "Dropout", kind):
            function, operands, _ = one_step(*build(config, task), task)
            compiled = jax.jit(function, donate_argnums=0).lower(*operands).compile()

        def step() -> None:
            nonlocal operands
            state, _ = jax.block_until_ready(compiled(*operands))
            operands = (state, *operands[1:])

        return step

    return {
        "no dropout": case(Dropout, 0.0),
        "jaxgnn": case(Dropout, options.rate),
        "Flax": case(nnx.Dropout, options.rate),
    }


def main() -> None:
    """Measures and prints a table."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    records: dict[str, dict[str, float]] = {}
    if options.step:
        found = in_turns(step_cases(options), options.repeats)
        records = {name: {"ms": round(1e3 * seconds, 3)} for name, seconds in found.items()}
        table = Table("dropout", "ms a step")
        for name, row in records.items():
            table.add_row(name, f"{row['ms']:.2f}")
    else:
        values = options.rows * options.width
        table = Table("", *(f"{dtype}, ns a value" for dtype in _DTYPES))
        for dtype in _DTYPES:
            calls = mask_cases(options) | value_cases(options, dtype)
            for name, seconds in in_turns(calls, options.repeats).items():
                records.setdefault(name, {})[dtype] = round(1e9 * seconds / values, 4)
        for name, ns in records.items():
            table.add_row(name, *(f"{ns[dtype]:.3f}" for dtype in _DTYPES))
    Console().print(table)
    if options.json is not None:
        rows = [{"what": name, **found} for name, found in records.items()]
        write_records(options.json, rows)


if __name__ == "__main__":
    main()
