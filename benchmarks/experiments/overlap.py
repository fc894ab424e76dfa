"""Edges between owned nodes aggregated while the halo travels: what that would win, by rows.

    python -m benchmarks.experiments.overlap arxiv products papers --parts 8 --width 256

Of the part with most edges, one aggregation and its gradient: all edges over the owned rows and the
halo behind them, and the two kinds of edges by themselves and added. With one device the exchange
is bytes over the bandwidth, and what both orders take is predicted of the parts:
`pack + exchange + all` and `pack + max(exchange, owned) + halo`. With as many devices as parts
`spmm` of a sharded graph is timed on all of them, with `overlap=True` and `overlap=False`, and
`shard` says what it would choose. Not of papers, of which there is one part alone.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from benchmarks.experiments import papers_part
from benchmarks.harness.record import write_records


@dataclasses.dataclass(frozen=True)
class Options:
    """Times an aggregation by rows with its edges in one graph and in two."""

    shapes: Annotated[tuple[str, ...], tyro.conf.Positional] = ("arxiv",)
    """Of `benchmark_graph`; or papers: see papers_part."""
    parts: int = 8
    """Of the graph."""
    width: int = 256
    """Features of a row."""
    dtype: str = "float32"
    """Of the rows."""
    scale: float = 1.0
    """Of the graphs' nodes and edges."""
    bandwidth: float = 370.0
    """GB/s that a device sends."""
    json: Path | None = None
    """A file for the results."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One part: rows of receivers, of senders the owned ones and then the halo's blocks."""

    offsets: np.ndarray
    senders: np.ndarray
    owned: int
    pair_rows: int

    def edges(self, of_halo: bool, num_senders: int) -> Any:
        """The graph of the edges that start in the halo, or not."""
        from jaxgnn import Graph

        chosen = (self.senders >= self.owned) == of_halo
        before = np.append(0, np.cumsum(chosen))
        senders = self.senders[chosen] - (self.owned if of_halo else 0)
        return _prepared(Graph.from_csr(before[self.offsets], senders, num_senders=num_senders))


def largest_part(csr: Any, split: Any) -> Part:
    """The part with most edges of a partition of a graph."""
    parts = split.parts
    owner, found = split.owner, split.statistics
    pairs = parts * (parts - 1)
    degrees = np.diff(csr.row_offsets)
    part = int(np.argmax(np.bincount(owner, degrees, parts)))
    own = np.flatnonzero(owner == part)
    rank = np.full(csr.num_nodes, -1, np.int64)
    rank[own] = np.arange(own.size)
    offsets = np.append(0, np.cumsum(degrees[own]))
    senders = csr.senders[np.repeat(owner == part, degrees)]
    foreign = np.zeros(csr.num_nodes, bool)
    foreign[senders] = True
    foreign[own] = False
    # Of each other part its nodes in order, in a block of its own.
    node = np.flatnonzero(foreign)
    node = node[np.argsort(owner[node], kind="stable")]
    block = owner[node].astype(np.int64)
    slot = np.arange(node.size) - np.searchsorted(block, np.arange(parts))[block]
    average = found.exchange_padding * found.halo_per_node * csr.num_nodes / pairs
    pair_rows = max(round(average), int(slot.max(initial=0)) + 1)
    rank[node] = own.size + block * pair_rows + slot
    return Part(offsets, rank[senders].astype(np.int32), own.size, pair_rows)


def papers(parts: int, scale: float) -> Part:
    """The part of `papers_part`."""
    nodes, edges = round(papers_part.NODES * scale), round(papers_part.EDGES * scale)
    graph, _, pair_rows = papers_part.make_part(nodes, edges, 1.0, parts)
    return Part(np.asarray(graph.row_offsets), np.asarray(graph.senders), nodes + 1, pair_rows)


def measure(shape: str, options: Options) -> dict[str, Any]:
    """Builds the part of a shape and times its aggregations."""
    import jax
    import jax.numpy as jnp

    from jaxgnn import Graph
    from jaxgnn.data import benchmark_graph
    from jaxgnn.distributed import partition

    csr = split = None
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        if shape == "papers":
            part = papers(options.parts, options.scale)
        else:
            csr = benchmark_graph(shape, options.scale)
            balance = 1.05 if options.scale == 1 else 2.0
            split = partition(csr, options.parts, edge_balance=balance)
            part = largest_part(csr, split)
        rows = options.parts * part.pair_rows
        rng = np.random.default_rng(0)
        graphs = {
            "all": _prepared(
                Graph.from_csr(part.offsets, part.senders, num_senders=part.owned + rows)
            ),
            "owned": part.edges(False, part.owned),
            "halo": part.edges(True, rows),
            "sends": _prepared(
                Graph.from_csr(
                    np.arange(rows + 1), rng.integers(0, part.owned, rows), num_senders=part.owned
                )
            ),
        }
    device = jax.devices()[0]
    graphs = {name: jax.device_put(graph, device) for name, graph in graphs.items()}

    times = {
        name: _milliseconds(graph, jnp.ones((graph.num_senders, options.width), options.dtype))
        for name, graph in graphs.items()
    }
    sent = (options.parts - 1) * part.pair_rows * options.width * jnp.dtype(options.dtype).itemsize
    exchange = 2 * sent / options.bandwidth / 1e6
    row = {
        "shape": shape,
        "device": device.device_kind,
        "parts": options.parts,
        "width": options.width,
        "dtype": options.dtype,
        "owned_nodes": part.owned,
        "halo_rows": rows,
        "edges": part.senders.size,
        "halo_edges": graphs["halo"].num_edges,
        **{f"{name}_ms": ms for name, ms in times.items()},
        "exchange_ms": round(exchange, 4),
        "together_ms": round(times["sends"] + exchange + times["all"], 4),
        "apart_ms": round(times["sends"] + max(exchange, times["owned"]) + times["halo"], 4),
    }
    if csr is not None and len(jax.devices()) >= options.parts:
        row |= measured(csr, split, options)
    return row


