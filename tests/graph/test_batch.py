"""Disjoint unions and padding: structure, masks, and one trace a bucket."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, batch, readout, spmm
from jaxgnn.graph._build import row_chunks
from tests.support.strategies import dense_adjacency, examples, graphs, skewed_graph

FEW = examples(20)


@st.composite
def graph_lists(draw, *, square=None, min_size=0):
    square = draw(st.booleans()) if square is None else square
    return draw(st.lists(graphs(square=square, max_nodes=6), min_size=min_size, max_size=4))


def block_diagonal(members) -> np.ndarray:
    blocks = [dense_adjacency(graph) for graph in members]
    shape = (sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks))
    return np.asarray(scipy.linalg.block_diag(*blocks)).reshape(shape)


def capacity_shapes(graph: Graph) -> bool:
    return graph.row_chunks.table.shape[0] == row_chunks.chunk_capacity(
        graph.num_edges, graph.num_receivers
    ) and (
        graph.transpose_row_chunks.table.shape[0]
        == row_chunks.chunk_capacity(graph.num_edges, graph.num_senders)
    )


@FEW
@given(members=graph_lists())
def test_disjoint_union(members):
    union = batch.disjoint_union(members)
    assert union.num_graphs == len(members)
    np.testing.assert_array_equal(dense_adjacency(union.graph), block_diagonal(members))
    # An edge of each node to its graph.
    expected = np.repeat(np.arange(len(members)), [g.num_receivers for g in members])
    np.testing.assert_array_equal(dense_adjacency(union.membership).nonzero()[0], expected)
    assert not union.membership.is_square
    assert union.graph.is_square == all(g.is_square for g in members)
    # The edges, and so their data, are those of the graphs one after the other.
    offset, at = 0, 0
    for graph in members:
        part = np.asarray(union.graph.senders)[at : at + graph.num_edges]
        np.testing.assert_array_equal(part, np.asarray(graph.senders) + offset)
        offset, at = offset + graph.num_senders, at + graph.num_edges
    np.testing.assert_array_equal(union.graph.edge_permutation, np.arange(at))
    for mask in (union.node_mask, union.sender_mask, union.edge_mask, union.graph_mask):
        assert np.asarray(mask).all()
    assert capacity_shapes(union.graph)


@FEW
@given(
    members=graph_lists(),
    nodes=st.integers(1, 5),
    senders=st.integers(1, 5),
    edges=st.integers(0, 20),
    extra_graphs=st.integers(1, 3),
)
def test_pad(members, nodes, senders, edges, extra_graphs):
    union = batch.disjoint_union(members)
    before = union.graph
    square = before.is_square
    padded = batch.pad(
        union,
        num_nodes=before.num_receivers + nodes,
        num_senders=None if square else before.num_senders + senders,
        num_edges=before.num_edges + edges,
        num_graphs=union.num_graphs + extra_graphs,
    )
    after = padded.graph
    assert (after.num_receivers, after.num_edges, padded.num_graphs) == (
        before.num_receivers + nodes,
        before.num_edges + edges,
        union.num_graphs + extra_graphs,
    )
    assert after.is_square == square and capacity_shapes(after)
    # The masks: what was there comes first.
    for mask, real in (
        (padded.node_mask, before.num_receivers),
        (padded.sender_mask, before.num_senders),
        (padded.edge_mask, before.num_edges),
        (padded.graph_mask, union.num_graphs),
    ):
        np.testing.assert_array_equal(mask, np.arange(mask.size) < real)
    # Padding edges touch padding nodes only, evenly.
    dense = dense_adjacency(after)
    real = dense[: before.num_receivers, : before.num_senders]
    np.testing.assert_array_equal(real, dense_adjacency(before))
    padding = dense[before.num_receivers :, before.num_senders :]
    assert padding.sum() == edges == dense.sum() - real.sum()
    assert np.ptp(padding.sum(axis=1)) <= 1 and np.ptp(padding.sum(axis=0)) <= 1
    expected = np.concatenate([np.arange(before.num_edges), np.full(edges, -1)])
    np.testing.assert_array_equal(after.edge_permutation, expected)
    # Padding nodes belong to the first padding graph.
    membership = dense_adjacency(padded.membership)
    np.testing.assert_array_equal(membership[: union.num_graphs, : before.num_receivers],
                                  dense_adjacency(union.membership))  # fmt: skip
    assert membership[union.num_graphs, before.num_receivers :].all()
    assert membership.sum() == after.num_receivers
    # Padding twice keeps the first masks.
    again = batch.pad(padded, num_nodes=after.num_receivers + 1)
    assert np.sum(np.asarray(again.node_mask)) == before.num_receivers
    assert again.num_graphs == padded.num_graphs + 1
    np.testing.assert_array_equal(again.graph.edge_permutation, expected)


def test_pad_keeps_symmetry():
    """A symmetric batch stays one: it then holds one copy of its structure."""
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], undirected=True)
    padded = batch.pad(graph, num_nodes=7, num_edges=11)
    assert padded.graph.transpose_receivers is padded.graph.senders


@pytest.mark.parametrize("pad", [
    lambda union: batch.pad(union, num_nodes=10, num_edges=12, num_graphs=4),
    batch.pad_to_bucket,
])  # fmt: skip
def test_padded_symmetric_and_directed_batches_share_a_structure(pad):
    padded = [
        pad(batch.disjoint_union([Graph.from_edges(*ends, num_nodes=3)] * 2))
        for ends in (([0, 1], [1, 0]), ([0, 1], [1, 2]))
    ]
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *padded)
    assert not stacked.graph.symmetric
    x = jnp.arange(2.0 * padded[0].graph.num_nodes).reshape(-1, 2)
    for one in padded:
        expected = dense_adjacency(one.graph).T @ np.asarray(x)
        np.testing.assert_allclose(spmm(one.graph, x, transpose=True), expected)


def test_batches_of_graphs_of_one_node_share_a_structure():
    one, pairs = (
        [Graph.from_edges([], [], num_nodes=n) for n in sizes] for sizes in ((1, 1), (0, 2))
    )
    padded = [
        batch.pad(batch.disjoint_union(graphs), num_nodes=3, num_graphs=3)
        for graphs in (one, pairs)
    ]
    assert jax.tree.structure(padded[0]) == jax.tree.structure(padded[1])


def test_pad_errors():
    graph = Graph.from_edges([0, 1], [1, 0])
    with pytest.raises(ValueError, match="num_nodes: expected at least the batch's 2, got 1"):
        batch.pad(graph, num_nodes=1)
    with pytest.raises(ValueError, match="num_nodes: expected more than 2, for the 3 padding"):
        batch.pad(graph, num_edges=5)
    with pytest.raises(ValueError, match="num_graphs: expected more than 1, for the 2 padding"):
        batch.pad(graph, num_nodes=4, num_graphs=1)
    with pytest.raises(ValueError, match="num_senders: expected none for square graphs"):
        batch.pad(graph, num_senders=4)
    rectangular = Graph.from_edges([0, 1], [1, 0], num_senders=2, num_receivers=2)
    with pytest.raises(ValueError, match="num_senders: expected more than 2"):
        batch.pad(rectangular, num_nodes=4, num_edges=3)
    with pytest.raises(ValueError, match=r"all square or all rectangular, got graphs\[0\]"):
        batch.disjoint_union([graph, rectangular])
    with pytest.raises(TypeError, match=r"graphs\[1\]: expected a jaxgnn.Graph, got int"):
        batch.disjoint_union([graph, 1])  # pyright: ignore
    with pytest.raises(TypeError, match="graphs: expected a sequence of graphs, got NoneType"):
        batch.disjoint_union(None)  # pyright: ignore
    with pytest.raises(TypeError, match="graphs: expected a sequence of graphs, got one Graph"):
        batch.disjoint_union(graph)  # pyright: ignore
    for pad in (batch.pad, batch.pad_to_bucket):
        with pytest.raises(TypeError, match="batch: expected a GraphBatch or a Graph, got int"):
            pad(1)  # pyright: ignore
    with pytest.raises(TypeError, match="num_nodes: expected an integer, got float"):
        batch.pad(graph, num_nodes=4.7)  # pyright: ignore


@given(size=st.integers(0, 10**7), base=st.sampled_from([1.01, 1.5, 2.0, 3.0]))
def test_bucket_size(size, base):
    bucket = batch.bucket_size(size, base=base, minimum=4)
    assert bucket >= size
    assert batch.bucket_size(bucket, base=base, minimum=4) == bucket  # a fixed point
    assert batch.bucket_size(size + 1, base=base, minimum=4) >= bucket
    assert bucket <= max(4, base * size + size * 0.02 + 2)


def test_bucket_sizes():
    assert sorted({batch.bucket_size(n) for n in range(65)}) == [8, 16, 32, 64]
    assert sorted({batch.bucket_size(n, base=1.5, minimum=4) for n in range(20)}) == [
        4,
        6,
        9,
        14,
        21,
    ]
    for options in ({"size": -1}, {"size": 3, "base": 1.0}, {"size": 3, "minimum": 0}):
        with pytest.raises(ValueError, match="bucket_size: expected"):
            batch.bucket_size(**options)


def test_one_trace_a_bucket():
    """Batches of different graphs, long rows among them, compile once for each bucket."""
    traces = []

    @jax.jit
    def model(data: batch.GraphBatch, x):
        traces.append(data)
        hidden = spmm(data.graph, x) + spmm(data.graph, x, transpose=True)
        return readout(data.membership, hidden)

    rng = np.random.default_rng(0)
    split_counts = set()
    for seed in range(6):
        members = [
            skewed_graph(
                int(rng.integers(40, 60)), int(rng.integers(950, 1900)), hubs=1, seed=seed
            ),
            Graph.from_edges(*rng.integers(30, size=(2, 100 + seed)), num_nodes=30),
            Graph.from_edges([], [], num_nodes=seed),
        ]
        padded = batch.pad_to_bucket(batch.disjoint_union(members))
        split_counts.add(int(np.sum(np.asarray(padded.graph.row_chunks.table)[:, 0] >= 0)))
        features = [rng.normal(size=(g.num_receivers, 3)).astype(np.float32) for g in members]
        found = model(padded, batch.union_node_data(padded, features))
        expected = [
            ((d := dense_adjacency(g)) @ x + d.T @ x).sum(axis=0)
            for g, x in zip(members, features, strict=True)
        ]
        np.testing.assert_allclose(found[: len(members)], expected, rtol=1e-4, atol=1e-3)
    assert len(split_counts) > 1  # else a shape that follows the count would pass too
    assert len(traces) == 1
    larger = batch.pad_to_bucket(batch.disjoint_union(members * 3))
    model(larger, jnp.zeros((larger.graph.num_senders, 3)))
    assert len(traces) == 2


@FEW
@given(members=graph_lists(square=True, min_size=1), columns=st.sampled_from([(), (2,)]))
def test_union_data(members, columns):
    padded = batch.pad_to_bucket(batch.disjoint_union(members))
    rng = np.random.default_rng(0)

    def data(sizes):
        return [rng.normal(size=(size, *columns)).astype(np.float32) for size in sizes]

    edges = data([g.num_edges for g in members])
    nodes = data([g.num_receivers for g in members])
    labels = data([len(members)])[0]
    for found, parts, mask, fill_value in (
        (batch.union_edge_data(padded, edges), edges, padded.edge_mask, 0),
        (batch.union_node_data(padded, nodes, fill_value=-1), nodes, padded.node_mask, -1),
        (batch.union_sender_data(padded, nodes), nodes, padded.sender_mask, 0),
        (batch.union_graph_data(padded, labels), [labels], padded.graph_mask, 0),
    ):
        found, mask = np.asarray(found), np.asarray(mask)
        assert found.shape == (mask.size, *columns) and found.dtype == np.float32
        np.testing.assert_array_equal(found[mask], np.concatenate(parts))
        assert np.all(found[~mask] == fill_value)
    # Edge data in the batch's edge order is what sort_edge_data makes of the concatenation.
    np.testing.assert_array_equal(
        batch.union_edge_data(padded, edges),
        padded.graph.sort_edge_data(np.concatenate(edges), fill_value=0.0),
    )
    with pytest.raises(ValueError, match=r"data: expected .* arrays, one for each graph"):
        batch.union_node_data(padded, [*nodes, np.zeros((1, *columns), np.float32)])


def test_data_of_the_senders_of_rectangular_graphs():
    """Of each graph, whether padding adds senders alone, or nodes and a graph as well."""
    members = [
        Graph.from_edges([0, 1], [1, 1], num_senders=2, num_receivers=3),
        Graph.from_edges([2], [0], num_senders=3, num_receivers=1),
    ]
    union = batch.disjoint_union(members)
    parts = [np.full((2, 1), 1.0), np.full((3, 1), 10.0)]
    for padded, count in (
        (union, 2),
        (batch.pad(union, num_senders=7), 2),
        (batch.pad(union, num_nodes=8, num_senders=7, num_edges=5, num_graphs=4), 4),
        (batch.pad(batch.pad(union, num_senders=6), num_senders=9), 2),
    ):
        found = batch.union_sender_data(padded, parts)
        assert found.shape == (padded.graph.num_senders, 1)
        assert padded.sender_membership.num_senders == padded.graph.num_senders
        sums = readout(padded.sender_membership, found, "sum")
        np.testing.assert_array_equal(sums[:, 0], [2, 30, 0, 0][:count])
        with pytest.raises(
            ValueError, match=r"data\[0\]: expected 2 rows, .* senders, .* \(3, 1\)"
        ):
            batch.union_sender_data(padded, parts[::-1])
    square = batch.disjoint_union([Graph.from_edges([0], [1], num_nodes=2)])
    assert square.sender_membership is square.membership


def test_union_data_of_the_wrong_graphs():
    """The total alone would fit."""
    small, large = Graph.from_edges([0], [1], num_nodes=2), Graph.from_edges([0, 1], [1, 2])
    both = batch.pad_to_bucket(batch.disjoint_union([large, small]))
    with pytest.raises(ValueError, match=r"data\[0\]: expected 3 rows, .* nodes, .* \(2, 4\)"):
        batch.union_node_data(both, [np.zeros((2, 4)), np.zeros((3, 4))])
    with pytest.raises(ValueError, match=r"data\[0\]: expected 2 rows, .* edges, .* \(1,\)"):
        batch.union_edge_data(both, [np.zeros(1), np.zeros(2)])
    for union in (
        batch.union_edge_data,
        batch.union_node_data,
        batch.union_sender_data,
        batch.union_graph_data,
    ):
        with pytest.raises(TypeError, match="batch: expected a GraphBatch or a Graph, got int"):
            union(1, [])  # pyright: ignore


@pytest.mark.parametrize(
    "union", [batch.union_edge_data, batch.union_node_data, batch.union_sender_data]
)
def test_union_data_that_is_no_sequence_of_arrays(union):
    both = batch.disjoint_union([Graph.from_edges([0], [1], num_nodes=2)] * 2)
    for data in (5, "ab", (part for part in ())):
        with pytest.raises(TypeError, match="data: expected a sequence of arrays, got"):
            union(both, data)  # pyright: ignore
    with pytest.raises(ValueError, match="data: expected a sequence of arrays, got an array of no"):
        union(both, np.zeros(()))
    rows = 1 if union is batch.union_edge_data else 2
    with pytest.raises(ValueError, match=r"differ in the first axis alone, .* \(3,\), \(4,\)"):
        union(both, [np.zeros((rows, 4)), np.zeros((rows, 3))])
    stacked = np.arange(2 * rows, dtype=np.float32).reshape(2, rows)
    np.testing.assert_array_equal(union(both, stacked), stacked.ravel())


def test_union_data_of_no_numbers():
    both = batch.disjoint_union([Graph.from_edges([0], [1], num_nodes=2)] * 2)
    for data in (None, 1.0):
        with pytest.raises((TypeError, ValueError), match=r"data: expected .*, got"):
            batch.union_graph_data(both, data)  # pyright: ignore
    with pytest.raises(TypeError, match="data: expected arrays of numbers, got <U1"):
        batch.union_graph_data(both, ["a", "b"])  # pyright: ignore
    with pytest.raises(TypeError, match=r"data: a batch is made of arrays outside jax\.jit"):
        jax.jit(lambda x: batch.union_node_data(both, [x, x]))(np.ones(2))


def test_union_data_of_different_lengths():
    both = batch.disjoint_union([Graph.from_edges([0], [1], num_nodes=2)] * 2)
    with pytest.raises(ValueError, match=r"data: expected an array, got lists of different"):
        batch.union_graph_data(both, [[1], [1, 2]])  # pyright: ignore
    with pytest.raises(ValueError, match=r"data\[1\]: expected an array, got lists of different"):
        batch.union_node_data(both, [np.ones((2, 1)), [[1], [1, 2]]])  # pyright: ignore


def test_union_data_of_several_dtypes():
    both = batch.disjoint_union([Graph.from_edges([0], [1], num_nodes=2)] * 2)
    for other, dtype in ((jnp.bfloat16, jnp.bfloat16), (np.float32, jnp.float32)):
        found = batch.union_node_data(both, [np.ones(2, np.int32), jnp.full(2, 2, other)])
        assert found.dtype == dtype and found.tolist() == [1, 1, 2, 2]


def test_batch_is_a_pytree():
    padded = batch.pad_to_bucket(Graph.from_edges([0, 1], [1, 0]))
    back = jax.jit(lambda b: b)(padded)
    assert jax.tree.structure(back) == jax.tree.structure(padded)
    assert back.num_graphs == 8 and int(back.graph_mask.sum()) == 1


@pytest.mark.parametrize("name", ["num_nodes", "num_edges", "num_graphs"])
def test_pad_to_what_no_machine_holds(name):
    graph = Graph.from_edges([0], [1], num_nodes=2)
    with pytest.raises(ValueError, match=rf"{name}: expected at most 2\*\*.*, got 1000"):
        batch.pad(graph, **{"num_nodes": 3, name: 10**20})


@pytest.mark.parametrize("wrong", [math.inf, math.nan, 2.5, "8", None])
def test_bucket_size_of_no_integer(wrong):
    with pytest.raises(TypeError, match=r"bucket_size: (size|minimum): expected an integer, got"):
        batch.bucket_size(wrong)
    with pytest.raises(TypeError, match="bucket_size: minimum: expected an integer"):
        batch.bucket_size(8, minimum=wrong)


@pytest.mark.parametrize("wrong", ["2", None, np.array([1.5, 2.0])])
def test_bucket_size_of_no_base(wrong):
    with pytest.raises(TypeError, match="bucket_size: base: expected a number, got"):
        batch.bucket_size(8, base=wrong)
    with pytest.raises(TypeError, match="bucket_size: base: expected a number, got"):
        batch.pad_to_bucket(Graph.from_edges([0], [1]), base=wrong)


@pytest.mark.parametrize(
    "options",
    [{"size": 10**400}, {"size": 8, "base": math.inf}, {"size": 8, "base": math.nan}],
)
def test_bucket_size_out_of_range(options):
    with pytest.raises(ValueError, match="bucket_size: expected size >= 0"):
        batch.bucket_size(**options)
