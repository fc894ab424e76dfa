"""A training step of one part of a graph of ogbn-papers100M's size: its time and its memory.

    python -m benchmarks.experiments.papers_part [--scale 0.001] [--dtypes bfloat16] [--json OUT]

One eighth of 111 million nodes and 1.6 billion edges, split by rows: 13.9 million owned nodes, 202
million edges that end there, and as many rows of halo as owned ones. Senders are drawn uniformly
from both, so that the edges have no locality. The step is the suite `scale`'s: GraphSAGE with layer
normalization and dropout, forward, cross-entropy of all nodes, backward, Adam. The part exchanges
with itself: it receives what it packs, as many rows as it would. The bytes that a device would send
are printed as time, too. Each step is compiled with and without `recompute` of the model, and those
of least memory run first, as the device's peak is that of all before.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tyro

from benchmarks.harness.record import write_records

if TYPE_CHECKING:
    from jaxgnn import Graph
    from jaxgnn.distributed import ShardedGraph

NODES, EDGES = 13_900_000, 202_000_000
FEATURES, HIDDEN, CLASSES = 128, 128, 172
TARGET_BYTES = 125e9


@dataclasses.dataclass(frozen=True)
class Options:
    """Times a training step of one part of a graph of ogbn-papers100M's size."""

    scale: float = 1.0
    """Of the part's nodes and edges."""
    parts: int = 8
    """Of the whole graph."""
    halo: float = 1.0
    """Halo rows for each owned one."""
    layers: int = 3
    """Convolutions."""
    hidden: int = HIDDEN
    """Width of the hidden rows."""
    dtypes: tuple[str, ...] = ("float32",)
    """Of the computation."""
    recompute: tuple[bool, ...] = (True, False)
    """Whether normalization, activation and dropout are computed again in the backward pass."""
    steps: int = 5
    """How many are timed."""
    bandwidth: float = 370.0
    """GB/s that a device sends."""
    json: Path | None = None
    """A file for the results."""


def make_part(nodes: int, edges: int, halo: float, parts: int) -> tuple[Graph, Graph, int]:
    """A part's graph and what it sends, on the host, and the rows a pair of parts exchanges.

    The first part, whose own block of the halo is empty, as in all sharded graphs.
    """
    from jaxgnn import Graph

    rng = np.random.default_rng(0)
    pair_rows = round(halo * nodes / (parts - 1))
    # In-degrees of a heavy tail, about 30 times the mean at most in a million rows.
    weights = np.cumsum(rng.standard_gamma(0.6, nodes, np.float32), dtype=np.float64)
    offsets = np.zeros(nodes + 2, np.int64)  # the last row is padding
    offsets[1:-1] = np.rint(weights * (edges / weights[-1]))
    offsets[-1] = edges
    senders = rng.integers(0, nodes + pair_rows * (parts - 1), edges, np.int32)
    senders[senders >= nodes] += 1 + pair_rows
    graph = Graph.from_csr(offsets, senders, num_senders=nodes + 1 + pair_rows * parts)
    rows = pair_rows * parts
    sent = np.clip(np.arange(rows + 1) - pair_rows, 0, rows - pair_rows)
    sends = Graph.from_csr(
        sent, rng.integers(0, nodes, rows - pair_rows, np.int32), num_senders=nodes + 1
    )
    drop = functools.partial(dataclasses.replace, edge_permutation=None)
    return drop(graph.with_row_schedule()), drop(sends), pair_rows


