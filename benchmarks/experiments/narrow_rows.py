"""Edge values and features of a few numbers on a CPU: ours, plain JAX and PyTorch.

    python -m benchmarks.experiments.narrow_rows [--widths 1 2 3 4 7] [--degrees 5 20] [--json FILE]

The operations are those whose rows are often narrow: the softmax of edge scores, sums of edge
values, sums over neighbors, the same with weights, maxima, and dot products. Plain JAX gathers by
sorted receivers and reduces with `jax.ops.segment_sum`; PyTorch has what PyG calls: its `softmax`
over a `ptr`, `index_add`, a sparse product by MKL, `scatter_reduce`. Each is timed alone and with
its gradient, one library after the other, and the fastest of the others counts.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import jaxgnn
from benchmarks.harness import timing
from benchmarks.harness.jax_programs import call_seconds
from benchmarks.harness.record import write_records
from jaxgnn import Graph

# Threads of OpenMP wait for work in a loop for a while, and take a processor from who comes next.
_PAUSE = 0.25


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    widths: tuple[int, ...] = (1, 2, 3, 4, 7)
    """Heads of edge values, features of nodes."""
    degrees: tuple[int, ...] = (5, 20)
    """Edges a node."""
    nodes: int = 20_000
    """Of the graph."""
    repeats: int = 9
    """Batches of calls, 20 ms each, whose median counts."""
    json: Path | None = None
    """A file for the results."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The edges by receiver, and what the operations take."""

    graph: Graph
    senders: np.ndarray
    receivers: np.ndarray
    offsets: np.ndarray
    x: np.ndarray
    edges: np.ndarray
    weights: np.ndarray


def inputs(nodes: int, degree: int, width: int) -> Inputs:
    """A graph of random ends."""
    rng = np.random.default_rng(0)
    count = nodes * degree
    graph = Graph.from_edges(
        rng.integers(nodes, size=count), rng.integers(nodes, size=count), num_nodes=nodes
    )
    return Inputs(
        graph,
        np.asarray(graph.senders),
        np.asarray(graph.receivers),
        np.asarray(graph.row_offsets),
        rng.standard_normal((nodes, width), np.float32),
        rng.standard_normal((count, width), np.float32),
        rng.random(count, np.float32),
    )


# By operation: whether it is of edge values, ours, and plain JAX's of the sorted edges.
def _ours() -> dict[str, tuple[bool, Callable[..., jax.Array]]]:
    return {
        "segment_softmax": (True, lambda v, g, w: jaxgnn.segment_softmax(g, v)),
        "segment_reduce": (True, lambda v, g, w: jaxgnn.segment_reduce(g, v)),
        "spmm": (False, lambda v, g, w: jaxgnn.spmm(g, v)),
        "spmm, weighted": (False, lambda v, g, w: jaxgnn.spmm(g, v, w)),
        "spmm, max": (False, lambda v, g, w: jaxgnn.spmm(g, v, reduce="max")),
        "sddmm": (False, lambda v, g, w: jaxgnn.sddmm(g, v, v)),
    }


