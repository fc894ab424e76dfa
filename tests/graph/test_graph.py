"""Graph and its host building, against plain Python and NumPy."""

import copy
import dataclasses
import pickle
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, algebra, batch, spmm, transform
from jaxgnn.graph import _argument, self_loop_mask
from jaxgnn.graph._build import csr as _csr
from jaxgnn.graph._build import row_chunks
from jaxgnn.nn import MLP, EdgeConv, GMMConv
from tests.support.paths import ROOT
from tests.support.processes import run_python
from tests.support.strategies import (
    EdgeList,
    dense_adjacency,
    edge_lists,
    examples,
    graphs,
    skewed_graph,
)

pytestmark = pytest.mark.few(1)

SELF_LOOPS = ("keep", "add", "add_remaining", "remove")


@pytest.fixture(params=["compiled", "numpy"])
def core(request, monkeypatch):
    """Runs a test with the C++ builder and with its NumPy substitute."""
    if request.param == "numpy":
        monkeypatch.setattr(_csr, "cpu_module", None)
    elif _csr.cpu_module is None:
        pytest.skip("jaxgnn._cpu is not built")
    return request.param


def expected_edges(edges: EdgeList, undirected, deduplicate, self_loops):
    """Triples (receiver, sender, user's edge or -1) in the documented order."""
    pairs = list(zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True))
    result = [(r, s, e) for e, (s, r) in enumerate(pairs) if s != r or self_loops != "remove"]
    if undirected:
        result += [(s, r, e) for e, (s, r) in enumerate(pairs) if s != r]
    for v in range(edges.num_receivers):
        if self_loops == "add" or (self_loops == "add_remaining" and (v, v) not in pairs):
            result.append((v, v, -1))
    result.sort(key=lambda edge: edge[:2])
    if deduplicate:
        result = [e for i, e in enumerate(result) if i == 0 or e[:2] != result[i - 1][:2]]
    return result


