"""Training on many graphs: loader and step of a GIN, here and in PyG, in one process.

Prints graphs a second of both and their ratio, by wall time and by CPU time of all threads (which
other work on the machine changes less), the programs compiled and the share of padding nodes. Both
train the same model (GIN of 5 layers with batch normalization, sums of the nodes, a linear layer)
by Adam on all graphs, in shuffled batches; epochs alternate, the medians count.

    python -m benchmarks.experiments.many_graphs FOLDER [--batch-size 128] [--epochs 11] ...

JAX computes on its default device, PyG on that of `--device`. On a GPU JAX is to leave memory:
`XLA_PYTHON_CLIENT_MEM_FRACTION=.4`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxgnn
from benchmarks.baselines.pyg_graphs import pyg_graphs
from jaxgnn.data import GraphSet, load
from jaxgnn.train import GraphLoader, GraphMinibatch, keep_freed_memory


class Model(nnx.Module):
    """GIN, the sum of the nodes, a linear layer."""

    def __init__(self, widths: tuple[int, int, int], layers: int):
        rngs = nnx.Rngs(0)
        features, hidden, classes = widths
        self.gin = jaxgnn.nn.GIN(
            features, hidden, hidden, num_layers=layers, norm="batch", rngs=rngs
        )
        self.linear = nnx.Linear(hidden, classes, rngs=rngs)

    def __call__(self, minibatch: GraphMinibatch) -> jax.Array:
        assert minibatch.features is not None
        nodes = self.gin(minibatch.batch, minibatch.features)
        return self.linear(jaxgnn.readout(minibatch.batch.membership, nodes))


def ours(
    graphs: GraphSet, options: argparse.Namespace
) -> tuple[Callable[[], Any], Callable[[], tuple[int, float]]]:
    """An epoch, and the programs compiled with the share of padding."""
    widths = graphs.num_features, options.hidden, int(graphs.num_classes or 0)
    definition, params, rest = nnx.split(Model(widths, options.layers), nnx.Param, ...)
    optimizer = optax.adam(1e-3)
    loader = GraphLoader(graphs, options.batch_size, seed=0, max_device_bytes=options.device_bytes)
    state = [params, rest, optimizer.init(params)]

    def train(state: list[Any], minibatch: GraphMinibatch) -> tuple[list[Any], Any]:
        params, rest, moments = state

        def loss_of(params: Any) -> Any:
            model = nnx.merge(definition, params, rest, copy=True)
            losses = optax.softmax_cross_entropy_with_integer_labels(
                model(minibatch), minibatch.labels
            )
            mask = minibatch.batch.graph_mask
            loss = jnp.where(mask, losses, 0).sum() / mask.sum()
            return loss, nnx.state(model, nnx.Not(nnx.Param))

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return [optax.apply_updates(params, updates), rest, moments], loss

    step = jax.jit(train, donate_argnums=0)

    def epoch() -> None:
        nonlocal state
        if options.scan:
            state, losses = loader.scan(train, state, len(loader))
            jax.block_until_ready(losses)
            return
        loss = None
        for minibatch in loader:
            state, loss = step(state, minibatch)
        jax.block_until_ready(loss)

    def report() -> tuple[int, float]:
        return 0, 0.0

    return epoch, report


def pyg(graphs: GraphSet, options: argparse.Namespace) -> Callable[[], Any]:
    """An epoch of the same in PyG."""
    import torch
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GIN, global_add_pool

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    data = pyg_graphs(graphs, range(len(graphs)))
    loader = DataLoader(data, options.batch_size, shuffle=True)
    model = GIN(graphs.num_features, options.hidden, options.layers, options.hidden, norm="batch")
    linear = torch.nn.Linear(options.hidden, int(graphs.num_classes or 0))
    model.to(options.device), linear.to(options.device)
    optimizer = torch.optim.Adam([*model.parameters(), *linear.parameters()], lr=1e-3)

    def epoch() -> None:
        for batch in loader:
            batch = batch.to(options.device)
            optimizer.zero_grad()
            rows = model(batch.x, batch.edge_index)
            logits = linear(global_add_pool(rows, batch.batch, batch.num_graphs))
            torch.nn.functional.cross_entropy(logits, batch.y).backward()
            optimizer.step()
        if options.device == "cuda":
            torch.cuda.synchronize()

    return epoch


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description="Many graphs: loader and step, here and in PyG.")
    parser.add_argument("folder")
    for name, value in (
        *(("batch-size", 128), ("hidden", 64), ("layers", 5)),
        *(("epochs", 11), ("threads", 2)),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of PyG")
    parser.add_argument(
        "--map-anew", action="store_true", help="leave memory as glibc has it, for both"
    )
    options = parser.parse_args()
    if not options.map_anew:
        keep_freed_memory()
    graphs = load(options.folder)
    if not isinstance(graphs, GraphSet) or graphs.features is None or not graphs.num_classes:
        parser.error(f"expected graphs with features and classes, got {graphs}")
    epoch, report = ours(graphs, options)
    sides = {"jaxgnn": epoch, "PyG": pyg(graphs, options)}
    clocks = {"wall": time.perf_counter, "CPU": time.process_time}
    seconds = {clock: {name: [] for name in sides} for clock in clocks}
    for repeat in range(options.epochs + 1):
        for name, run in sides.items():
            starts = {clock: now() for clock, now in clocks.items()}
            run()
            for clock, now in clocks.items() if repeat else ():  # the first compiles
                seconds[clock][name].append(now() - starts[clock])
    ratios = []
    for clock, sides_seconds in seconds.items():
        rates = {name: len(graphs) / statistics.median(t) for name, t in sides_seconds.items()}
        for name, rate in rates.items():
            slowest, fastest = (len(graphs) / pick(sides_seconds[name]) for pick in (max, min))
            print(f"{name}: {rate:,.0f} graphs/{clock} s ({slowest:,.0f} to {fastest:,.0f})")
        ratios.append(f"{rates['jaxgnn'] / rates['PyG']:.2f} by {clock} time")
    programs, padding = report()
    print(f"ratio {', '.join(ratios)}; {programs} programs, {padding:.1%} padding")


if __name__ == "__main__":
    main()