def _plain(nodes: int) -> dict[str, Callable[..., jax.Array]]:
    def total(values: jax.Array, receivers: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(values, receivers, nodes, indices_are_sorted=True)

    def most(values: jax.Array, receivers: jax.Array) -> jax.Array:
        return jax.ops.segment_max(values, receivers, nodes, indices_are_sorted=True)

    def softmax(v: jax.Array, s: jax.Array, r: jax.Array, w: jax.Array) -> jax.Array:
        powers = jnp.exp(v - jax.lax.stop_gradient(most(v, r))[r])
        return powers / total(powers, r)[r]

    return {
        "segment_softmax": softmax,
        "segment_reduce": lambda v, s, r, w: total(v, r),
        "spmm": lambda v, s, r, w: total(v[s], r),
        "spmm, weighted": lambda v, s, r, w: total(v[s] * w[:, None], r),
        "spmm, max": lambda v, s, r, w: most(v[s], r),
        "sddmm": lambda v, s, r, w: (v[s] * v[r]).sum(-1),
    }


def _torch(data: Inputs) -> dict[str, Callable[[Any], Any]]:
    """Functions of the values; none without PyTorch and PyG."""
    try:
        import torch
        from torch_geometric.utils import softmax
    except ImportError:
        return {}
    nodes, width = data.x.shape
    s, r = (torch.from_numpy(a.astype(np.int64)) for a in (data.senders, data.receivers))
    offsets = torch.from_numpy(data.offsets.astype(np.int64))
    w = torch.from_numpy(data.weights)
    index = r[:, None].expand(-1, width)

    def matrix(values: Any) -> Any:
        return torch.sparse_csr_tensor(offsets, s, values, (nodes, nodes))

    ones, weighted = matrix(torch.ones_like(w)), matrix(w)
    return {
        "segment_softmax": lambda v: softmax(v, ptr=offsets),
        "segment_reduce": lambda v: torch.zeros(nodes, width).index_add(0, r, v),
        "spmm": lambda v: ones @ v,
        "spmm, weighted": lambda v: weighted @ v,
        "spmm, max": lambda v: torch.zeros(nodes, width).scatter_reduce(
            0, index, v[s], "amax", include_self=False
        ),
        "sddmm": lambda v: (v[s] * v[r]).sum(-1),
    }


def jax_call(
    function: Callable[..., jax.Array], gradient: bool, *operands: Any
) -> Callable[[], Any]:
    """A call of the function, or of it and its gradient by a cotangent of ones."""

    def both(values: jax.Array, *others: Any) -> Any:
        out, pull = jax.vjp(lambda v: function(v, *others), values)
        return out, pull(jnp.ones_like(out))

    run = jax.jit(both if gradient else function)
    return lambda: run(*operands)


def torch_call(
    function: Callable[[Any], Any], gradient: bool, values: np.ndarray
) -> Callable[[], Any]:
    """The same in PyTorch."""
    import torch

    given = torch.from_numpy(values).requires_grad_(gradient)

    def both() -> Any:
        out = function(given)
        return out, torch.autograd.grad(out, given, torch.ones_like(out))

    return both if gradient else lambda: function(given)


def milliseconds(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median of each, which have their turns one after the other."""
    found = {}
    for name, call in calls.items():
        time.sleep(_PAUSE)
        seconds = functools.partial(call_seconds, call, device="cpu")
        found[name] = round(timing.measure(seconds, repeats, batch_seconds=0.02).ms, 4)
    return found


def measured(name: str, data: Inputs, gradient: bool, repeats: int) -> dict[str, Any]:
    """One operation by all libraries."""
    of_edges, ours = _ours()[name]
    values = data.edges if of_edges else data.x
    s, r, w = map(jnp.asarray, (data.senders, data.receivers, data.weights))
    calls = {
        "jaxgnn": jax_call(ours, gradient, jnp.asarray(values), data.graph, w),
        "jax": jax_call(_plain(data.x.shape[0])[name], gradient, jnp.asarray(values), s, r, w),
    }
    if name in (functions := _torch(data)):
        calls["torch"] = torch_call(functions[name], gradient, values)
    found = milliseconds(calls, repeats)
    best = min(ms for library, ms in found.items() if library != "jaxgnn")
    return {**{f"{k}_ms": ms for k, ms in found.items()}, "ratio": round(best / found["jaxgnn"], 2)}


def main(options: Options) -> None:
    """Measures, prints a table, and with `--json` writes a file."""
    table = Table("operation", "edges a node", "F", "pass", "ms", "JAX, ms", "torch, ms", "ratio")
    records = []
    for degree in options.degrees:
        for width in options.widths:
            data = inputs(options.nodes, degree, width)
            for name in _ours():
                for gradient in (False, True):
                    row = measured(name, data, gradient, options.repeats)
                    part = "with gradient" if gradient else "forward"
                    cells = (name, degree, width, part, row["jaxgnn_ms"], row["jax_ms"])
                    table.add_row(*map(str, (*cells, row.get("torch_ms", ""), row["ratio"])))
                    case = {"operation": name, "degree": degree, "width": width, "pass": part}
                    records.append({**case, "nodes": options.nodes, **row})
                    if options.json is not None:  # a run that is cut off keeps what it has
                        write_records(options.json, records)
    Console(width=110).print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.narrow_rows"))
