"""Edge data between the user's order and the graph's, against plain Python and PyG."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, batch, knn_graph, sddmm, spmm, transform
from jaxgnn.nn import GATConv, GCNConv
from tests.support.strategies import edge_lists, examples

REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def pairs_of(graph):
    return list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


def expected_data(edges, data, undirected, deduplicate, self_loops, reduce, fill_value):
    """(sender, receiver) of each edge in the documented order, and its datum."""
    given_ = [
        (s, r, value)
        for s, r, value in zip(edges.senders.tolist(), edges.receivers.tolist(), data, strict=True)
        if s != r or self_loops != "remove"
    ]
    if undirected:
        given_ += [(r, s, value) for s, r, value in given_]
    if undirected or deduplicate:
        groups: dict = {}
        for s, r, value in given_:
            groups.setdefault((r, s), []).append(value)
        result = [(*pair, REDUCTIONS[reduce](values)) for pair, values in groups.items()]
    else:
        result = [(r, s, value) for s, r, value in given_]
    if self_loops.startswith("add"):
        looped = {r for r, s, _ in result if r == s} if self_loops == "add_remaining" else set()
        result += [(v, v, fill_value) for v in range(edges.num_receivers) if v not in looped]
    result.sort(key=lambda edge: edge[:2])
    return [(s, r) for r, s, _ in result], [value for *_, value in result]


@examples(30)
@given(
    edges=edge_lists(square=True, max_nodes=6, max_edges=20),
    undirected=st.booleans(),
    deduplicate=st.booleans(),
    self_loops=st.sampled_from(["keep", "add", "add_remaining", "remove"]),
    reduce=st.sampled_from(sorted(REDUCTIONS)),
)
def test_from_edges_with_edge_data(edges, undirected, deduplicate, self_loops, reduce):
    options = {"undirected": undirected, "deduplicate": deduplicate, "self_loops": self_loops}
    data = np.arange(1, edges.senders.size + 1, dtype=np.float32)
    both = {"edge_data": {"w": data, "z": data[:, None] * [1, -1]}, "reduce": reduce}
    if self_loops == "add" and (undirected or deduplicate):
        with pytest.raises(ValueError, match="self_loops='add': expected 'add_remaining'"):
            edges.graph(**options, **both)
        return
    graph, found = edges.graph(**options, **both, fill_value=-7.0)
    pairs, expected = expected_data(edges, data, *options.values(), reduce, -7.0)
    assert pairs_of(graph) == pairs
    np.testing.assert_allclose(found["w"], expected, rtol=1e-6)
    assert found["z"].shape == (len(pairs), 2)
    if reduce in ("sum", "mean"):
        added = np.asarray(graph.edge_permutation) < 0
        z = np.where(added, -7, -np.asarray(found["w"]))
        np.testing.assert_allclose(found["z"], np.stack([found["w"], z], 1), rtol=1e-6)
    # The same graph as without data.
    bare = edges.graph(**options)
    for name in ("row_offsets", "senders", "transpose_permutation", "edge_permutation"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(bare, name))
    # And back: each listed edge gets the value of the edge that it became.
    values = np.arange(graph.num_edges) + 0.5
    back = graph.unsort_edge_data({"v": values}, fill_value=-1.0)["v"]
    assert back.shape == data.shape
    for user, edge in enumerate(zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True)):
        places = [e for e, pair in enumerate(pairs) if pair == edge]
        if undirected or deduplicate or not places:
            assert back[user] == (values[places[0]] if places else -1.0)
        else:  # repeated edges stay apart, each named once
            (place,) = np.flatnonzero(np.asarray(graph.edge_permutation) == user)
            assert pairs[place] == edge and back[user] == values[place]


@examples(10)
@given(edges=edge_lists(square=False), deduplicate=st.booleans())
def test_rectangular_graphs_too(edges, deduplicate):
    data = np.arange(edges.senders.size, dtype=np.float32)
    graph, found = edges.graph(deduplicate=deduplicate, edge_data=data, reduce="min")
    pairs, expected = expected_data(edges, data, False, deduplicate, "keep", "min", 0)
    assert pairs_of(graph) == pairs
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("reduce", ["add", "mean", "max", "min"])
def test_edges_merge_as_pyg_merges_them(reduce):
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("torch_geometric.utils")
    rng = np.random.default_rng(0)
    index, data = rng.integers(9, size=(2, 60)), rng.standard_normal((60, 3))
    ours = {"edge_data": data, "reduce": "sum" if reduce == "add" else reduce, "num_nodes": 9}
    theirs = torch.from_numpy(index), torch.from_numpy(data), 9, reduce
    with jax.enable_x64(True):
        for option, function in (
            ("undirected", utils.to_undirected),
            ("deduplicate", utils.coalesce),
        ):
            graph, found = Graph.from_edge_index(index, **{option: True}, **ours)
            merged, expected = function(*theirs)
            order = np.lexsort(merged.numpy())
            np.testing.assert_array_equal(graph.edge_index, merged.numpy()[:, order])
            np.testing.assert_allclose(found, expected.numpy()[order], rtol=0, atol=1e-14)


def test_undirected_graphs_have_each_edge_once():
    graph = Graph.from_edges([0, 1], [1, 0], undirected=True)
    assert graph.num_edges == 2
    assert transform.to_undirected(Graph.from_edges([0, 1], [1, 0]))[0].num_edges == 2
    graph, weights = Graph.from_edges([0, 1, 1], [1, 0, 1], undirected=True, edge_data=[1, 2, 3])
    assert weights.tolist() == [3, 3, 6] and weights.dtype == jnp.int32


def test_the_habit_of_pyg():
    """Edges and weights in the order of PyG, to an aggregation and back."""
    rng = np.random.default_rng(1)
    senders, receivers = rng.integers(20, size=(2, 90))
    weights, x = rng.random(90, np.float32), rng.standard_normal((20, 4), np.float32)
    graph, sorted_ = Graph.from_edges(senders, receivers, num_nodes=20, edge_data=weights)
    dense = np.zeros((20, 20), np.float32)
    np.add.at(dense, (receivers, senders), weights)
    np.testing.assert_allclose(spmm(graph, x, sorted_), dense @ x, atol=1e-5)
    assert np.abs(np.asarray(spmm(graph, x, weights)) - dense @ x).max() > 0.5  # the trap
    scores = graph.unsort_edge_data(sddmm(graph, x, x))
    np.testing.assert_allclose(scores, (x[senders] * x[receivers]).sum(1), atol=1e-5)


def test_both_ways_are_differentiable_and_go_through_jit():
    senders, receivers = [0, 1, 2, 2, 1], [1, 0, 2, 0, 0]
    for options in ({}, {"undirected": True}, {"deduplicate": True, "self_loops": "remove"}):
        data = jnp.arange(1.0, 6.0)
        graph, values = Graph.from_edges(senders, receivers, edge_data=data, **options)

        @jax.jit
        def both(graph, data):
            values = graph.sort_edge_data(data)
            return values, graph.unsort_edge_data(values)

        np.testing.assert_array_equal(both(graph, data)[0], values)
        np.testing.assert_array_equal(both(graph, data)[1], graph.unsort_edge_data(values))
        forward = jax.jacfwd(graph.sort_edge_data)(data)
        np.testing.assert_array_equal(forward @ data, values)
        np.testing.assert_array_equal(jax.jacrev(graph.sort_edge_data)(data), forward)
        in_closure = jax.grad(
            lambda d, o=options: Graph.from_edges(senders, receivers, edge_data=d, **o)[1].sum()
        )(data)
        np.testing.assert_array_equal(in_closure, forward.sum(0))


@pytest.mark.system
def test_transpose_and_transforms_keep_both_ways():
    senders, receivers = [0, 1, 1, 2, 0, 2], [1, 0, 0, 2, 2, 0]
    data = np.arange(1.0, 7.0, dtype=np.float32)
    for options in ({}, {"undirected": True}, {"deduplicate": True}):
        graph, values = Graph.from_edges(senders, receivers, edge_data=data, **options)
        back = graph.unsort_edge_data(values)
        reversed_ = graph.transpose()
        np.testing.assert_array_equal(
            reversed_.sort_edge_data(data), values[graph.transpose_permutation]
        )
        transposed = reversed_.unsort_edge_data(values[graph.transpose_permutation])
        np.testing.assert_array_equal(transposed, back)
        for change in (
            transform.add_self_loops,
            transform.add_remaining_self_loops,
            lambda g, w: transform.permute_nodes(g, [2, 0, 1], w),
        ):
            after, moved = change(graph, values)
            np.testing.assert_array_equal(after.sort_edge_data(data), moved)
            np.testing.assert_array_equal(after.unsort_edge_data(moved), back)
        bare, kept = transform.remove_self_loops(graph, values)
        expected = np.where(np.array(senders) == receivers, 0, back)
        np.testing.assert_array_equal(bare.unsort_edge_data(kept), expected)
        for merging in (transform.coalesce, transform.to_undirected):
            merged, _ = merging(graph, values)
            with pytest.raises(ValueError, match="edges of this graph were merged"):
                merged.sort_edge_data(data)


def test_wrong_data_is_an_error():
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops="add")
    with pytest.raises(ValueError, match=r"data: expected 3 rows, .* got 6; .* in its order"):
        graph.sort_edge_data(graph.sort_edge_data(np.ones(3)))
    for rows in (2, 4):
        with pytest.raises(ValueError, match=f"data: expected 3 rows, .* got {rows}$"):
            graph.sort_edge_data(np.ones(rows))
        with pytest.raises(ValueError, match=f"^edge_data: expected 3 rows, .* got {rows}$"):
            Graph.from_edges([0, 1, 2], [1, 2, 0], edge_data=np.ones(rows))
    with pytest.raises(ValueError, match=r"values: expected 6 rows, .* got 3"):
        graph.unsort_edge_data(np.ones(3))
    with pytest.raises(ValueError, match="scalar"):
        graph.unsort_edge_data(1.0)
    with pytest.raises(ValueError, match=r"reduce: expected one of .* got 'mul'"):
        Graph.from_edges([0, 1], [1, 0], edge_data=np.ones(2), reduce="mul")
    with pytest.raises(ValueError, match=r"fill_value: expected edge_data with it, got"):
        Graph.from_edges([0, 1], [1, 0], self_loops="add", fill_value=0.0)
    with pytest.raises(ValueError, match=r"reduce: expected edge_data with it, got reduce='mean'"):
        Graph.from_edge_index([[0, 0], [1, 1]], deduplicate=True, reduce="mean")
    with pytest.raises(ValueError, match="dropped"):
        graph.drop_edge_permutation().unsort_edge_data(np.ones(6))
    for options in ({"undirected": True}, {"deduplicate": True}):
        graph = Graph.from_edges([0, 1], [1, 0], **options)
        for method in (graph.sort_edge_data, graph.unsort_edge_data):
            with pytest.raises(ValueError, match=r"edges of this graph were merged.*edge_data"):
                method(np.ones(2))
        graph, nothing = Graph.from_edges([0, 1], [1, 0], edge_data={}, **options)
        assert nothing == {} and graph.unsort_edge_data(np.ones(2)).tolist() == [1, 1]
    # What an operation can tell: a length.
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops="add")
    with pytest.raises(ValueError, match=r"weights: .* got \(3,\).*graph's edge order"):
        spmm(graph, np.ones((3, 2), np.float32), np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"weights: .* got \(3,\).*graph's edge order"):
        GCNConv(2, 2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 2)), jnp.ones(3))
    with pytest.raises(ValueError, match=r"edge_attr: .* got \(3, 1\).*graph's edge order"):
        conv = GATConv(2, 2, edge_dim=1, rngs=nnx.Rngs(0))
        conv(graph, jnp.ones((3, 2)), jnp.ones((3, 1)))


def test_graphs_of_graphs():
    # Counts that are real only in part are no static ones: equal shapes share a program.
    first = batch.pad(Graph.from_edges([0, 1], [1, 0]), num_nodes=4, num_edges=4)
    second = batch.pad(Graph.from_edges([0, 1, 1], [1, 0, 1]), num_nodes=4, num_edges=4)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    with pytest.raises(ValueError, match="does not know how many edges"):
        first.graph.unsort_edge_data(np.ones(4))
    graph = knn_graph(np.random.default_rng(0).random((9, 2), np.float32), 3)
    values = np.arange(27.0)
    np.testing.assert_array_equal(graph.unsort_edge_data(graph.sort_edge_data(values)), values)


def test_networkx_multigraphs_stay_multigraphs():
    networkx = pytest.importorskip("networkx")
    source = networkx.MultiGraph()
    source.add_weighted_edges_from([(0, 1, 2.0), (1, 0, 3.0), (1, 1, 5.0), (1, 2, 7.0)])
    graph, weights = Graph.from_networkx(source, weight="weight")
    assert graph.num_edges == 7 and sorted(weights.tolist()) == [2, 2, 3, 3, 5, 7, 7]
    order = [2.0, 3.0, 5.0, 7.0]
    np.testing.assert_array_equal(graph.sort_edge_data(np.float32(order)), weights)
    np.testing.assert_array_equal(graph.unsort_edge_data(weights), order)


def test_variables_are_arrays():
    graph, values = Graph.from_edges([1, 0], [0, 1], edge_data=nnx.Param(jnp.array([1.0, 2.0])))
    assert isinstance(values, jax.Array) and values.tolist() == [1.0, 2.0]
    assert graph.unsort_edge_data(nnx.Param(values)).tolist() == [1.0, 2.0]


def test_counts_are_static_fields():
    graph = Graph.from_edges([0, 1], [1, 1], self_loops="add")
    assert graph.num_input_edges == 2 and not graph.merges_edges
    assert dataclasses.replace(graph, symmetric=False).num_input_edges == 2


@pytest.mark.parametrize(
    ("dtype", "fill"), [("uint32", 3_000_000_000), ("int32", 16_777_217.0), ("int32", 2**31 - 1)]
)
@pytest.mark.parametrize("deduplicate", [False, True])
def test_fill_values_are_exact(dtype, fill, deduplicate):
    """Also those beyond int32, and beyond what float32 counts to."""
    graph = Graph.from_edges([0, 1], [1, 2], num_nodes=3, self_loops="add_remaining")
    data = np.array([1, 2], dtype)
    np.testing.assert_array_equal(
        graph.sort_edge_data(data, fill_value=fill), [fill, 1, fill, 2, fill]
    )
    graph, data = Graph.from_edges(
        [0, 1, 1],
        [1, 1, 2],
        num_nodes=3,
        self_loops="remove",
        edge_data=np.array([1, 5, 2], dtype),
        deduplicate=deduplicate,
    )
    np.testing.assert_array_equal(graph.unsort_edge_data(data, fill_value=fill), [1, fill, 2])


@pytest.mark.parametrize(("value", "dtype"), [(2**31, np.int64), (2**32, np.uint64)])
def test_integers_that_32_bits_do_not_hold(value, dtype):
    """Times in milliseconds, say: JAX would wrap them around."""
    data, ends = np.array([1, value], dtype), ([0, 1], [1, 0])
    graph = Graph.from_edges(*ends)
    for name, call in (
        ("edge_data", lambda: Graph.from_edges(*ends, edge_data=data)),
        ("data", lambda: graph.sort_edge_data(data)),
        ("weights", lambda: transform.add_self_loops(graph, data)),
        ("data", lambda: batch.union_node_data(batch.disjoint_union([graph]), [data])),
    ):
        with pytest.raises(ValueError, match=rf"{name}: expected integers that .* got {value}"):
            call()
    with jax.enable_x64():
        assert Graph.from_edges(*ends, edge_data=data)[1].max() == value


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31)])
def test_sums_beyond_32_bits(value):
    ends, data = ([0, 0, 1], [1, 1, 0]), np.array([value, np.sign(value), 5])
    with pytest.raises(ValueError, match=r"edge_data: expected sums .* within int32, got about"):
        Graph.from_edges(*ends, deduplicate=True, edge_data=data)
    held = Graph.from_edges(*ends, deduplicate=True, edge_data=data - np.sign(value))[1]
    assert held.tolist() == [5 - np.sign(value), value - np.sign(value)]


def test_tuples_are_pytrees_and_lists_of_numbers_arrays():
    ends = [0, 1], [2, 0]  # sorted the other way around
    pair = Graph.from_edges(*ends, edge_data=([1.0, 2.0], [3.0, 4.0]))[1]
    assert isinstance(pair, tuple) and [part.tolist() for part in pair] == [[2, 1], [4, 3]]
    matrix = Graph.from_edges(*ends, edge_data=[(1, 2), (3, 4)])[1]
    assert matrix.tolist() == [[3, 4], [1, 2]]
    for numbers in ((1.0, 2.0), [np.float32(1), np.float32(2)], [np.float64(1), 2]):
        assert Graph.from_edges(*ends, edge_data=numbers)[1].tolist() == [2, 1]


def test_rows_of_different_lengths():
    with pytest.raises(ValueError, match="edge_data: expected an array, got lists of different"):
        Graph.from_edges([0, 1], [1, 0], edge_data=[[1], [1, 2]])


def test_edge_data_of_a_union():
    """Its graphs' edges are all of the list; of a padded one the real edges may be fewer."""
    graph = Graph.from_edges([1, 0], [0, 1])
    union = batch.disjoint_union([graph, graph])
    data = np.arange(4.0)
    sorted_ = union.graph.sort_edge_data(data)
    assert union.graph.unsort_edge_data(sorted_).tolist() == data.tolist()
    with pytest.raises(ValueError, match=r"data: expected 4 rows, .* got 100"):
        union.graph.sort_edge_data(np.arange(100.0))
    padded = batch.pad_to_bucket(union).graph
    assert padded.sort_edge_data(data, fill_value=0).tolist() == [*data, 0, 0, 0, 0]
    with pytest.raises(ValueError, match=r"data: expected at least 4 rows .* got 3"):
        padded.sort_edge_data(np.arange(3.0))


