"""`sage_embedding` on any graph: the equation over what was drawn, and rows of length 1."""

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

from jaxgnn import Graph, sage_embedding
from tests.support.oracle_embedding import brute_force_embedding
from tests.support.strategies import examples

WIDTHS = {"Wf1": (4, 3), "Wa1": (4, 5), "Wf2": (8, 2), "Wa2": (8, 3)}
embed = jax.jit(
    sage_embedding,
    static_argnames=("num_children", "num_leaves", "aggr", "replace", "batch_size", "impl"),
)


@st.composite
def settings_of_a_call(draw):
    """A graph of few shapes, as each is compiled, and the arguments."""
    nodes, edges = draw(st.sampled_from([(1, 0), (2, 9), (12, 40)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    receivers = rng.integers(0, draw(st.integers(1, nodes)), edges)  # the others are isolated
    graph = Graph.from_edges(rng.integers(0, nodes, edges), receivers, num_nodes=nodes)
    arrays = {"features": (nodes, 4), **WIDTHS}
    x, *matrices = (rng.standard_normal(shape).astype(np.float32) for shape in arrays.values())
    x[rng.random(nodes) < 0.2] = 0  # rows without a length
    sources = draw(st.none() | st.lists(st.integers(-1, nodes - 1), min_size=7, max_size=7))
    options = {
        "num_children": draw(st.sampled_from([1, 3])),
        "num_leaves": draw(st.sampled_from([None, 4])),
        "replace": draw(st.booleans()),
        "sources": None if sources is None else np.asarray(sources, np.int32),
        "weights": rng.standard_normal(edges).astype(np.float32) if draw(st.booleans()) else None,
    }
    return graph, x, dict(zip(WIDTHS, matrices, strict=True)), options


@pytest.mark.few(1)
@pytest.mark.parametrize("aggr", ["mean", "sum", "max"])
@examples(4)
@given(
    call=settings_of_a_call(),
    batch_size=st.sampled_from([5, 65536]),
    impl=st.sampled_from([None, "jax"]),
    seed=st.integers(0, 2**31),
)
def test_any_graph(aggr, call, batch_size, impl, seed):
    graph, x, params, options = call
    key, options = jax.random.key(seed), options | {"aggr": aggr}
    out = embed(graph, x, params, key, batch_size=batch_size, impl=impl, **options)
    options["num_leaves"] = options["num_leaves"] or options["num_children"]
    expected = brute_force_embedding(graph, x, params, key, **options)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    lengths = np.linalg.norm(np.asarray(out, np.float64), axis=1)
    none = ~expected.any(axis=1)
    np.testing.assert_array_equal(lengths[none], 0)
    np.testing.assert_allclose(lengths[~none], 1, atol=1e-6)
