"""Conversions from and to SciPy, NetworkX and jraph."""

import builtins
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph
from tests.support.strategies import dense_adjacency, examples, graphs

FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")


def random_matrix(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-3, 4, size=shape) * (rng.random(shape) < 0.4)
    return matrix.astype(dtype)


@pytest.mark.parametrize(
    ("format", "shape"),
    [
        (format, shape)
        for format in FORMATS
        for shape in [(6, 6), (4, 7), (0, 3), (0, 0)]
        if format != "dia" or 0 not in shape  # SciPy's DIA format has no empty matrices
    ],
)
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_from_scipy_formats(format, shape, kind):
    dense = random_matrix(shape, np.float32)
    constructor = getattr(scipy.sparse, f"coo_{kind}")
    graph, weights = Graph.from_scipy(constructor(dense).asformat(format))
    assert graph.is_square == (shape[0] == shape[1])
    assert (graph.num_senders, graph.num_receivers) == shape
    np.testing.assert_array_equal(dense_adjacency(graph, weights), dense.T)
    if 0 not in shape:
        assert weights.dtype == jnp.float32
        back = graph.to_scipy(weights)
        assert back.shape == shape
        np.testing.assert_array_equal(back.toarray(), dense)


def test_from_scipy_keeps_zeros_and_repeated_entries():
    entries = ([2.0, 0.0, 3.0, 4.0], ([0, 1, 0, 0], [1, 0, 1, 0]))
    graph, weights = Graph.from_scipy(scipy.sparse.coo_array(entries, shape=(2, 2)))
    np.testing.assert_array_equal(graph.senders, [0, 1, 0, 0])
    np.testing.assert_array_equal(graph.receivers, [0, 0, 1, 1])
    np.testing.assert_array_equal(weights, [4, 0, 2, 3])
    np.testing.assert_array_equal(graph.sort_edge_data(np.arange(4.0)), [3, 1, 0, 2])


@pytest.mark.parametrize(
    ("dtype", "expected", "expected_x64"),
    [
        (bool, np.float32, np.float32),
        (np.int64, np.float32, np.float32),
        (np.uint8, np.float32, np.float32),
        (np.float32, np.float32, np.float32),
        (np.float64, np.float32, np.float64),
        (np.longdouble, np.float32, np.float64),
    ],
)
def test_from_scipy_dtypes(dtype, expected, expected_x64):
    matrix = scipy.sparse.coo_array(np.eye(3, dtype=dtype))
    assert Graph.from_scipy(matrix)[1].dtype == expected
    with jax.enable_x64(True):
        assert Graph.from_scipy(matrix)[1].dtype == expected_x64


def test_from_scipy_errors():
    with pytest.raises(TypeError, match="expected a SciPy sparse matrix, got ndarray"):
        Graph.from_scipy(np.eye(2))
    with pytest.raises(TypeError, match="expected real entries, got complex128"):
        Graph.from_scipy(scipy.sparse.coo_array(np.eye(2) * 1j))
    with pytest.raises(ValueError, match=r"two dimensions, got the shape \(3,\)"):
        Graph.from_scipy(scipy.sparse.coo_array(np.ones(3)))
    with pytest.raises(ValueError, match=r"entries within float32, got .*1e\+300"):
        Graph.from_scipy(scipy.sparse.csr_array([[0, 1e300], [2, 0]]))
    assert np.isinf(Graph.from_scipy(scipy.sparse.csr_array([[np.inf]]))[1]).all()


@examples(20)
@given(graph=graphs(), seed=st.integers(0, 99))
def test_scipy_round_trip(graph, seed):
    weights = np.random.default_rng(seed).normal(size=graph.num_edges).astype(np.float32)
    matrix = graph.to_scipy(weights)
    np.testing.assert_allclose(matrix.toarray(), dense_adjacency(graph, weights).T, atol=1e-5)
    back, back_weights = Graph.from_scipy(matrix)
    np.testing.assert_array_equal(back.senders, graph.senders)
    np.testing.assert_array_equal(back.row_offsets, graph.row_offsets)
    np.testing.assert_array_equal(back_weights, weights)


