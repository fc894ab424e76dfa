"""Full-batch steps of small graphs: call by call, and many in one program.

    python -m benchmarks.experiments.scanned_steps [--shapes cora pubmed] [--json FILE]

Forward, backward and Adam of models of two layers. "Calls" dispatches one step after the other and
waits for the last; "program" is `jax.lax.scan` over as many. "At once" is that program with XLA's
option by which kernels that do not need each other's results run at the same time on a GPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

from benchmarks.harness import graphs, timing
from benchmarks.harness.jax_programs import call_seconds
from benchmarks.harness.record import write_records
from jaxgnn import Graph
from jaxgnn.nn import GAT, GCN, GraphSAGE
from jaxgnn.train.loaders.compiler_options import of_steps

_FEATURES, _CLASSES = 500, 7
_MODELS = {
    "gcn": functools.partial(GCN, _FEATURES, 16, _CLASSES, num_layers=2),
    "gat": functools.partial(GAT, _FEATURES, 8, _CLASSES, num_layers=2, heads=8),
    "sage": functools.partial(GraphSAGE, _FEATURES, 64, _CLASSES, num_layers=2),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Times steps of small graphs."""

    shapes: tuple[str, ...] = ("cora", "pubmed")
    """The graphs."""
    models: tuple[str, ...] = tuple(_MODELS)
    """The models."""
    steps: int = 64
    """Of a program."""
    json: Path | None = None
    """A file for the results."""


def main() -> None:
    """Prints a row for each graph and model."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    table = Table("ms a step", "calls", f"program of {options.steps}", "at once")
    records, facts = [], []
    for shape in options.shapes:
        with graphs.stored(shape, 1.0) as stored:
            graph = stored.to_graph()
            facts.append(stored.facts)
        for model in options.models:
            found = measure(_MODELS[model], graph, options.steps)
            records.append({"graph": shape, "model": model, "steps": options.steps, "ms": found})
            table.add_row(f"{shape}, {model}", *(f"{ms:.3f}" for ms in found.values()))
    Console().print(table)
    if options.json is not None:
        write_records(options.json, records, graphs=facts)


def measure(make: Callable[..., Any], graph: Graph, steps: int) -> dict[str, float]:
    """Milliseconds of a step in each way."""
    rng, device = np.random.default_rng(0), jax.default_backend()
    x = jnp.asarray(rng.random((graph.num_nodes, _FEATURES), np.float32))
    labels = jnp.asarray(rng.integers(0, _CLASSES, graph.num_nodes))
    definition, params = nnx.split(make(rngs=nnx.Rngs(0)))
    optimizer = optax.adam(1e-3)
    data = graph, x, labels

    def step(state: Any, graph: Graph, x: Any, labels: Any) -> tuple[Any, Any]:
        params, moments = state

        def loss_of(params: Any) -> Any:
            logits = nnx.merge(definition, params)(graph, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(params, updates), moments), loss

    def many(state: Any, *data: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda state, _: step(state, *data), state, length=steps)

    state = params, optimizer.init(params)
    one, program = jax.jit(step), jax.jit(many)
    at_once = jax.jit(many, compiler_options=of_steps(counted=True))

    def calls() -> Any:
        current, loss = state, None
        for _ in range(steps):
            current, loss = one(current, *data)
        return loss

    ways: dict[str, Callable[[], Any]] = {
        "calls": calls,
        "program": lambda: program(state, *data),
        "at once": lambda: at_once(state, *data),
    }
    found = {}
    for name, run in ways.items():
        jax.block_until_ready(run())
        seconds = functools.partial(call_seconds, run, device=device)
        found[name] = timing.measure(seconds, 9, batch_seconds=0.02).ms / steps
    return found


if __name__ == "__main__":
    main()