@pytest.mark.parametrize("value", [1e300, -1e39])
def test_floats_beyond_float32(value):
    data, ends = np.array([1, value]), ([0, 1], [1, 0])
    graph = Graph.from_edges(*ends)
    union = batch.disjoint_union([graph])
    for name, call in (
        ("edge_data", lambda: Graph.from_edges(*ends, edge_data=data)),
        ("edge_data", lambda: Graph.from_edges(*ends, edge_data=data.tolist())),
        ("values", lambda: graph.unsort_edge_data(data)),
        ("weights", lambda: transform.add_self_loops(graph, data)),
        ("weights", lambda: transform.coalesce(graph, data)),
        ("weights", lambda: transform.gcn_norm(graph, data)),
        ("data", lambda: batch.union_node_data(union, [data])),
        ("data", lambda: batch.union_graph_data(union, data[1:])),
    ):
        with pytest.raises(ValueError, match=rf"{name}: expected numbers within float32, got "):
            call()
    infinite = np.array([np.inf, np.nan])
    np.testing.assert_array_equal(graph.sort_edge_data(infinite), infinite[::-1])
    with jax.enable_x64():
        assert Graph.from_edges(*ends, edge_data=data)[1].tolist() == [value, 1]


@pytest.mark.parametrize("value", [np.ones(3), [1.0, 2.0], [[1], [1, 2]], 1j])
def test_fill_values_that_are_no_real_number(value):
    graph = Graph.from_edges([0, 1], [1, 0], self_loops="add")
    for dtype in (np.float32, np.int32):
        with pytest.raises(TypeError, match=r"fill_value: expected a (real )?number, got"):
            graph.sort_edge_data(np.ones(2, dtype), fill_value=value)
    with pytest.raises(TypeError, match=r"fill_value: expected a (real )?number, got"):
        transform.add_self_loops(graph, np.ones(4), fill_value=value)


def test_complex_fill_values_of_complex_data():
    graph = Graph.from_edges([0, 1], [1, 0], self_loops="add")
    assert graph.sort_edge_data(np.array([1j, 2j]), fill_value=3j).tolist() == [3j, 2j, 1j, 3j]
