"""`SAGEEmbedding`: its equation, `jaxgnn.sage_embedding` with its matrices, blocks, its errors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import Graph
from jaxgnn.nn import SAGEEmbedding
from tests.support.oracle_embedding import normalized

NODES, WIDTH, CLASSES = 20, 5, 3


def example():
    """Duplicate edges and self-loops; the last nodes have no edge in."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(NODES, size=60), rng.integers(NODES - 4, size=60)
    graph = Graph.from_edges(senders, receivers, num_nodes=NODES)
    x = rng.normal(size=(NODES, WIDTH)).astype(np.float32)
    return graph, x, rng.uniform(0.5, 2, graph.num_edges).astype(np.float32)


def make(hidden=8, **options):
    return SAGEEmbedding(WIDTH, hidden, CLASSES, num_layers=2, rngs=nnx.Rngs(0), **options)


def by_hand(graph, x, matrices, weights=None):
    """The embedding of all nodes from all neighbors, in float64."""
    rows, offsets = np.asarray(x, np.float64), np.asarray(graph.row_offsets)
    senders = np.asarray(graph.senders)
    weights = np.ones(graph.num_edges) if weights is None else weights
    for own, around in (("Wf1", "Wa1"), ("Wf2", "Wa2")):
        wf, wa = (np.asarray(matrices[name], np.float64) for name in (own, around))
        out = []
        for node in range(graph.num_nodes):
            edges = range(offsets[node], offsets[node + 1])
            messages = [weights[e] * rows[senders[e]] for e in edges] or [rows[node]]
            parts = [rows[node] @ wf, np.mean(messages, axis=0) @ wa]
            out.append(normalized(np.maximum(np.concatenate(parts), 0)))
        rows = np.asarray(out)
    return rows


@pytest.mark.parametrize("hidden", [8, 15])  # projected before the aggregation, and after
def test_the_rows_are_those_of_the_equation_and_of_the_operation(hidden):
    graph, x, weights = example()
    model = make(hidden)
    model.linear.bias[...] = jnp.arange(3.0)
    matrices = model.matrices()
    assert matrices["Wf1"].shape == (WIDTH, hidden - hidden // 2)
    call = nnx.jit(lambda model, graph, x, weights: model(graph, x, weights))
    for given in (None, weights):
        rows = by_hand(graph, x, matrices, given)
        expected = rows @ np.asarray(model.linear.kernel[...]) + np.arange(3)
        np.testing.assert_allclose(call(model, graph, x, given), expected, atol=1e-5)
    # Without replacement, more children than edges: all neighbors.
    embed = jax.jit(partial(jaxgnn.sage_embedding, num_children=20, replace=False))(
        graph, x, matrices, jax.random.key(0)
    )
    np.testing.assert_allclose(embed, by_hand(graph, x, matrices), atol=1e-5)


def test_blocks_of_all_neighbors_give_the_seeds_rows():
    graph, x, _ = example()
    model, seeds = make(), np.array([3, NODES - 1, -1, 7])
    call = nnx.jit(lambda model, graph, x: model(graph, x))
    whole = call(model, graph, x)
    blocks = jaxgnn.sample_neighbors(graph, seeds, [20, 20], jax.random.key(0))
    for rows in (blocks.take(jnp.asarray(x)), blocks.rows(jnp.asarray(x))):
        out, real = call(model, blocks, rows), seeds >= 0
        np.testing.assert_allclose(out[real], np.asarray(whole)[seeds[real]], atol=1e-5)


def test_gradients_are_finite_where_rows_are_zero():
    graph, x, _ = example()
    model = make(dtype=jnp.bfloat16, sample_size=2, strategy="random")
    loss = nnx.jit(nnx.value_and_grad(lambda model, x: jnp.mean(model(graph, x) ** 2)))
    for rows in (x, 0 * x):
        value, gradients = loss(model, rows)
        assert value.dtype == jnp.bfloat16
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 3}, "num_layers: expected 2 of an embedding, got 3"),
        ({"input_layer": True}, "input_layer: expected False of an embedding, got True"),
        ({"norm": "batch"}, "norm: expected None of an embedding, got BatchNorm"),
        ({"residual": True}, "residual: expected False of an embedding, got True"),
    ],
)
def test_other_forms_have_no_matrices(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        SAGEEmbedding(5, 8, 3, **{"num_layers": 2, **options}, rngs=nnx.Rngs(0)).matrices()


def test_a_width_that_has_no_two_parts():
    with pytest.raises(ValueError, match=r"^hidden_features: expected at least 2, .* got 1$"):
        make(1)