def test_to_scipy_weights():
    graph = Graph.from_edges([0, 1], [1, 0])
    assert graph.to_scipy().dtype == np.float32
    half = graph.to_scipy(jnp.array([1.5, 2.0], jnp.bfloat16))
    np.testing.assert_array_equal(half.toarray(), [[0, 2], [1.5, 0]])
    with pytest.raises(ValueError, match=r"weights: expected one for each of the 2 .* \(3,\)"):
        graph.to_scipy(np.ones(3))


# NetworkX.


@pytest.mark.parametrize("kind", ["Graph", "DiGraph", "MultiGraph", "MultiDiGraph"])
def test_from_networkx(kind):
    networkx = pytest.importorskip("networkx")
    source = getattr(networkx, kind)()
    source.add_nodes_from(["lone", "b", "a"])
    source.add_edge("a", "b", strength=2)
    source.add_edge("b", "c", strength=np.float32(3.5))
    source.add_edge("c", "c")
    source.add_edge("b", "a", strength=5.0)
    graph, weights = Graph.from_networkx(source, weight="strength")
    adjacency = networkx.to_numpy_array(source, weight="strength")  # sums repeated edges
    np.testing.assert_array_equal(dense_adjacency(graph, weights), adjacency.T)
    loops = 1
    expected = source.number_of_edges() * (1 if source.is_directed() else 2)
    assert graph.num_edges == expected - (0 if source.is_directed() else loops)
    np.testing.assert_array_equal(graph.self_loops, [0, 0, 0, 1])
    edges, none = Graph.from_networkx(source)
    assert none is None
    np.testing.assert_array_equal(edges.senders, graph.senders)
    # The user's edges are those of `source.edges`.
    in_order = [d for *_, d in source.edges(data="strength", default=1.0)]
    np.testing.assert_array_equal(graph.sort_edge_data(np.array(in_order, np.float32)), weights)


def test_networkx_empty_and_errors():
    networkx = pytest.importorskip("networkx")
    graph, weights = Graph.from_networkx(networkx.empty_graph(3), weight="weight")
    assert graph.num_edges == 0 and graph.num_senders == 3 and weights.shape == (0,)
    source = networkx.DiGraph()
    source.add_edge("x", "y", weight="1.5")
    with pytest.raises(TypeError, match=r"got '1.5' as 'weight' of the edge \('x', 'y'\)"):
        Graph.from_networkx(source, weight="weight")
    with pytest.raises(ValueError, match="expected a square graph"):
        Graph.from_edges([0], [0], num_senders=1, num_receivers=2).to_networkx()


@examples(20)
@given(graph=graphs(square=True))
def test_networkx_round_trip(graph):
    pytest.importorskip("networkx")
    weights = np.arange(graph.num_edges, dtype=np.float32)
    result = graph.to_networkx(weights)
    assert list(result.nodes) == list(range(graph.num_senders))
    assert result.number_of_edges() == graph.num_edges
    back, back_weights = Graph.from_networkx(result, weight="weight")
    np.testing.assert_array_equal(back.senders, graph.senders)
    np.testing.assert_array_equal(back.row_offsets, graph.row_offsets)
    np.testing.assert_array_equal(back_weights, weights)
    assert not any(d for *_, d in graph.to_networkx().edges(data=True))


def test_to_networkx_without_networkx(monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *args, **options):
        if name == "networkx":
            raise ImportError(name)
        return real_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install 'jaxgnn\[networkx\]'"):
        Graph.from_edges([0], [0]).to_networkx()


# jraph.


class GraphsTuple(NamedTuple):
    """The fields of jraph's class."""

    nodes: Any
    edges: Any
    receivers: Any
    senders: Any
    globals: Any
    n_node: Any
    n_edge: Any


