"""Which of MaxK's kernels runs on a GPU, by estimates from what is known when a program is traced.

An aggregation of sparse rows and its gradient have three engines each: `"rows"` walks the graph's
rows, `"windows"` reads a sender once for receivers that share it (`Graph.with_windows`), `"dense"`
is `spmm` of the dense rows, the fastest where most entries are kept. An estimate is a sum of terms,
counts times rates. The rates are fitted to one H200's times by
`benchmarks/experiments/maxk_choice.py`. Another GPU is taken to scale all engines alike, so that
the choice is the same there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxgnn.graph import Graph

Engine: TypeAlias = Literal["rows", "windows", "dense"]
Operation: TypeAlias = Literal["spgemm", "sspmm"]
Rates: TypeAlias = dict[tuple[Operation, Engine], dict[str, float]]
"""Picoseconds of each term."""

SCATTER_BELOW = 48  # values a row, from which on gathering beats scattering them

_SLICE_BYTES = 128  # of a dense row
_L2_BYTES = 50e6
_MULTIPROCESSORS = 132
_ENTRIES_AN_EDGE = 0.55


# In 64-bit integers, where the order of sums must not count, over windows.
_IN_INTEGERS = 2.6

# fmt: off
RATES: Rates = {
    ("spgemm", "rows"): {
        "edge": 6.053,
        "edge_lane": 2.468,
        "launch": 28.76,
        "missed": 1.77,
        "read": 1.428,
        "row_slice": 68.44,
        "weighted_edge": 27.94,
    },
    ("spgemm", "windows"): {
        "edge_lane": 0.6648,
        "entry": 9.83,
        "entry_lane": 1.224,
        "launch": 2.462,
        "missed": 1.678,
        "read": 2.555,
        "row_lane": 0.3813,
        "row_slice": 68.19,
        "tail_lane": 7.593,
        "weighted_edge": 16.66,
    },
    ("spgemm", "dense"): {
        "dense_byte": 0.1973,
        "dense_missed": 15.38,
        "dense_slice": 9.324,
        "launch": 87.78,
    },
    ("sspmm", "rows"): {
        "edge": 8.638,
        "edge_lane": 4.215,
        "launch": 9.856,
        "missed": 29.48,
        "row_slice": 45.18,
        "gathered_edge": 21.31,
        "gathered_entry": 0.9613,
        "gathered_launch": 22.58,
        "gathered_missed": 19.59,
        "weighted_edge": 1.013,
    },
    ("sspmm", "windows"): {
        "edge": 1.891,
        "entry": 0.8053,
        "entry_lane": 5.157,
        "launch": 23.72,
        "missed": 12.87,
        "row_lane": 6.496,
        "row_slice": 36.5,
        "weighted_edge": 7.51,
    },
    ("sspmm", "dense"): {
        "dense_byte": 0.5339,
        "dense_missed": 33.93,
        "dense_slice": 3.338,
        "launch": 68.15,
    },
}
# fmt: on


class Case(NamedTuple):
    """One call, by its shapes.

    Attributes:
        num_edges, num_dense, num_sparse: edges, dense rows and sparse rows.
        width, k: columns of a dense row, entries of a sparse one.
        itemsize: bytes of a value.
        num_entries, num_parts: of the windows; 0 without.
        weighted: the edges have weights.
        deterministic: the gradient's bits are to be the same in every run.
    """

    num_edges: int
    num_dense: int
    num_sparse: int
    width: int
    k: int
    itemsize: int
    num_entries: int = 0
    num_parts: int = 0
    weighted: bool = False
    deterministic: bool = False


def of_graph(graph: Graph, width: int, k: int, dtype: DTypeLike) -> Case:
    """What `maxk_spmm` of the graph, and its gradient, are."""
    windows = graph.windows
    if windows is not None and width > windows.width:
        windows = None
    return Case(
        num_edges=graph.num_edges,
        num_dense=graph.num_receivers,
        num_sparse=graph.num_senders,
        width=width,
        k=k,
        itemsize=jnp.dtype(dtype).itemsize,
        num_entries=0 if windows is None else windows.senders.shape[0],
        num_parts=0 if windows is None else windows.parts.shape[0],
    )


def _missed(size: float) -> float:
    """The share of random reads of an array of that many bytes that the L2 cache does not have."""
    return max(0.0, 1 - _L2_BYTES / size) if size else 0.0


def _gathers(case: Case) -> bool:
    """Whether the gradient by rows gathers dense rows: else it scatters the kept entries."""
    return case.deterministic or case.itemsize != 4 or case.k >= SCATTER_BELOW


def terms(engine: Engine, operation: Operation, case: Case) -> dict[str, float]:
    """How many of each term an engine has; terms of different kernels have names of their own."""
    edges, width, itemsize = case.num_edges, case.width, case.itemsize
    column = 1 if width <= 256 else 2  # bytes
    vectors = -(-case.k // 4)  # of four entries
    lanes = 1 << (vectors - 1).bit_length()
    # Without windows nothing says how much the rows share: as on the shapes that were timed.
    different = case.num_entries or _ENTRIES_AN_EDGE * edges
    slices = width * itemsize / _SLICE_BYTES
    rows_read = case.num_sparse if operation == "spgemm" else case.num_dense
    missed_slices = different * slices * _missed(rows_read * width * itemsize)
    launch = {"launch": 1e6, "weighted_edge": edges if case.weighted else 0.0}
    if engine == "dense":
        # The kept entries' dense rows are written, or read, once more.
        entry_bytes = width * itemsize + case.k * (itemsize + column)
        return launch | {
            "dense_slice": edges * slices,
            "dense_missed": missed_slices,
            "dense_byte": case.num_sparse * entry_bytes,
        }
    if engine == "rows" and operation == "sspmm" and _gathers(case):
        return {
            "gathered_launch": 1e6,
            "gathered_edge": edges,
            "gathered_entry": edges * 4 * vectors,
            "gathered_missed": missed_slices,
            "gathered_row_entry": case.num_sparse * 4 * vectors,
        }
    entry_bytes = 4 * vectors * (itemsize + column)
    read = entry_bytes / 32 if operation == "spgemm" else vectors / 2
    windows = engine == "windows"
    out = launch | {
        "edge": edges,
        "edge_lane": edges * lanes,
        "read": (case.num_entries if windows else edges) * read,
        "missed": different * read * _missed(case.num_sparse * entry_bytes),
        "row_slice": case.num_dense * slices,
        "row_lane": case.num_dense * lanes,
        # Sparse rows are padded to vectors beforehand.
        "padded": case.num_sparse * case.k if case.k % 4 else 0.0,
    }
    if windows:
        tail = _MULTIPROCESSORS * edges / max(case.num_parts, 1)  # the last part's, alone
        out |= {
            "entry": case.num_entries,
            "entry_lane": case.num_entries * lanes,
            "tail": tail,
            "tail_lane": tail * lanes,
        }
    return out


def estimate(case: Case, operation: Operation, rates: Rates | None = None) -> dict[Engine, float]:
    """Seconds of each engine that has what it needs, by `RATES` if no others are given."""
    rates = RATES if rates is None else rates
    engines: tuple[Engine, ...] = ("rows", "windows", "dense")
    seconds: dict[Engine, float] = {}
    for engine in engines:
        if engine == "windows" and not case.num_parts:
            continue
        own = rates[operation, engine]
        counts = terms(engine, operation, case)
        seconds[engine] = 1e-12 * sum(n * own.get(name, 0.0) for name, n in counts.items())
        if engine == "windows" and operation == "sspmm" and case.deterministic:
            seconds[engine] *= _IN_INTEGERS
    return seconds


def choose(case: Case, operation: Operation) -> Engine:
    """The fastest engine by estimate."""
    seconds = estimate(case, operation)
    return min(seconds, key=lambda engine: seconds[engine])
