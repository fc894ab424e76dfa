"""Training on many graphs: loader and step of a GIN, here and in PyG, in one process.

Prints graphs a second of both and their ratio, by wall time and by CPU time of all threads (which
other work on the machine changes less), the programs that JAX compiled and the share of padding
nodes. Both train the same model (GIN of 5 layers with batch normalization, sums of the nodes, a
linear layer) by Adam on all graphs, in shuffled batches; epochs alternate, the medians count.

    python -m benchmarks.experiments.many_graphs FOLDER [--device cuda] [--json OUT] ...

JAX runs an epoch by `GraphLoader.scan`, or with `--iterate` a step a call. On a GPU JAX is to leave
memory to PyG: `XLA_PYTHON_CLIENT_MEM_FRACTION=.4`; products are in TF32 on both sides there, which
is JAX's default. `--workers` are processes of PyG's loader, which pins its memory on a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxgnn
from benchmarks.baselines.pyg_graphs import pyg_graphs
from benchmarks.harness.options import gpu_facts
from benchmarks.harness.record import _cpu_name
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
) -> tuple[Callable[[], Any], Callable[[], float]]:
    """An epoch, and the share of padding."""
    widths = graphs.num_features, options.hidden, int(graphs.num_classes or 0)
    definition, params, rest = nnx.split(Model(widths, options.layers), nnx.Param, ...)
    optimizer = optax.adam(1e-3)
    loader = GraphLoader(graphs, options.batch_size, seed=0, shapes=options.shapes)
    state = [params, rest, optimizer.init(params)]
    padded = []

    def train(
        state: list[Any], minibatch: GraphMinibatch
    ) -> tuple[list[Any], tuple[jax.Array, jax.Array]]:
        params, rest, moments = state

        assert minibatch.labels is not None
        labels = minibatch.labels

        def loss_of(params: Any) -> Any:
            model = nnx.merge(definition, params, rest, copy=True)
            losses = optax.softmax_cross_entropy_with_integer_labels(model(minibatch), labels)
            mask = minibatch.batch.graph_mask
            loss = jnp.where(mask, losses, 0).sum() / mask.sum()
            return loss, nnx.state(model, nnx.Not(nnx.Param))

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        state = [optax.apply_updates(params, updates), rest, moments]
        return state, (loss, jnp.int32(minibatch.batch.graph.num_receivers))

    step = jax.jit(train, donate_argnums=0)

    def epoch() -> None:
        nonlocal state
        if options.iterate:
            nodes = []
            for minibatch in loader:
                state, (_, count) = step(state, minibatch)
                nodes.append(count)
        else:
            state, (_, nodes) = loader.scan(train, state, len(loader))
        padded.append(sum(np.asarray(jax.block_until_ready(nodes)).tolist()))

    def padding() -> float:
        return 1 - graphs.num_nodes * len(padded) / sum(padded)

    return epoch, padding


def pyg(graphs: GraphSet, options: argparse.Namespace) -> Callable[[], Any]:
    """An epoch of the same in PyG."""
    import torch
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GIN, global_add_pool

    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    data = pyg_graphs(graphs, range(len(graphs)))
    loader = DataLoader(
        data,
        options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        pin_memory=options.device == "cuda",
    )
    model = GIN(graphs.num_features, options.hidden, options.layers, options.hidden, norm="batch")
    linear = torch.nn.Linear(options.hidden, int(graphs.num_classes or 0))
    model.to(options.device)
    linear.to(options.device)
    optimizer = torch.optim.Adam([*model.parameters(), *linear.parameters()], lr=1e-3)

    def epoch() -> None:
        for batch in loader:
            batch = batch.to(options.device, non_blocking=True)
            optimizer.zero_grad()
            rows = model(batch.x, batch.edge_index)
            logits = linear(global_add_pool(rows, batch.batch, batch.num_graphs))
            torch.nn.functional.cross_entropy(logits, batch.y).backward()
            optimizer.step()
        if options.device == "cuda":
            torch.cuda.synchronize()

    return epoch


def compilations() -> list[float]:
    """Grows by the seconds of each program that JAX compiles."""
    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seconds


def main() -> None:
    """Measures, prints, and with `--json` writes a file."""
    parser = argparse.ArgumentParser(description="Many graphs: loader and step, here and in PyG.")
    parser.add_argument("folder")
    for name, value in (
        *(("batch-size", 128), ("hidden", 64), ("layers", 5), ("shapes", 1)),
        *(("epochs", 11), ("threads", 2), ("workers", 0)),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--iterate", action="store_true", help="a step a call, without `scan`")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument(
        "--map-anew", action="store_true", help="leave memory as glibc has it, for both"
    )
    options = parser.parse_args()
    jax.config.update("jax_default_device", jax.devices(options.device)[0])
    if not options.map_anew:
        keep_freed_memory()
    graphs = load(options.folder)
    if not isinstance(graphs, GraphSet) or graphs.features is None or not graphs.num_classes:
        parser.error(f"expected graphs with features and classes, got {graphs}")
    load_average = os.getloadavg()[0]
    epoch, padding = ours(graphs, options)
    sides = {"jaxgnn": epoch, "PyG": pyg(graphs, options)}
    clocks = {"wall": time.perf_counter, "CPU": time.process_time}
    seconds = {clock: {name: [] for name in sides} for clock in clocks}
    compiled = compilations()
    for repeat in range(options.epochs + 1):
        for name, run in sides.items():
            starts = {clock: now() for clock, now in clocks.items()}
            before = len(compiled)
            run()
            # The first epoch compiles, and each that has a batch of a shape not seen before.
            for clock, now in clocks.items() if repeat and before == len(compiled) else ():
                seconds[clock][name].append(now() - starts[clock])
    record: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "hardware": gpu_facts().get("name", "GPU") if options.device == "cuda" else _cpu_name(),
        "environment": {
            "cpus": len(os.sched_getaffinity(0)),
            "load": [round(load_average, 1), round(os.getloadavg()[0], 1)],
            **{
                name: importlib.metadata.version(name)
                for name in ("jax", "jaxlib", "torch", "torch_geometric")
            },
        },
        "command": "python -m benchmarks.experiments.many_graphs " + " ".join(sys.argv[2:]),
        "graphs": {"name": graphs.name, "graphs": len(graphs), "nodes": graphs.num_nodes},
        "programs": len(compiled),
        "compile_seconds": round(sum(compiled), 2),
        "padding": round(padding(), 4),
        "records": [],
    }
    for clock, sides_seconds in seconds.items():
        rates = {}
        for name, times in sides_seconds.items():
            found = {"median": statistics.median(times), "least": max(times), "most": min(times)}
            rates[name] = {key: round(len(graphs) / value) for key, value in found.items()}
            rate = rates[name]
            print(
                f"{name}: {rate['median']:,} graphs/{clock} s ({rate['least']:,} to "
                f"{rate['most']:,}; {len(times)} epochs)"
            )
        ratios = {
            key: round(rates["jaxgnn"][key] / rates["PyG"][key], 3) for key in ("median", "most")
        }
        print(f"ratio by {clock} time: {ratios['median']:.2f}, of the best {ratios['most']:.2f}")
        record["records"].append({"clock": clock, "graphs_per_second": rates, "ratio": ratios})
    print(f"{len(compiled)} programs in {sum(compiled):.1f} s, {record['padding']:.1%} padding")
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