def measured(csr: Any, split: Any, options: Options) -> dict[str, Any]:
    """Both ways on as many devices as there are parts, whose results are compared."""
    import jax
    import jax.numpy as jnp

    from benchmarks.ours import scale
    from jaxgnn import Graph
    from jaxgnn.distributed import shard

    row: dict[str, Any] = {}
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        whole = Graph.from_csr(csr.row_offsets, csr.senders).with_row_schedule()
    mesh = scale.mesh_of(jax.devices()[: options.parts])
    joint, apart = (
        shard(whole, mesh, rows=scale.AXIS, partition=split, overlap=overlap)
        for overlap in (False, True)
    )
    itemsize = jnp.dtype(options.dtype).itemsize
    assert joint.edges is not None
    row["chosen"] = joint.edges.overlap(options.parts)
    row["explained"] = apart.explain(options.width, itemsize).splitlines()[-1]
    x = jax.jit(
        lambda: jax.random.normal(
            jax.random.key(0), (joint.num_senders, options.width), options.dtype
        ),
        out_shardings=joint.node_sharding,
    )()
    results = []
    for name, graph in (("together", joint), ("apart", apart)):
        row[f"measured_{name}_ms"] = _milliseconds(graph, x)
        results.append(jax.jit(_both_ways)(graph, x))
    for one, other in zip(*results, strict=True):
        error = float(jnp.max(jnp.abs(one - other)) / jnp.max(jnp.abs(one)))
        if not error <= (1e-5 if options.dtype == "float32" else 2e-2):
            raise RuntimeError(f"expected the same results both ways, got an error of {error:.2g}")
    return row


def _both_ways(graph: Any, x: Any) -> Any:
    """The sum over the neighbors, and its gradient."""
    import jax

    from jaxgnn import spmm

    out, pullback = jax.vjp(functools.partial(spmm, graph), x)
    return out, pullback(out)[0]


def _milliseconds(graph: Any, x: Any) -> float:
    import jax

    from benchmarks.harness import timing
    from benchmarks.harness.jax_programs import call_seconds

    call = functools.partial(jax.jit(_both_ways), graph, x)
    seconds = functools.partial(call_seconds, call, device=jax.default_backend())
    return timing.measure(seconds, 5, batch_seconds=0.05).ms


def _prepared(graph: Any) -> Any:
    return dataclasses.replace(graph.with_row_schedule(), edge_permutation=None)


def describe(row: dict[str, Any]) -> str:
    """A row for people."""
    measured = ""
    if "measured_apart_ms" in row:
        measured = (
            f"; measured {row['measured_together_ms']:.3f} and {row['measured_apart_ms']:.3f} ms"
            f"\n  {'chosen' if row['chosen'] else 'not chosen'} by shard; {row['explained']}"
        )
    share = row["halo_edges"] / max(row["edges"], 1)
    return (
        f"{row['shape']} on {row['device']}, {row['parts']} parts, F = {row['width']} "
        f"{row['dtype']}: {row['owned_nodes']:,} owned nodes, {row['halo_rows']:,} rows received,\n"
        f"  {share:.3f} of {row['edges']:,} edges from the halo\n"
        f"  both ways, ms: pack {row['sends_ms']:.3f}, exchange {row['exchange_ms']:.3f}, all "
        f"edges {row['all_ms']:.3f}; owned {row['owned_ms']:.3f}, halo {row['halo_ms']:.3f}\n"
        f"  predicted: {row['together_ms']:.3f} ms one after the other, {row['apart_ms']:.3f} "
        f"with overlap, {row['together_ms'] / row['apart_ms']:.2f} times as fast{measured}"
    )


def main() -> None:
    """Prints the figures of each shape."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    rows = []
    for shape in options.shapes:
        rows.append(measure(shape, options))
        print(describe(rows[-1]), flush=True)
        if options.json is not None:
            write_records(options.json, rows)


if __name__ == "__main__":
    main()
