"""MaxK's products of rows that keep the same columns, as those of a model do, beside random ones.

    python -m benchmarks.experiments.alike_columns [--shape reddit] [--k 16 32] [--json FILE]

Rows are normal, and each column has a normal offset of its own, `spread` times as large: with 0
every row keeps columns of its own, with more most rows keep the same. The products' time depends on
that where values of one column lie in one bank of shared memory. For each k and spread the share of
the kept entries in the k columns that most rows keep, and the milliseconds of the product and of
its gradient for the values, over windows and by rows: medians of calls in turns in one process.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.experiments.dropout import in_turns, ready
from benchmarks.harness import graphs
from benchmarks.harness.record import write_records
from jaxgnn import CBSR, Graph, config, maxk, maxk_spmm

_ENGINES = ("windows", "rows")


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    shape: str = "reddit"
    """Of a benchmark graph."""
    scale: float = 1.0
    """Of the graph's nodes and edges."""
    k: tuple[int, ...] = (16, 32)
    spreads: tuple[float, ...] = (0.0, 1.0, 3.0, 10.0)
    """The columns' offsets by the rows' values."""
    width: int = 256
    dtype: str = "float32"
    repeats: int = 9
    cache: Path | None = None
    """A folder in which the graph is kept."""
    json: Path | None = None
    """A file for the results."""


def rows_of(options: Options, num_rows: int, spread: float) -> jax.Array:
    """Normal rows, with an offset for each column."""
    of_rows, of_columns = jax.random.split(jax.random.key(0))
    offsets = spread * jax.random.normal(of_columns, (options.width,))
    return (jax.random.normal(of_rows, (num_rows, options.width)) + offsets).astype(options.dtype)


def share_of_most(cbsr: CBSR) -> float:
    """Of the kept entries, those in the k columns that most rows keep."""
    counts = np.bincount(np.asarray(cbsr.indices).ravel(), minlength=cbsr.width)
    return float(np.sort(counts)[-cbsr.values.shape[1] :].sum() / counts.sum())


def cases(graph: Graph, cbsr: CBSR, ct: jax.Array) -> dict[str, Callable[[], Any]]:
    """The product and its gradient by each engine."""

    def product(engine: Any, graph: Graph, cbsr: CBSR) -> jax.Array:
        with config.use(maxk_engine=engine):  # whenever it is traced
            return maxk_spmm(graph, cbsr, impl="kernel")

    def gradient(engine: Any, graph: Graph, cbsr: CBSR, ct: jax.Array) -> jax.Array:
        def of_values(values: jax.Array) -> jax.Array:
            return product(engine, graph, dataclasses.replace(cbsr, values=values))

        return jax.vjp(of_values, cbsr.values)[1](ct)[0]

    calls = {}
    for engine in _ENGINES:
        calls[f"forward, {engine}"] = ready(functools.partial(product, engine), graph, cbsr)
        calls[f"backward, {engine}"] = ready(functools.partial(gradient, engine), graph, cbsr, ct)
    return calls


def main() -> None:
    """Measures and prints a table."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    with graphs.stored(options.shape, options.scale, options.cache) as stored:
        graph = stored.to_graph().with_windows()
    names = [f"{way}, {engine}" for engine in _ENGINES for way in ("forward", "backward")]
    table = Table("k", "spread", "share", *names, title="milliseconds", title_justify="left")
    records = []
    ct = rows_of(options, graph.num_receivers, 0.0)
    for k in options.k:
        for spread in options.spreads:
            x = rows_of(options, graph.num_senders, spread)
            cbsr = jax.jit(functools.partial(maxk, k=k))(x)
            share = share_of_most(cbsr)
            ms = {
                name: round(1e3 * seconds, 4)
                for name, seconds in in_turns(cases(graph, cbsr, ct), options.repeats).items()
            }
            table.add_row(
                f"{k}", f"{spread:g}", f"{share:.0%}", *(f"{ms[name]:.3f}" for name in names)
            )
            records.append({"k": k, "spread": spread, "share": share, "ms": ms})
            if options.json is not None:  # a run that is cut off keeps what it has
                facts = {"shape": options.shape, "width": options.width, "dtype": options.dtype}
                write_records(options.json, records, **facts)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
