"""The layer of `sage_embedding` by each of its kernels on a GPU: errors, and times beside the rest.

    python -m benchmarks.experiments.sage_layer [--children 10] [--no-whole]

Variant 0 is the kernels of all devices (`cuda/sampling/sage_layer.cu`, `unit_layer.cu`), 1 those of
a Hopper (`sage_layer_wgmma.cu`, `source_layers_wgmma.cu`), which the operation takes there. The
layer of the children is compared with float64 on groups of many sizes, some of whose places have no
node, and with variant 0 and itself on a batch of pokec's size, 65,536 sources. Timed are that
layer and both layers of the sources, and on the graph also the leaves' means and the embedding with
that variant; all in loops on the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness import graphs, timing
from benchmarks.harness.embedding import BATCH, features, parameters
from benchmarks.harness.jax_programs import call_seconds, repeat
from benchmarks.ours import embedding as ours
from jaxgnn.ops._sampling import sage_layer
from jaxgnn.ops._sampling.neighbors import Draw, Nodes, aggregate_sampled, operands
from jaxgnn.ops._sampling.sage_layer import (
    LayerInputs,
    SourceInputs,
    grouped_layer,
    source_layers,
)

_STEPS, _REPEATS, _NODES = 10, 5, 1_632_803
_TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}
# Groups, places of a group, features as a share of the widest, columns of both matrices.
_SHAPES = (
    (1000, 10, 1.0, (128, 128)),
    (333, 25, 0.9, (100, 128)),
    (3, 129, 0.9, (128, 3)),
    (1, 1, 0.25, (1, 1)),
    (701, 1, 0.5, (5, 128)),
    (5000, 7, 1.0, (128, 128)),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compared and timed."""

    variants: tuple[int, ...] = (0, 1)
    """0 is the kernels of all devices, 1 Hopper's."""
    children: tuple[int, ...] = (10, 25, 100)
    """Of a source, and leaves of a child."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """Of the features."""
    whole: bool = True
    """Time the leaves and the embedding, too, on the graph."""
    shape: str = "pokec"
    """The graph, of `benchmark_graph`."""
    scale: float = 1.0
    """Of its nodes and edges."""


@contextlib.contextmanager
def layers_by(variant: int) -> Iterator[None]:
    """What is traced meanwhile has its layers by these kernels."""
    before, sage_layer.WARPGROUPS = sage_layer.WARPGROUPS, variant == 1
    try:
        yield
    finally:
        sage_layer.WARPGROUPS = before


def _no_kernel(*_: Any) -> jax.Array:
    raise RuntimeError("needs a GPU, and the CUDA module")


def layer(variant: int, group: int, reduce: str, inputs: LayerInputs) -> jax.Array:
    """The sums or means over groups of the layer's rows, by that kernel."""
    with layers_by(variant):
        return grouped_layer(group, reduce, inputs, _no_kernel)


def by_hand(inputs: LayerInputs, group: int, reduce: str) -> np.ndarray:
    """The layer in float64."""
    x, around, own, other = (np.asarray(a, np.float64) for a in inputs[1:])
    nodes = np.asarray(inputs.nodes)
    there = nodes >= 0
    rows = np.concatenate([x[np.where(there, nodes, 0)] @ own, around @ other], axis=1)
    rows = np.maximum(rows, 0) * there[:, None]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    sums = (rows / np.where(lengths > 0, lengths, 1)).reshape(-1, group, rows.shape[1]).sum(axis=1)
    if reduce == "sum":
        return sums
    return sums / np.maximum(there.reshape(-1, group).sum(axis=1), 1)[:, None]