def check_structure(csr: _csr.HostCSR):
    """The invariants that every kernel relies on."""
    rows = _csr.row_ids(csr.row_offsets)
    assert csr.row_offsets.shape == (csr.num_receivers + 1,)
    assert csr.transpose_row_offsets.shape == (csr.num_senders + 1,)
    columns = _csr.row_ids(csr.transpose_row_offsets)
    np.testing.assert_array_equal(columns, csr.senders[csr.transpose_permutation])
    np.testing.assert_array_equal(csr.transpose_receivers, rows[csr.transpose_permutation])
    # Within a sender, in the order of the edges: the transpose is sorted too, and stable.
    ascending = np.diff(csr.transpose_permutation) > 0
    assert np.all(ascending | (np.diff(columns) > 0))
    if csr.self_loops is not None:
        loops = np.bincount(rows[rows == csr.senders], minlength=csr.num_receivers)
        np.testing.assert_array_equal(csr.self_loops, loops)
    for chunks, offsets in (
        (csr.row_chunks, csr.row_offsets),
        (csr.transpose_row_chunks, csr.transpose_row_offsets),
    ):
        table = chunks.table
        length = row_chunks.chunk_length(csr.num_edges, offsets.size - 1)
        assert chunks.length == length
        expected = [
            (row, part)
            for row, edges in enumerate(np.diff(offsets).tolist())
            if edges > length
            for part in range(-(-edges // length))
        ] or [(-1, 0)]
        assert table.shape == (len(expected), 2) and table.dtype == np.int32
        assert [tuple(entry) for entry in table.tolist()] == expected
        assert len(expected) <= row_chunks.chunk_capacity(csr.num_edges, offsets.size - 1)


@given(
    edges=edge_lists(),
    undirected=st.booleans(),
    deduplicate=st.booleans(),
    self_loops=st.sampled_from(SELF_LOOPS),
    wide=st.booleans(),
)
def test_build(core, edges, undirected, deduplicate, self_loops, wide):
    if not edges.square:
        undirected, self_loops = False, "keep"
    csr = _csr.build(
        edges.senders,
        edges.receivers,
        **edges.counts(),
        undirected=undirected,
        deduplicate=deduplicate,
        self_loops=self_loops,
        wide=wide,
    )
    expected = expected_edges(edges, undirected, deduplicate, self_loops)
    assert (csr.num_senders, csr.num_receivers) == (edges.num_senders, edges.num_receivers)
    assert csr.num_edges == len(expected)
    found = zip(_csr.row_ids(csr.row_offsets), csr.senders, csr.edge_permutation, strict=True)
    assert [tuple(map(int, edge)) for edge in found] == expected
    assert csr.senders.dtype == csr.transpose_receivers.dtype == np.int32
    index = np.int64 if wide else np.int32
    for array in (csr.row_offsets, csr.transpose_row_offsets, csr.transpose_permutation):
        assert array.dtype == index
    assert (csr.self_loops is not None) == edges.square
    check_structure(csr)
    pairs = [edge[:2] for edge in expected]
    symmetric = edges.num_senders == edges.num_receivers and pairs == sorted(
        (s, r) for r, s in pairs
    )
    assert (csr.transpose_receivers is csr.senders) == symmetric


def test_wide_counts_only_where_needed(core, monkeypatch):
    """Sorted wide because there might be too many edges for int32, narrowed as there are not."""
    monkeypatch.setattr(_csr, "_WIDE_FROM", 10)
    senders, receivers = [0, 1, 2, 2, 1, 0], [1, 0, 1, 1, 2, 0]
    narrow = _csr.build(senders, receivers, undirected=True, deduplicate=True)
    assert narrow.num_edges == 5
    wide = _csr.build(senders, receivers, undirected=True)
    assert wide.num_edges == 11
    for name in ("row_offsets", "transpose_row_offsets", "transpose_permutation"):
        assert getattr(narrow, name).dtype == np.int32
        assert getattr(wide, name).dtype == np.int64
    assert narrow.edge_permutation.dtype == np.int32
    assert narrow.transpose_row_offsets is narrow.row_offsets
    check_structure(narrow)
    many = _csr.build(senders * 2, receivers * 2, deduplicate=True)
    assert many.row_offsets.dtype == np.int32 and many.edge_permutation.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("layout", ["random", "by_sender", "sorted", "rectangular"])
@pytest.mark.parametrize("options", [{}, {"undirected": True, "deduplicate": True}])
def test_large_build_in_parallel(core, dtype, layout, options):
    """Enough edges for several threads and for several digits of the radix sort."""
    rng = np.random.default_rng(0)
    num_nodes, num_edges = 5_000, 300_000
    senders = (num_nodes * rng.random(num_edges) ** 3).astype(dtype)
    receivers = rng.integers(num_nodes, size=num_edges).astype(dtype)
    counts: dict = {"num_nodes": num_nodes}
    if layout == "rectangular":
        senders = senders % 700
        counts = {"num_senders": 700, "num_receivers": num_nodes}
        options = {key: value for key, value in options.items() if key == "deduplicate"}
    elif layout != "random":
        key = (senders,) if layout == "by_sender" else (senders, receivers)
        order = np.lexsort(key)
        senders, receivers = senders[order], receivers[order]
    csr = _csr.build(senders, receivers, **counts, **options)
    check_structure(csr)
    oracle = _csr._build_numpy(
        senders,
        receivers,
        csr.num_senders,
        csr.num_receivers,
        layout != "rectangular",
        "undirected" in options,
        "deduplicate" in options,
        0,
        False,
    )
    found = (
        csr.row_offsets,
        csr.senders,
        csr.transpose_row_offsets,
        csr.transpose_receivers,
        csr.transpose_permutation,
        csr.edge_permutation,
    )
    for array, expected in zip(found, oracle[:-1], strict=True):
        np.testing.assert_array_equal(array, expected)


def test_options_in_parallel(core):
    """The self-loop options over several chunks of edges."""
    rng = np.random.default_rng(1)
    senders, receivers = rng.integers(300, size=(2, 200_000))
    loops = senders == receivers
    count = dict.fromkeys(SELF_LOOPS, senders.size)
    count["add"] += 400
    count["add_remaining"] += 400 - np.unique(senders[loops]).size
    count["remove"] -= loops.sum()
    for option, expected in count.items():
        csr = _csr.build(senders, receivers, num_nodes=400, self_loops=option)
        assert csr.num_edges == expected
        check_structure(csr)
        users = csr.edge_permutation
        rows = _csr.row_ids(csr.row_offsets)
        np.testing.assert_array_equal(csr.senders[users >= 0], senders[users[users >= 0]])
        np.testing.assert_array_equal(rows[users >= 0], receivers[users[users >= 0]])
        np.testing.assert_array_equal(csr.senders[users < 0], rows[users < 0])


def test_long_rows_are_split():
    graph = skewed_graph(50, 3000)
    length = row_chunks.chunk_length(3000, 50)
    degrees = np.asarray(graph.in_degrees)
    assert length == 256 and degrees.max() > length
    assert graph.row_chunks.table.shape[0] == sum(-(-d // length) for d in degrees if d > length)
    assert (graph.transpose_row_chunks.table[:, 0] >= 0).any()


@given(
    lengths=st.lists(st.sampled_from([0, 1, 255, 256, 257, 300, 513, 5000]), max_size=12),
)
def test_chunk_capacity_bounds_any_table(lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    num_edges, num_rows = int(offsets[-1]), len(lengths)
    table = row_chunks.chunk_rows(offsets, row_chunks.chunk_length(num_edges, num_rows)).table
    assert len(table) <= row_chunks.chunk_capacity(num_edges, num_rows)


def test_chunk_capacity_is_reached():
    length = row_chunks.chunk_length(257 * 4, 400)
    table = row_chunks.chunk_rows(np.arange(5) * 257, length).table
    assert len(table) == row_chunks.chunk_capacity(257 * 4, 400) == 8


@examples(10)  # JAX compiles for every new shape
@given(graph=graphs())
def test_graph_leaves(graph):
    csr = np.asarray(graph.row_offsets)
    np.testing.assert_array_equal(graph.in_degrees, np.diff(csr))
    np.testing.assert_array_equal(graph.receivers, _csr.row_ids(csr))
    dense = dense_adjacency(graph)
    np.testing.assert_array_equal(graph.out_degrees, dense.sum(axis=0))
    loops = np.asarray(self_loop_mask(graph))
    assert loops.sum() == (np.trace(dense) if graph.is_square else 0)


@examples(10)  # JAX compiles for every new shape
@given(graph=graphs())
def test_transpose(graph):
    weights = np.arange(graph.num_edges) + 1.0
    transposed = graph.transpose()
    reverse_weights = weights[np.asarray(graph.transpose_permutation)]
    np.testing.assert_array_equal(
        dense_adjacency(transposed, reverse_weights), dense_adjacency(graph, weights).T
    )
    twice = transposed.transpose()
    for leaf, back in zip(jax.tree.leaves(graph), jax.tree.leaves(twice), strict=True):
        np.testing.assert_array_equal(leaf, back)
    names = [field.name for field in dataclasses.fields(Graph)]
    host = {name: getattr(transposed, name) for name in _csr.HostCSR._fields if name in names}
    check_structure(
        _csr.HostCSR(
            **jax.tree.map(np.asarray, host)
            | {
                name: getattr(transposed, name)
                for name in ("num_senders", "num_receivers", "num_edges", "symmetric")
            }
        )
    )


def test_views_of_counts():
    """`num_nodes`, `edge_index`, `nbytes` and `repr`."""
    graph = Graph.from_edges([0, 1, 1], [1, 0, 2])
    assert graph.num_nodes == 3
    np.testing.assert_array_equal(graph.edge_index, [graph.senders, graph.receivers])
    again = Graph.from_edge_index(graph.edge_index)
    np.testing.assert_array_equal(again.senders, graph.senders)
    assert graph.nbytes == sum(leaf.nbytes for leaf in jax.tree.leaves(graph))
    symmetric = Graph.from_edges([0, 1], [1, 0])  # whose transpose shares three arrays
    shared = symmetric.row_offsets, symmetric.senders, symmetric.row_chunks.table
    leaves = sum(leaf.nbytes for leaf in jax.tree.leaves(symmetric))
    assert symmetric.nbytes == leaves - sum(leaf.nbytes for leaf in shared)
    sizes = []
    jax.jit(lambda graph: sizes.append(graph.nbytes))(graph)
    assert sizes == [graph.nbytes]
    block = Graph.from_edges([0, 4], [0, 1], num_senders=5, num_receivers=2)
    with pytest.raises(AttributeError, match=r"num_senders \(5\) and num_receivers \(2\)"):
        block.num_nodes  # noqa: B018
    assert repr(block) == "Graph(num_senders=5, num_receivers=2, num_edges=2)"


def test_equality_is_identity():
    graph, other = Graph.from_edges([0, 1], [1, 0]), Graph.from_edges([0, 1], [1, 0])
    assert graph == graph and graph != other and len({graph, other, graph}) == 2
    whole, another = batch.disjoint_union([graph]), batch.disjoint_union([other])
    assert whole == whole and whole != another and len({whole, another}) == 2
    assert repr(whole) == "GraphBatch(num_graphs=1, graph=Graph(num_nodes=2, num_edges=2))"
    traces = []
    apply = jax.jit(lambda graph: traces.append(graph) or graph.num_edges)
    assert apply(graph) == apply(other) == 2 and len(traces) == 1
    copied = [copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))]
    for one in copied:
        np.testing.assert_array_equal(one.senders, graph.senders)


def test_graphs_are_not_built_of_what_they_are_not():
    index = np.array([[0, 1], [1, 0]])
    for wrong in (
        lambda: Graph(index),
        lambda: Graph(index, index),
        lambda: Graph(edge_index=index),
        lambda: Graph(num_nodes=2),
    ):
        with pytest.raises(TypeError, match=r"Graph\.from_edge_index"):
            wrong()
    for build in (
        lambda i: Graph.from_edges(i[0], i[1]),
        lambda i: Graph.from_edge_index(i),
        lambda i: Graph.from_csr(i[0], i[1]),
    ):
        with pytest.raises(TypeError, match=r"a graph is built .* outside jax\.jit"):
            jax.jit(build)(index)
    graph = Graph.from_edges(*index)
    for use in (
        lambda g: batch.disjoint_union([g]).graph,
        lambda g: batch.pad_to_bucket(g).graph,
        lambda g: g.to_scipy(),
        lambda g: transform.add_self_loops(g)[0],
        lambda g: transform.link_split(g, 0, 0, seed=0).val.graph,
        lambda g: g.validate(),
    ):
        with pytest.raises(TypeError, match=r"outside jax.jit"):
            jax.jit(use)(graph)


def test_a_large_graph_closed_over_warns_once(monkeypatch):
    monkeypatch.setattr(_argument, "LARGE", 5)
    monkeypatch.setattr(_argument, "_warned", False)
    senders = np.arange(6)
    graph, x = Graph.from_edges(senders, senders[::-1]), jnp.ones((6, 2))
    small = Graph.from_edges([0], [0])

    def silent():
        """What is no constant of a compiled program."""
        spmm(graph, x)
        jax.jit(spmm)(graph, x)
        jax.jit(lambda x: spmm(small, x))(x[:1])
        jax.grad(lambda x: spmm(graph, x).sum())(x)
        jax.vmap(lambda x: spmm(graph, x))(x[None])
        jax.jacfwd(lambda x: spmm(graph, x))(x)
        jax.grad(lambda x: algebra.gather(algebra.scatter(graph, jnp.exp(x))).sum())(x)
        source, target = algebra.scatter(graph, x, x)
        jax.grad(lambda s: algebra.gather(algebra.apply_edge(jnp.tanh, source + target) * s).sum())
        algebra.evaluate(algebra.apply_edge(jnp.tanh, source + target))
        algebra.gather(algebra.apply_edge(jnp.tanh, source + target))
        GMMConv(2, 2, 1, 2, separate_gaussians=True, rngs=nnx.Rngs(0))(graph, x, jnp.ones((6, 1)))
        mlp = MLP([4, 4, 2], rngs=nnx.Rngs(0))
        EdgeConv(2, 2, mlp=mlp, rngs=nnx.Rngs(0))(graph, x)

    silent()
    with pytest.warns(UserWarning, match=r"Graph\(.*closes over.*as an argument"):
        jax.jit(lambda x: spmm(graph, x))(x)
    jax.jit(lambda x: 2 * spmm(graph, x))(x)  # once


def test_symmetric_graph_shares_its_buffers():
    graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1])
    assert graph.transpose_receivers is graph.senders
    assert graph.transpose_row_offsets is graph.row_offsets
    assert graph.transpose_row_chunks.table is graph.row_chunks.table
    directed = Graph.from_edges([0, 1, 1], [1, 0, 2])
    assert directed.transpose_receivers is not directed.senders


def test_graph_passes_through_jit_and_tree_map():
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    out = jax.jit(lambda g: g)(graph)
    assert jax.tree.structure(out) == jax.tree.structure(graph)
    assert repr(out) == "Graph(num_nodes=3, num_edges=3)"
    assert graph.drop_edge_permutation().edge_permutation is None


@examples(10)
@given(
    edges=edge_lists(square=True),
    self_loops=st.sampled_from(SELF_LOOPS),
    columns=st.sampled_from([(), (3,)]),
)
def test_sort_edge_data(edges, self_loops, columns):
    graph = edges.graph(self_loops=self_loops)
    size = edges.senders.size
    data = np.arange(1, size * (columns or (1,))[0] + 1, dtype=np.float32)
    data = data.reshape(size, *columns)
    result = np.asarray(graph.sort_edge_data(data, fill_value=-7.0))
    expected = expected_edges(edges, False, False, self_loops)
    assert result.shape == (len(expected), *columns) and result.dtype == np.float32
    for row, (_, _, user) in zip(result, expected, strict=True):
        np.testing.assert_array_equal(row, data[user] if user >= 0 else -7.0)


def test_sort_edge_data_errors():
    graph = Graph.from_edges([0, 1], [1, 0])
    with pytest.raises(ValueError, match="data: expected 2 rows"):
        graph.sort_edge_data(np.zeros(1))
    with pytest.raises(ValueError, match="scalar"):
        graph.sort_edge_data(1.0)
    with pytest.raises(TypeError, match="data: expected an array of numbers"):
        graph.sort_edge_data(np.array(["a", "b"]))
    with pytest.raises(ValueError, match=r"fill_value: .* within int32, got 0.5"):
        graph.sort_edge_data(np.zeros(2, np.int32), fill_value=0.5)
    with pytest.raises(ValueError, match="dropped"):
        graph.drop_edge_permutation().sort_edge_data(np.zeros(2))


@given(edges=edge_lists(), wide_offsets=st.booleans())
def test_from_csr(edges, wide_offsets):
    """Rows in any order within; `from_edges` of the expanded rows is the oracle."""
    order = np.argsort(edges.receivers, kind="stable")
    senders, receivers = edges.senders[order], edges.receivers[order]
    counts = np.bincount(receivers, minlength=edges.num_receivers)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    graph = Graph.from_csr(
        offsets.astype(np.int64 if wide_offsets else np.int32),
        senders,
        num_senders=None if edges.square else edges.num_senders,
    )
    oracle = Graph.from_edges(senders, receivers, **edges.counts())
    assert jax.tree.structure(graph) == jax.tree.structure(oracle)
    for leaf, expected in zip(jax.tree.leaves(graph), jax.tree.leaves(oracle), strict=True):
        np.testing.assert_array_equal(leaf, expected)


@pytest.mark.parametrize(
    ("offsets", "senders", "options", "message"),
    [
        ([], [], {}, "row_offsets: expected num_receivers"),
        ([1, 2], [0, 0], {}, "row_offsets: expected them to run from 0 .* got 1 to 2"),
        ([0, 1], [0, 0], {}, r"run from 0 to the number of senders \(2\), got 0 to 1"),
        ([0, 2, 1, 2], [0, 0], {}, r"row_offsets\[1\] = 2 before row_offsets\[2\] = 1"),
        (np.array([0, 2**63 - 1, -2, 1]), [0], {}, r"got row_offsets\[1\] = 9223372036854775807"),
        ([0, 2], [0, 1], {}, r"senders: expected 0 to num_nodes - 1 = 0, got senders\[1\] = 1"),
        ([0, 2], [0, 5], {"num_senders": 5}, r"num_senders - 1 = 4, got senders\[1\] = 5"),
    ],
)
def test_from_csr_errors(offsets, senders, options, message):
    with pytest.raises(ValueError, match=message):
        Graph.from_csr(offsets, senders, **options)


def test_from_edge_index():
    index = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = Graph.from_edge_index(index, num_nodes=5)
    np.testing.assert_array_equal(graph.receivers, [0, 1, 1, 2])
    np.testing.assert_array_equal(graph.senders, [1, 0, 2, 1])
    assert graph.num_senders == 5
    assert Graph.from_edge_index(jnp.asarray(index)).num_edges == 4
    with pytest.raises(ValueError, match=r"edge_index: expected the shape \(2, num_edges\)"):
        Graph.from_edge_index(index.T)
    with pytest.raises(TypeError, match="edge_index: expected an array, got Graph: its attribute"):
        Graph.from_edge_index(graph)
    with pytest.raises(ValueError, match="edge_index: expected an array of integers: setting"):
        Graph.from_edge_index([[0], [1, 2]])
    with pytest.raises(ValueError, match="senders: expected an array of integers: setting"):
        Graph.from_edges([0, [1]], [1, 0])


def test_from_torch_edge_index():
    torch = pytest.importorskip("torch")
    graph = Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]))
    np.testing.assert_array_equal(graph.senders, [0, 1])


