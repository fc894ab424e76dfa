"""Graphs whose arrays were altered: `Graph.validate` and `jaxgnn.config.check_graphs`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, Graph, config, gat_attention, gather_edges, maxk, maxk_spmm, spmm
from tests.support.arrays import normal
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.few(1)

NODES, EDGES = 40, 900
X = normal(NODES, 2, 8)
S = X[:, :, 0]


@pytest.fixture(scope="module")
def graph():
    return skewed_graph(NODES, EDGES)


def changed(graph: Graph, name: str, place: int, value: int) -> Graph:
    if name.endswith("chunks"):
        chunks = getattr(graph, name)
        table = chunks.table.at[place, 0].set(value)
        return dataclasses.replace(graph, **{name: dataclasses.replace(chunks, table=table)})
    return dataclasses.replace(graph, **{name: getattr(graph, name).at[place].set(value)})


LIES = [
    ("senders", 7, 10**6),
    ("senders", 0, -1),
    ("row_offsets", 5, 10**6),
    ("row_offsets", -1, EDGES - 1),
    ("transpose_receivers", 3, NODES),
    ("transpose_row_offsets", 0, 1),
    ("transpose_permutation", 2, 10**8),
    ("row_chunks", 0, 10**5),
    ("self_loops", 4, -3),
]


@pytest.mark.parametrize(("name", "place", "value"), LIES)
def test_validate_names_the_array(graph, name, place, value):
    assert graph.validate() is graph
    with pytest.raises(ValueError, match=f"graph: {name}: expected"):
        changed(graph, name, place, value).validate()


def test_validate_of_other_arrays(graph):
    with pytest.raises(ValueError, match=r"senders: expected the shape \(900,\), got \(899,\)"):
        dataclasses.replace(graph, senders=graph.senders[1:]).validate()
    with pytest.raises(ValueError, match="transpose_permutation: expected each of 0 to 899 once"):
        changed(graph, "transpose_permutation", 0, int(graph.transpose_permutation[1])).validate()
    shorter = dataclasses.replace(graph.row_chunks, longest=100)
    with pytest.raises(ValueError, match=r"row_chunks\.longest: expected .* or more, got 100"):
        dataclasses.replace(graph, row_chunks=shorter).validate()
    scheduled = graph.with_row_schedule()
    with pytest.raises(ValueError, match="row_schedule: expected"):
        changed(scheduled, "row_schedule", 0, int(scheduled.row_schedule[1])).validate()
    windows = graph.with_windows()
    assert windows.validate() is windows
    for name, value in (("senders", NODES), ("rows", NODES), ("parts", 10**6)):
        array = getattr(windows.windows, name)
        lie = dataclasses.replace(windows.windows, **{name: array.at[0].set(value)})
        with pytest.raises(ValueError, match="windows"):
            dataclasses.replace(windows, windows=lie).validate()
    with pytest.raises(TypeError, match=r"validate: call it outside jax\.jit"):
        jax.jit(lambda graph: graph.validate().senders)(graph)


@pytest.mark.parametrize(
    "graph",
    [
        Graph.from_edges([], [], num_nodes=0),
        Graph.from_edges([], [], num_nodes=3),
        Graph.from_edges([0, 4], [1, 1], num_senders=5, num_receivers=2),
        Graph.from_edges([0, 0, 1], [1, 1, 1], num_nodes=4, undirected=True),
        skewed_graph(300, 30_000).with_row_schedule().with_windows(),
    ],
)
def test_graphs_of_the_constructors_are_valid(graph):
    graph.validate()
    x = jnp.ones((graph.num_senders, 8))
    with config.use(check_graphs=True):
        checked = jax.jit(spmm)(graph, x)
    np.testing.assert_array_equal(checked, spmm(graph, x))


ROWS = {"senders", "row_offsets", "row_chunks"}
TRANSPOSE = {"transpose_receivers", "transpose_row_offsets"}
# A GPU's backward pass of MaxK scatters along the rows.
OF_MAXK = set() if jax.default_backend() == "gpu" else TRANSPOSE
# An operation, what its forward pass reads, and what its backward pass reads beside that.
OPERATIONS = {
    "spmm": (lambda g, x: spmm(g, x), ROWS, TRANSPOSE),
    "spmm max": (lambda g, x: spmm(g, x, reduce="max"), ROWS, TRANSPOSE),
    "gat": (lambda g, x: gat_attention(g, x, S, S), ROWS, TRANSPOSE),
    "maxk": (lambda g, x: maxk_spmm(g, maxk(x[:, 0], 4)), ROWS, OF_MAXK),
    "gather": (
        lambda g, x: gather_edges(g, x),
        ROWS,
        {"transpose_row_offsets", "transpose_permutation"},
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("jitted", [False, True])
def test_operations_refuse_a_graph_that_lies(graph, operation, jitted):
    call, forward, backward = OPERATIONS[operation]
    gradient = jax.grad(lambda x, g: jnp.sum(call(g, x) ** 2))
    if jitted:
        call, gradient = jax.jit(call), jax.jit(gradient)
    with config.use(check_graphs=True):
        checked = call(graph, X)
        for name, place, value in LIES:
            lie = changed(graph, name, place, value)
            if name in forward:
                with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="out of range"):
                    jax.block_until_ready(call(lie, X))
            if name in backward:
                with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="out of range"):
                    jax.block_until_ready(gradient(X, lie))
    np.testing.assert_array_equal(checked, call(graph, X))


def test_under_vmap(graph):
    x = jnp.stack([X, -X])
    with config.use(check_graphs=True):
        checked = jax.jit(jax.vmap(spmm, (None, 0)))(graph, x)
    np.testing.assert_array_equal(checked, jax.jit(jax.vmap(spmm, (None, 0)))(graph, x))


ON_SPARSE_ROWS = {
    "maxk_spmm": (1, jax.jit(lambda g, rows: maxk_spmm(g, rows))),
    "gat_attention": (2, jax.jit(lambda g, rows: gat_attention(g, rows, S, S))),
    "to_dense": (1, lambda g, rows: rows.to_dense()),
}


@pytest.mark.parametrize("name", ON_SPARSE_ROWS)
def test_columns_of_sparse_rows(graph, name):
    """Repeated, descending, and beyond the width."""
    heads, call = ON_SPARSE_ROWS[name]
    with config.use(check_graphs=True):
        rows = maxk(X[:, 0] if heads == 1 else X, 4)
        checked = call(graph, rows)
        for columns in ([0, 3, 3, 5], [0, 5, 3, 7], [0, 3, 5, 8]):
            indices = rows.indices.at[3].set(jnp.array(columns, jnp.uint8))
            with pytest.raises(
                (ValueError, jax.errors.JaxRuntimeError), match="expected ascending columns below 8"
            ):
                jax.block_until_ready(call(graph, CBSR(rows.values, indices, 8)))
    np.testing.assert_array_equal(checked, call(graph, rows))


@pytest.mark.gpu
def test_windows(graph):
    graph = graph.with_windows()
    lie = dataclasses.replace(graph.windows, senders=graph.windows.senders + 10**6)
    with (
        config.use(check_graphs=True, maxk_engine="windows"),
        pytest.raises(jax.errors.JaxRuntimeError, match="windows' senders out of range"),
    ):
        call = jax.jit(lambda graph, x: maxk_spmm(graph, maxk(x, 4)))
        jax.block_until_ready(call(dataclasses.replace(graph, windows=lie), X[:, 0]))
