"""Errors of `spmm` by degree, width and dtype, by rows and over tiles: [MOST_DEGREE [WIDTH...]].

Each graph has two windows of rows of one degree, from 1 to MOST_DEGREE (40,000 by default), whose
columns most of their rows read, so that all edges lie in tiles. Prints, for each
width and dtype, the largest relative error of a row (`row_error` of `tests/support/oracle_rows.py`)
beside the exact sum of the rounded features in float64: of features of both signs and of one, and
of weighted sums. On a CPU tiles run by rows: there it shows that the script runs.
"""

import itertools
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxgnn import Graph, build_info, spmm
from tests.support.oracle_rows import row_error

DEGREES = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 40_000)
WIDTHS = (1, 16, 64, 256, 602)
DTYPES = ("float32", "bfloat16", "float16")
IMPLS = ("rows", "tiles")
ROWS = 128


class Case(NamedTuple):
    """What is summed: the name, whether features have one sign, whether edges have weights."""

    name: str
    positive: bool
    weighted: bool


CASES = (
    Case("both signs", False, False),
    Case("one sign", True, False),
    Case("weighted", False, True),
)


def graph_of(degree: int) -> Graph:
    """Two windows of rows of this degree; a row has four of five of its window's columns."""
    rng = np.random.default_rng(degree)
    columns = -(-5 * degree // 4)
    senders = [
        row // 64 * columns + rng.permutation(columns)[:degree]
        for row in range(ROWS)
    ]  # fmt: skip
    receivers = np.repeat(np.arange(ROWS), degree)
    graph = Graph.from_edges(
        np.concatenate(senders), receivers, num_senders=2 * columns, num_receivers=ROWS
    )
    return graph.with_tiles(order="numbered")


def errors_of(graph: Graph, case: Case, width: int, dtype: str) -> dict[str, float]:
    """The largest error of a row, by engine."""
    keys = jax.random.split(jax.random.key(width))
    x = jax.random.normal(keys[0], (graph.num_senders, width))
    x = (jnp.abs(x) if case.positive else x).astype(dtype)
    weights = jax.random.normal(keys[1], (graph.num_edges,)) if case.weighted else None
    values = np.ones(graph.num_edges) if weights is None else np.asarray(weights, np.float64)
    matrix = scipy.sparse.csr_matrix(
        (values, np.asarray(graph.senders), np.asarray(graph.row_offsets)),
        shape=(graph.num_receivers, graph.num_senders),
    )
    exact = matrix @ np.asarray(x.astype(jnp.float32), np.float64)

    def error(impl: Any) -> float:
        got = spmm(graph, x, weights, impl=impl)
        return row_error(np.asarray(got.astype(jnp.float32)), exact)

    return {impl: error(impl) for impl in IMPLS}


def main(arguments: list[str]) -> None:
    most = int(arguments[0]) if arguments else DEGREES[-1]
    widths = tuple(map(int, arguments[1:])) or WIDTHS
    graphs = {degree: graph_of(degree) for degree in DEGREES if degree <= most}
    print(f"{jax.devices()[0].device_kind}, jaxlib {build_info().jaxlib}\n")
    for case, width in itertools.product(CASES, widths):
        names = [f"{dtype}, {impl}" for dtype in DTYPES for impl in IMPLS]
        print(f"| {case.name}, F = {width}: degree | in tiles | {' | '.join(names)} |")
        print(f"| ---: | ---: |{' ---: |' * len(names)}")
        for degree, graph in graphs.items():
            assert graph.tiles is not None
            found = [errors_of(graph, case, width, dtype) for dtype in DTYPES]
            cells = [f"{of[impl]:.2g}" for of in found for impl in IMPLS]
            share = f"{graph.tiles.tile_share:.0%}"
            print(f"| {degree:,} | {share} | {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