def on_device(graph: Graph, sends: Graph, pair_rows: int, parts: int, device: Any) -> ShardedGraph:
    """The part as a sharded graph over one device, which is its own neighbor."""
    import jax

    from benchmarks.ours import scale
    from jaxgnn.distributed import ShardedGraph

    nodes = sends.num_senders
    put = functools.partial(jax.device_put, device=device)
    stacked = jax.tree.map(lambda leaf: put(np.asarray(leaf)[None]), (graph, sends))
    degrees = put(np.diff(np.asarray(graph.row_offsets))[:nodes].astype(np.int32))
    none = put(np.zeros(nodes, np.int32))
    places = put(np.arange(nodes, dtype=np.int32))
    no_edge = put(np.zeros(1, np.int32))
    return ShardedGraph(
        graph=stacked[0],
        kinds=None,
        sends=stacked[1],
        node_of_place=places,
        place_of_node=places,
        edge_of_place=no_edge,  # the step has no data of edges
        edge_permutation=None,
        in_degrees=degrees,
        out_degrees=none,
        self_loops=none,
        repeated_self_loops=no_edge > 0,
        mesh=scale.mesh_of([device]),
        rows=scale.AXIS,
        features=None,
        num_nodes=nodes,
        num_senders=nodes,
        num_receivers=nodes,
        num_edges=graph.num_edges,
        pair_rows=pair_rows * parts,
        halo=pair_rows * (parts - 1),
        costs=(),
        edges=None,
        exchange_dtype=None,
        num_graph_edges=graph.num_edges,
        num_input_edges=None,
    )


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Builds the part and runs its steps."""
    import jax
    import jax.numpy as jnp

    from benchmarks.harness import plan
    from benchmarks.harness.jax_programs import program_bytes
    from benchmarks.harness.setting import Setting
    from benchmarks.ours import models, scale_step

    nodes, edges = round(NODES * options.scale), round(EDGES * options.scale)
    start = time.perf_counter()
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        graph, sends, pair_rows = make_part(nodes, edges, options.halo, options.parts)
    build_seconds = time.perf_counter() - start
    device = jax.devices()[0]
    sharded = on_device(graph, sends, pair_rows, options.parts, device)
    del graph, sends
    widths = [FEATURES, *[options.hidden] * (options.layers - 1), CLASSES]
    places = jnp.arange(sharded.num_senders, dtype=jnp.int32)
    labels = places % CLASSES
    key = jax.random.key(0)
    rest = (labels, places < nodes, key)
    rows = pair_rows * (options.parts - 1)
    compiled = []
    for dtype, recompute in itertools.product(options.dtypes, options.recompute):
        setting = Setting(plan.OURS, dtype=dtype, recompute=recompute)
        parameters = models.initial_parameters(setting, widths)
        step, state = scale_step.training_step(setting, widths, parameters, nodes)
        x = jax.ShapeDtypeStruct((places.size, FEATURES), dtype)
        program = step.lower(state, sharded, x, *rest).compile()
        compiled.append((program_bytes(program) or 0, setting, program, state))
    for program_size, setting, program, state in sorted(compiled, key=lambda each: each[0]):
        sent = 2 * rows * sum(scale_step.aggregated_widths(setting, widths))
        sent *= jnp.dtype(setting.dtype).itemsize
        row = {
            "device": device.device_kind,
            "jaxlib": jax.lib.__version__,
            "dtype": setting.dtype,
            "recompute": setting.recompute,
            "owned_nodes": nodes,
            "halo_rows": rows,
            "edges": edges,
            "widths": widths,
            "build_seconds": round(build_seconds, 2),
            "sent_bytes": sent,
            "exchange_ms": round(sent / options.bandwidth / 1e6, 3),
            "program_bytes": program_size,
        }
        draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
        try:
            x = draw(key, (places.size, FEATURES), setting.dtype)
            row |= _run(program, state, (sharded, x, *rest), options.steps)
        except jax.errors.JaxRuntimeError as error:  # no memory, above all
            row["error"] = str(error).splitlines()[0]
        x = None
        row["peak_bytes"] = (device.memory_stats() or {}).get("peak_bytes_in_use")
        yield row


def _run(program: Any, state: Any, operands: tuple[Any, ...], steps: int) -> dict[str, Any]:
    import jax

    seconds = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        state, loss = jax.block_until_ready(program(state, *operands))
        seconds.append(time.perf_counter() - start)
    if not np.isfinite(loss):
        raise RuntimeError(f"expected a finite loss, got {loss}")
    return {"step_ms": round(1e3 * float(np.median(seconds[1:])), 3), "loss": float(loss)}


def describe(row: dict[str, Any]) -> str:
    """The figures for people."""
    peak, program = row["peak_bytes"], row["program_bytes"]
    known = f"{peak / 1e9:.3f} GB" if peak else "unknown"
    whole = NODES / row["owned_nodes"] * (peak or program) / 1e9
    took = f"failed: {row['error']}" if "error" in row else f"{row['step_ms']:,.1f} ms"
    return (
        f"{row['device']}, {row['dtype']}{', recomputed' * row['recompute']}: "
        f"{row['owned_nodes']:,} owned nodes, {row['halo_rows']:,} halo rows, {row['edges']:,} "
        f"edges, built in {row['build_seconds']:.1f} s\n"
        f"  step {took} without the links; {row['sent_bytes'] / 1e9:.3g} GB sent a device, "
        f"{row['exchange_ms']:,.1f} ms\n"
        f"  memory {program / 1e9:.3f} GB by XLA's account, the device's peak {known}; of "
        f"{NODES:,} owned nodes {whole:.1f} GB, target {TARGET_BYTES / 1e9:g}"
    )


def main() -> None:
    """Prints the figures of each step."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    # Three quarters of the memory, JAX's default, would be the limit.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    rows = []
    for row in measure(options):
        rows.append(row)
        print(describe(row), flush=True)
        if options.json is not None:
            write_records(options.json, rows)


if __name__ == "__main__":
    main()