def test_rectangular_needs_explicit_counts():
    assert Graph.from_edges([0], [0], num_nodes=2).is_square
    assert not Graph.from_edges([0], [0], num_senders=2, num_receivers=2).is_square
    inferred = Graph.from_edges([0, 4], [1, 0], num_senders=7)
    assert (inferred.num_senders, inferred.num_receivers) == (7, 2)
    assert not inferred.is_square


def test_empty_lists_and_any_integer_type(core):
    assert repr(Graph.from_edges([], [])) == "Graph(num_nodes=0, num_edges=0)"
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64, ">i4"):
        graph = Graph.from_edges(np.array([0, 2], dtype), np.array([1, 0], np.int64))
        np.testing.assert_array_equal(graph.senders, [2, 0])
    strided = np.arange(8, dtype=np.int32)[::2]
    np.testing.assert_array_equal(Graph.from_edges(strided, strided).senders, strided)


@pytest.mark.parametrize(
    ("senders", "receivers", "options", "error", "message"),
    [
        ([0.0], [0], {}, TypeError, "senders: expected integers, got float64"),
        ([0], [True], {}, TypeError, "receivers: expected integers, got bool"),
        ([[0]], [[0]], {}, ValueError, r"senders: expected a vector .* \(1, 1\)"),
        ([0, 1], [0], {}, ValueError, r"receivers: expected as many as senders \(2\), got 1"),
        ([0, -3], [0, 0], {}, ValueError, r"got senders\[1\] = -3"),
        ([0, 1], [0, 7], {"num_nodes": 5}, ValueError,
         r"receivers: expected 0 to num_nodes - 1 = 4, got receivers\[1\] = 7"),
        ([0, 2**31 - 1], [0, 0], {}, ValueError, r"senders\[1\] = 2147483647"),
        (np.array([2**63], np.uint64), [0], {}, ValueError, r"senders\[0\] = 9223372036854775808"),
        ([2**40], [0], {"num_senders": 3, "num_receivers": 1}, ValueError,
         r"num_senders - 1 = 2, got senders\[0\] = 1099511627776"),
        ([0], [0], {"num_nodes": 2, "num_senders": 2}, ValueError, "num_nodes: .* got both"),
        ([0], [0], {"num_nodes": -1}, ValueError, r"num_nodes: expected 0 to 2\*\*31 - 1, got -1"),
        ([0], [0], {"num_nodes": 2.0}, TypeError, "num_nodes: expected an integer, got 2.0"),
        ([0], [0], {"self_loops": "drop"}, ValueError, "self_loops: expected one of .* 'drop'"),
        ([0], [0], {"self_loops": np.array(["add", "x"])}, ValueError,
         "self_loops: expected one of 'keep', .* got array"),
        ([0], [0], {"num_senders": 1, "num_receivers": 1, "self_loops": "add"}, ValueError,
         "self_loops='add': expected a square graph"),
        ([0], [0], {"num_senders": 1, "num_receivers": 1, "undirected": True}, ValueError,
         "undirected=True: expected a square graph"),
        ([0], [0], {"num_nodes": True}, TypeError, "num_nodes: expected an integer, got True"),
        ([0], [0], {"undirected": "no"}, TypeError, "undirected: expected True or .* got 'no'"),
        ([0], [0], {"deduplicate": 1}, TypeError, "deduplicate: expected True or False, got 1"),
    ],
)  # fmt: skip
def test_from_edges_errors(core, senders, receivers, options, error, message):
    with pytest.raises(error, match=message):
        Graph.from_edges(senders, receivers, **options)


