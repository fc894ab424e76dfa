"""How unlike in size the rows are that a model with MaxK aggregates, and how alike in columns.

    python -m benchmarks.experiments.row_sizes [--models sage gcn gin] [--scale 0.02]

The models of the suite `training --models`, with its layer normalization and dropout and without,
on a Reddit-shaped graph with random features and untrained parameters. The size of a row is its
largest magnitude. GPU kernels add float32 rows with one scale where all sizes are within 16 of one
another (`cuda/maxk/fixed_point.cuh`); else each receiver has a scale of its own, and edges whose
row is below a sixteenth of the receiver's average are added in a further pass. The last column is
the share of the kept entries that lie in the k columns which most rows keep: on a GPU values of one
column may wait for one another (`benchmarks/experiments/alike_columns.py`). A count, which any
device gives.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.experiments.alike_columns import share_of_most
from benchmarks.harness import graphs, plan
from benchmarks.harness.setting import Setting
from benchmarks.ours import models
from benchmarks.suites.training import WIDTHS
from jaxgnn import CBSR
from jaxgnn.nn import _features

_ALIKE = 16.0


@dataclasses.dataclass(frozen=True)
class Options:
    """Counts rows of unlike magnitude."""

    models: tuple[str, ...] = ("sage", "gcn", "gin")
    """Of the suite."""
    k: int = 32
    """Entries that MaxK keeps."""
    scale: float = 0.02
    """Of the Reddit-shaped graph's nodes and edges."""


@dataclasses.dataclass(frozen=True)
class Plain(Setting):
    """The same step without layer normalization and dropout."""

    @property
    def regularized(self) -> bool:
        return False


@contextlib.contextmanager
def rows_aggregated() -> Iterator[list[CBSR]]:
    """The sparse rows that `maxk_spmm` is called with meanwhile."""
    seen: list[CBSR] = []
    aggregate = _features.maxk_spmm

    def looked_at(graph: Any, x: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(x)
        return aggregate(graph, x, *arguments, **options)

    with mock.patch.object(_features, "maxk_spmm", looked_at):
        yield seen


def spread(values: np.ndarray, stored: graphs.StoredGraph) -> tuple[float, float, float]:
    """The largest size by the smallest that is not 0; the shares of the edges, and of the
    receivers, whose sum has rows that are small for it."""
    sizes = np.abs(values).max(axis=1)
    found = sizes[sizes > 0]
    receivers, by_edge = stored.receivers, sizes[stored.senders]
    degrees = np.bincount(receivers, minlength=stored.num_nodes)
    mean = np.bincount(receivers, by_edge, stored.num_nodes) / np.maximum(degrees, 1)
    small = (by_edge > 0) & (by_edge < mean[receivers] / _ALIKE)
    with_some = np.unique(receivers[small]).size / stored.num_nodes
    return float(found.max() / found.min()), float(small.mean()), with_some


def main(options: Options) -> None:
    """Counts, and prints."""
    first, *hidden, last = WIDTHS
    widths = [first, *hidden, *hidden[-2:], last]
    table = Table(title="rows that each convolution aggregates", title_justify="left")
    for column in (
        "model",
        "convolution",
        "largest by smallest",
        "small edges",
        "receivers with some",
        "most kept columns",
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    with graphs.stored("reddit", options.scale) as stored:
        graph = stored.to_graph()
        x = jax.random.normal(jax.random.key(1), (stored.num_nodes, first))
        for model in options.models:
            for kind in (Setting, Plain):
                setting = kind(plan.OURS, model, options.k, input_layer=True)
                apply = models.model_of(setting, widths)
                params = jax.tree.map(jnp.asarray, models.initial_parameters(setting, widths))
                with rows_aggregated() as seen:
                    apply(params, graph, x, jax.random.key(0))
                name = model if setting.regularized else f"{model}, no norm, no dropout"
                for number, cbsr in enumerate(seen, 1):
                    ratio, edges, receivers = spread(np.asarray(cbsr.values), stored)
                    numbers = f"{number}", f"{ratio:,.1f}", f"{edges:.2%}", f"{receivers:.1%}"
                    table.add_row(name, *numbers, f"{share_of_most(cbsr):.0%}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.row_sizes"))
