"""Rows of several chunks: on a GPU a block of 128 or 256 threads takes one, or warps its chunks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, spmm
from jaxgnn.graph._build import row_chunks
from tests.support.oracle import assert_close, brute_force_spmm, draw_array

NODES = 400


def graph_with(longest: int, loops: bool = False) -> Graph:
    """Rows of 0 to 40 edges, and between them a few longer than 256, up to `longest`."""
    lengths = np.arange(NODES) % 41
    lengths[::97] = [257, 512, 513, longest, 600]
    receivers = np.repeat(np.arange(NODES), lengths)
    senders = receivers if loops else (7 * np.arange(receivers.size) + 3) % NODES
    return Graph.from_edges(senders, receivers, num_nodes=NODES)


def with_padded_chunks(graph: Graph) -> Graph:
    """The graph as batches have it: nothing is known of its longest row."""
    chunks = row_chunks.pad_chunks(graph.row_chunks, graph.num_edges, graph.num_receivers)
    return dataclasses.replace(graph, row_chunks=jax.tree.map(jnp.asarray, chunks))


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("longest", [600, 5_000, 40_000])
def test_equals_brute_force(longest, dtype):
    """Teams of 2 to 32 lanes, with lanes beyond the width."""
    with jax.enable_x64(dtype == "float64"):
        graph = graph_with(longest)
        rng = np.random.default_rng(0)
        vector = 16 // np.dtype(dtype).itemsize
        for vectors, heads, reduce in [(2, None, "sum"), (3, None, "mean"), (7, 1, "sum"),
                                       (16, 2, "mean"), (17, None, "sum")]:  # fmt: skip
            x = draw_array(rng, (NODES, *([heads] if heads else []), vectors * vector), dtype)
            weights = None
            if heads:
                sums = "float64" if dtype == "float64" else "float32"
                weights = draw_array(rng, (graph.num_edges, heads), sums)
            expected = brute_force_spmm(graph, x, weights, reduce, False)
            for one in (graph, graph.with_row_schedule(), with_padded_chunks(graph)):
                out = jax.jit(spmm, static_argnames="reduce")(one, x, weights, reduce=reduce)
                assert_close(out, *expected)


@pytest.mark.parametrize("longest", [600, 5_000])
def test_runs_are_bit_equal(longest):
    graph = graph_with(longest)
    x = draw_array(np.random.default_rng(1), (NODES, 32), "float32")
    run = jax.jit(spmm)
    first = np.asarray(run(graph, x))
    for _ in range(5):
        np.testing.assert_array_equal(run(graph, x), first)


def test_non_finite_rows_reach_their_receivers_alone():
    graph = graph_with(5_000, loops=True)
    x = jnp.ones((NODES, 16)).at[97].set(jnp.nan).at[3 * 97].set(jnp.inf)
    out = np.asarray(spmm(graph, x))
    assert np.isnan(out[97]).all() and np.isinf(out[3 * 97]).all()
    others = np.delete(np.arange(NODES), [97, 3 * 97])
    np.testing.assert_array_equal(out[others, 0], np.diff(graph.row_offsets)[others])


def test_programs_depend_on_the_longest_row_by_powers_of_two():
    """A little longer, and the program is the same; batches never depend on it."""
    bounds = [graph_with(n).row_chunks.longest for n in (600, 700, 1_000, 1_025, 5_000)]
    assert bounds == [1024, 1024, 1024, 2048, 8192]
    assert graph_with(30).row_chunks.longest == 1024  # of the row of 600
    assert with_padded_chunks(graph_with(5_000)).row_chunks.longest is None
    short = Graph.from_edges(np.arange(9), np.arange(9), num_nodes=9)
    assert short.row_chunks.longest is None