def test_counts_and_options_may_be_scalars_of_arrays(core):
    graph = Graph.from_edges([0], [1], num_nodes=jnp.int32(3), undirected=np.bool_(True))
    assert graph.num_nodes == 3 and graph.num_edges == 2


def test_wide_offsets_need_x64():
    csr = _csr.build([0, 1], [1, 0], wide=True)
    with pytest.raises(ValueError, match="jax_enable_x64"):
        Graph._from_host(csr)
    with jax.enable_x64(True):
        graph = Graph._from_host(csr)
        assert graph.row_offsets.dtype == graph.edge_permutation.dtype == jnp.int64
        assert graph.senders.dtype == jnp.int32


def test_documentation_runs():
    """The snippets of docs/graph.md, one after the other, with their assertions."""
    page = ROOT / "docs" / "graph.md"
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    assert len(snippets) >= 8
    exec(compile("\n".join(snippets), str(page), "exec"), {})


MEASURE = """
import numpy as np
from jaxgnn.graph._build import csr

def memory(field):
    with open("/proc/self/status") as status:
        return int(status.read().split(field)[1].split()[0]) * 1024

edges, nodes = 4_000_000, 1 << 18
senders, receivers = np.random.default_rng(0).integers(nodes, size=(2, edges))
csr.build(senders[:9], receivers[:9])
before = memory("VmRSS:")
csr = csr.build(senders, receivers, num_nodes=nodes)
result = sum(array.nbytes for array in csr if isinstance(array, np.ndarray))
print((memory("VmHWM:") - before + senders.nbytes + receivers.nbytes) / result)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.skipif(_csr.cpu_module is None, reason="jaxgnn._cpu is not built")
def test_building_takes_no_more_than_three_times_the_result():
    """The peak of memory while building, the user's 64-bit lists included."""
    assert float(run_python("-c", MEASURE).stdout) <= 3.0