def test_from_jraph():
    tuple_of_two = GraphsTuple(
        nodes=None,
        edges=None,
        senders=jnp.array([0, 1, 3]),
        receivers=jnp.array([1, 0, 2]),
        globals=None,
        n_node=jnp.array([2, 2, 3]),  # the last: padding
        n_edge=jnp.array([2, 1, 0]),
    )
    graph = Graph.from_jraph(tuple_of_two)
    assert graph.is_square and graph.num_senders == 7
    expected = np.zeros((7, 7))
    expected[[1, 0, 2], [0, 1, 3]] = 1
    np.testing.assert_array_equal(dense_adjacency(graph), expected)
    with pytest.raises(ValueError, match=r"n_edge: expected it to sum .* \(3\), got 4"):
        Graph.from_jraph(tuple_of_two._replace(n_edge=np.array([2, 2, 0])))
    with pytest.raises(ValueError, match=r"senders\[2\] = 3"):
        Graph.from_jraph(tuple_of_two._replace(n_node=np.array([3])))
    with pytest.raises(TypeError, match="got no senders"):
        Graph.from_jraph(tuple_of_two._replace(senders=None))
    for name in ("n_node", "n_edge"):
        for values, message in (
            (jnp.array([2.5, 5]), "integers, got float32"),
            ([2.7], "integers, got float64"),
            ("a", "integers, got <U1"),
            ([[1], [1, 2]], "an array, got lists of different lengths"),
            ([4, -1], "none below 0, got -1"),
        ):
            with pytest.raises((TypeError, ValueError), match=f"{name}: expected {message}"):
                Graph.from_jraph(tuple_of_two._replace(**{name: values}))
    for name in ("senders", "n_node", "n_edge"):
        with pytest.raises(TypeError, match=rf"{name}: a graph is built .* outside jax\.jit"):
            jax.jit(lambda x, name=name: Graph.from_jraph(tuple_of_two._replace(**{name: x})))(
                jnp.array([2, 1, 0])
            )


def test_two_complete_graphs_from_jraph():
    """What `jraph.get_fully_connected_graph(3, 2, None, add_self_edges=False)` gives."""
    senders, receivers = np.nonzero(1 - np.eye(3, dtype=int))
    source = GraphsTuple(
        nodes=None,
        edges=None,
        receivers=jnp.concatenate([receivers, receivers + 3]),
        senders=jnp.concatenate([senders, senders + 3]),
        globals=None,
        n_node=jnp.array([3, 3]),
        n_edge=jnp.array([6, 6]),
    )
    graph = Graph.from_jraph(source)
    assert graph.is_square and graph.num_edges == 12
    np.testing.assert_array_equal(dense_adjacency(graph), np.kron(np.eye(2), 1 - np.eye(3)))


def test_from_networkx_by_an_attribute_that_no_edge_has():
    networkx = pytest.importorskip("networkx")
    source = networkx.Graph([(0, 1, {"weight": 2.0}), (1, 2)])
    with pytest.raises(ValueError, match="weight: expected an attribute of edges, got 'wieght'"):
        Graph.from_networkx(source, weight="wieght")


def test_from_networkx_of_something_else():
    for other in ([(0, 1)], None, "graph", np.eye(2)):
        with pytest.raises(TypeError, match="graph: expected a NetworkX graph, got "):
            Graph.from_networkx(other)


@pytest.mark.parametrize("value", [1e300, -1e39, 10**400], ids=["above", "below", "integer"])
def test_from_networkx_of_weights_beyond_float32(value):
    networkx = pytest.importorskip("networkx")
    source = networkx.Graph()
    source.add_edge("a", "b", weight=value)
    with pytest.raises(ValueError, match=r"weight: expected numbers within float32, got "):
        Graph.from_networkx(source, weight="weight")
    source.add_edge("a", "b", weight=math.inf)
    assert np.isinf(Graph.from_networkx(source, weight="weight")[1]).all()