def error(variant: int, dtype: str) -> float:
    """The largest error beside float64, as a share of the largest value or 1, over all shapes."""
    rng, worst = np.random.default_rng(5), 0.0

    def rows(*shape: int) -> jax.Array:  # of values that every dtype has, and TF32
        return jnp.asarray(rng.integers(-64, 65, shape) / 32, dtype)

    vector = 16 // jnp.dtype(dtype).itemsize
    widest = 64 if dtype == "float32" else 128
    for groups, group, share, columns in _SHAPES:
        width = max(vector, int(widest * share) // vector * vector)
        nodes = jnp.asarray(rng.integers(-1, 50, groups * group), jnp.int32)
        matrices = (rows(width, count) for count in columns)
        inputs = LayerInputs(nodes, rows(50, width), rows(groups * group, width), *matrices)
        for reduce in ("mean", "sum"):
            found = jax.jit(functools.partial(layer, variant, group, reduce))(inputs)
            expected = by_hand(inputs, group, reduce)
            off = np.abs(np.asarray(found, np.float64) - expected).max()
            worst = max(worst, float(off / max(1, np.abs(expected).max())))
            if not np.isfinite(off):
                return float("nan")
    return worst


def milliseconds(function: Callable[..., Any], *operands: Any) -> float:
    """Of one call, in a loop on the device."""
    loop = jax.jit(repeat(function, _STEPS)).lower(*operands).compile()
    seconds = functools.partial(call_seconds, lambda: loop(*operands), device="gpu")
    return timing.measure(seconds, _REPEATS).divided(_STEPS).ms


def batch_inputs(group: int, x: jax.Array, dtype: str) -> LayerInputs:
    """Random places of a batch of sources, `group` of each."""
    keys = jax.random.split(jax.random.key(group))
    nodes = jax.random.randint(keys[0], (BATCH * group,), 0, x.shape[0], jnp.int32)
    around = jax.random.uniform(keys[1], (BATCH * group, x.shape[1]), minval=-1).astype(dtype)
    matrices = parameters(dtype)
    return LayerInputs(nodes, x, around, matrices["Wf1"], matrices["Wa1"])


def _of_features(variant: int, group: int, x: jax.Array, inputs: LayerInputs) -> jax.Array:
    return layer(variant, group, "mean", inputs._replace(features=x))


def _of_sources(variant: int, x: jax.Array, inputs: SourceInputs) -> jax.Array:
    with layers_by(variant):
        first = inputs.first._replace(features=x)
        return source_layers(inputs._replace(first=first), None, _no_kernel)


def time_layers(options: Options, dtype: str, console: Console) -> None:
    """The layer of a batch's children, and both of its sources."""
    x = features(int(_NODES * options.scale), dtype)
    for group in options.children:
        inputs = batch_inputs(group, x, dtype)
        console.print(f"layer of {BATCH:,} groups of {group}, {dtype}")
        _compare(options, console, lambda v, i=inputs, g=group: (_of_features, v, g, x, i))
    matrices = parameters(dtype)
    hidden = matrices["Wf1"].shape[1] + matrices["Wa1"].shape[1]
    around = jax.random.uniform(jax.random.key(4), (BATCH, hidden)).astype(dtype) / 16
    both = SourceInputs(batch_inputs(1, x, dtype), around, matrices["Wf2"], matrices["Wa2"])
    console.print(f"both layers of {BATCH:,} sources, {dtype}")
    _compare(options, console, lambda v: (_of_sources, v, x, both))


def _compare(options: Options, console: Console, call_of: Callable[[int], tuple[Any, ...]]) -> None:
    """The time of each variant's call, and its difference from the first one's."""
    table, first = Table("variant", "ms", "beside the first", "bits"), None
    for variant in options.variants:
        function, *static, x, inputs = call_of(variant)
        run = functools.partial(function, *static)
        program = jax.jit(run)
        found = program(x, inputs)
        first = found if first is None else first
        again = bool(jnp.array_equal(found, program(x, inputs)))
        apart = jnp.abs(found.astype(jnp.float32) - first.astype(jnp.float32)).max()
        ms = milliseconds(run, x, inputs)
        bits = "equal" if again else "DIFFERENT"
        table.add_row(str(variant), f"{ms:.4f}", f"{float(apart):.1e}", bits)
    console.print(table)


def _mean_of_leaves(children: int, x: jax.Array, graph: Any, places: jax.Array) -> jax.Array:
    ids = jnp.arange(places.size, dtype=jnp.uint32)
    at = Nodes(places, ids, jax.random.key(2), children)
    return aggregate_sampled(Draw("mean", True), operands(graph, None), x, at)


def time_embeddings(options: Options, graph: Any, dtype: str, console: Console) -> None:
    """The leaves and the embedding of a batch of sources."""
    x, key, params = features(graph.num_senders, dtype), jax.random.key(1), parameters(dtype)
    sources = np.random.default_rng(2).integers(0, graph.num_senders, BATCH).astype(np.int32)
    for children in options.children:
        edges = np.random.default_rng(3).integers(0, graph.num_edges, BATCH * children)
        places = graph.senders[jnp.asarray(edges)]  # as often as they are drawn as children
        leaves = functools.partial(_mean_of_leaves, children)
        console.print(
            f"C = {children}, {dtype}: leaves {milliseconds(leaves, x, graph, places):.4f} ms"
        )
        for variant in options.variants:
            jax.clear_caches()
            with layers_by(variant):
                embed = functools.partial(ours.embed, children, BATCH)
                ms = milliseconds(embed, x, graph, params, key, jnp.asarray(sources))
            console.print(f"  embedding of {BATCH:,} sources, variant {variant}: {ms:.4f} ms")


def main(options: Options) -> None:
    """Compares, then times; prints as it goes."""
    console = Console(width=100)
    for dtype in options.dtypes:
        for variant in options.variants:
            off = error(variant, dtype)
            verdict = "ok" if off <= _TOLERANCE[dtype] else "WRONG"
            console.print(f"variant {variant}, {dtype}: error {off:.1e}, {verdict}")
    for dtype in options.dtypes:
        time_layers(options, dtype, console)
    if options.whole:
        with graphs.stored(options.shape, options.scale) as stored:
            graph = jax.device_put(stored.to_graph())
            for dtype in options.dtypes:
                time_embeddings(options, graph, dtype, console)


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.sage_layer"))
