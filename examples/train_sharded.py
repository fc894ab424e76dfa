"""Times full-batch training on a benchmark's shape, over several devices.

    python examples/train_sharded.py --shape arxiv --scale 0.1 --layout rows --devices 8
    python examples/train_sharded.py --shape arxiv --scale 0.1 --layout rows --k 32 --devices 8
    python examples/train_sharded.py --shape arxiv --scale 0.1 --model GAT --layout both --devices 8
    python examples/train_sharded.py --shape reddit --layout features --devices 2

On a machine without GPUs the devices are simulated ones of the CPU, which checks but does not
speed up. The features, labels and initial parameters are the same for every layout.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx

from jaxgnn import Graph
from jaxgnn.data import DataError
from jaxgnn.data.generated.benchmark_graphs import benchmark_graph
from jaxgnn.distributed import shard
from jaxgnn.nn import MaxK, models


@dataclasses.dataclass(frozen=True)
class Options:
    """Times full-batch training steps over several devices."""

    shape: str = "arxiv"
    """Of the graph: one of jaxgnn.data's benchmark shapes."""
    scale: float = 1.0
    """Of its numbers of nodes and edges."""
    model: Literal["GraphSAGE", "GAT", "GATv2", "Transformer"] = "GraphSAGE"
    """What is trained; those of attention have 8 heads."""
    k: int | None = None
    """Entries that MaxK keeps of a hidden row, instead of ReLU; by rows alone, or on one device."""
    layout: Literal["rows", "features", "both", "auto", "one"] = "features"
    """How the graph is split; both: with two devices for the features; auto: the layout predicted
    to be faster; one: on one device, without a ShardedGraph."""
    partition: Literal["stream", "metis", "block", "windows"] | None = None
    """Who owns which node by rows; the best of stream, block and, with k, windows where none is
    named."""
    devices: int = 2
    """Number of devices."""
    features: int = 256
    """Width of the input and of the hidden layers."""
    classes: int = 41
    """Number of classes."""
    layers: int = 4
    """Number of layers."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; the parameters are float32."""
    exchange_dtype: Literal["bfloat16"] | None = None
    """In which rows travel."""
    steps: int = 20
    """Steps that are timed, after two that are not."""


def check(options: Options) -> None:
    """Ends with a line about the first option that cannot be."""
    for name in ("devices", "steps", "features", "classes", "layers"):
        if getattr(options, name) < 1:
            sys.exit(f"--{name}: expected at least 1, got {getattr(options, name)}")
    if options.layout == "both" and options.devices % 2:
        sys.exit(f"--devices: expected an even number with --layout both, got {options.devices}")
    if options.model != "GraphSAGE" and options.features % 8:
        sys.exit(f"--features: expected a multiple of the 8 heads, got {options.features}")
    if options.k is not None and not 1 <= options.k <= options.features:
        sys.exit(f"--k: expected 1 to --features, {options.features}, got {options.k}")
    if options.k is not None and options.layout in ("features", "both"):
        sys.exit(f"--layout: expected rows, auto or one with --k, got {options.layout}")
    if options.partition is not None and options.layout in ("features", "one"):
        sys.exit(f"--partition: expected none with --layout {options.layout}")
    if options.partition == "windows" and options.k is None:
        sys.exit("--partition: expected --k with windows, got none")
    if options.exchange_dtype is not None and options.layout == "one":
        sys.exit("--exchange-dtype: expected none with --layout one")


def main(options: Options) -> list[float]:
    """Trains, prints the time and the loss, and returns the loss of every step."""
    check(options)
    try:
        offsets, senders = benchmark_graph(options.shape, options.scale)
    except DataError as error:  # "name: expected one of ..." or "scale: ..."
        sys.exit(f"--{str(error).replace('name:', 'shape:', 1)}")
    jax.config.update("jax_num_cpu_devices", options.devices)
    graph = Graph.from_csr(offsets, senders).with_row_schedule()
    if options.k is not None:
        graph = graph.with_windows()
    rng = np.random.default_rng(0)
    nodes, width = graph.num_senders, options.features
    x = rng.standard_normal((nodes, width), np.float32).astype(options.dtype)
    labels = rng.integers(0, options.classes, nodes)
    mask = np.ones(nodes, bool)
    own = {} if options.model == "GraphSAGE" else {"heads": 8}
    if options.k is not None:
        own |= {"activation": MaxK(options.k), "input_layer": True}
    model = getattr(models, options.model)(
        width,
        width,
        options.classes,
        num_layers=options.layers,
        dtype=jnp.dtype(options.dtype),
        rngs=nnx.Rngs(0),
        **own,
    )
    definition, parameters = nnx.split(model)
    optimizer = optax.adam(1e-3)
    state = parameters, optimizer.init(parameters)
    if options.layout != "one":
        shape, names, axes = (options.devices,), ("x",), {options.layout: "x"}
        if options.layout == "both":
            shape, names = (options.devices // 2, 2), ("r", "c")
            axes = {"rows": "r", "features": "c"}
        elif options.layout == "auto":
            axes = {} if options.k is None else {"rows": "x"}
        mesh = jax.make_mesh(shape, names, devices=jax.devices()[: options.devices])
        start = time.perf_counter()
        travel = {"exchange_dtype": options.exchange_dtype}
        try:
            graph = shard(graph, mesh, partition=options.partition, **travel, **axes)
        except ImportError as error:  # of metis
            sys.exit(f"--partition: {error}")
        print(f"split in {time.perf_counter() - start:.1f} s")
        print(graph.explain(width, jnp.dtype(options.dtype).itemsize))
        x, labels = graph.scatter(x), graph.scatter(labels)
        mask, state = graph.node_mask, graph.replicate(state)
    else:
        x, labels, mask = jnp.asarray(x), jnp.asarray(labels), jnp.asarray(mask)

    # The graph is an argument: closed over, it would become a constant of the program.
    @jax.jit
    def step(state, graph, x, labels, mask):
        parameters, moments = state

        def loss_fn(parameters):
            outputs = nnx.merge(definition, parameters)(graph, x).astype(jnp.float32)
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
            return jnp.mean(losses, where=mask)

        loss, gradients = jax.value_and_grad(loss_fn)(parameters)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return loss, (optax.apply_updates(parameters, updates), moments)

    losses, times = [], []
    for _ in range(options.steps + 2):
        start = time.perf_counter()
        loss, state = jax.block_until_ready(step(state, graph, x, labels, mask))
        times.append(time.perf_counter() - start)
        losses.append(float(loss))
    used = 1 if options.layout == "one" else options.devices
    print(
        f"{options.model}{'' if options.k is None else f' k={options.k}'}, {options.shape} x "
        f"{options.scale:g}, {options.dtype}, {options.layout} on {used} "
        f"{jax.devices()[0].device_kind}: {1e3 * statistics.median(times[2:]):.2f} ms a step "
        f"(median of {options.steps}), loss {losses[0]:.6f} to {losses[-1]:.6f}, "
        f"{step._cache_size()} compiled"
    )
    return losses


if __name__ == "__main__":
    main(tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,)))
