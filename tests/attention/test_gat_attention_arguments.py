"""Attention's arguments: arrays without elements, and errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, gat_attention
from jaxgnn._core import ffi
from tests.support.oracle_attention import KEY, WITHOUT_ELEMENTS, draw_operands

pytestmark = pytest.mark.usefixtures("strict")


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_arrays_without_elements(impl):
    for senders, receivers, heads, width in WITHOUT_ELEMENTS:
        empty = Graph.from_edges([], [], num_senders=senders, num_receivers=receivers)
        operands = draw_operands(empty, heads, width)
        for loops in (False, True):
            out = gat_attention(empty, *operands[:4], self_loops=loops, impl=impl)
            assert out.shape == (receivers, heads, width)
    empty = Graph.from_edges([], [], num_nodes=3)
    v, src, dst, _, _ = draw_operands(empty, 2, 4)
    np.testing.assert_array_equal(gat_attention(empty, v, src, dst, impl=impl), 0)
    np.testing.assert_allclose(gat_attention(empty, v, src, dst, self_loops=True, impl=impl), v)


def bad_calls():
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    v, s, b = jnp.ones((3, 2, 4)), jnp.ones((3, 2)), jnp.ones((2, 2))
    f = functools.partial(gat_attention, graph)
    return {
        "graph": (lambda: gat_attention(v, v, s, s), TypeError, "graph: expected a jaxgnn.Graph"),
        "rows": (lambda: f(v[1:], s, s), ValueError, r"v: .* \(3, ...\).*got \(2, 2, 4\)"),
        "axes": (lambda: f(s, s, s), ValueError, r"v: .* \(3, heads, features\), got \(3, 2\)"),
        "integers": (lambda: f(v.astype(int), s, s), TypeError, "v: expected float32.*int32"),
        "source": (lambda: f(v, b, s), ValueError, r"score_src: .* \(3, 2\), got \(2, 2\)"),
        "target": (lambda: f(v, s, v), ValueError, r"score_dst: .* \(3, 2\), got \(3, 2, 4\)"),
        "bias": (lambda: f(v, s, s, s), ValueError, r"edge_bias: .* \(2, 2\), got \(3, 2\)"),
        "loop": (
            lambda: f(v, s, s, loop_bias=s),
            ValueError,
            "loop_bias: expected self_loops=True",
        ),
        "self-loops": (
            lambda: f(v, s, s, self_loops="keep"),
            TypeError,
            "self_loops: expected True or False, got 'keep'",
        ),
        "slope": (
            lambda: f(v, s, s, negative_slope=float("nan")),
            ValueError,
            "negative_slope: expected a finite number, got nan",
        ),
        "traced": (lambda: f(v, s, s, negative_slope=s), TypeError, "negative_slope: .* number"),
        "rate": (lambda: f(v, s, s, dropout_rate=1), ValueError, "dropout_rate: .* less than 1"),
        "no key": (
            lambda: f(v, s, s, dropout_rate=0.5),
            ValueError,
            "dropout_rng: expected a JAX key",
        ),
        "seed": (
            lambda: f(v, s, s, dropout_rate=0.5, dropout_rng=3),
            TypeError,
            "dropout_rng: .* got int",
        ),
        "keys": (
            lambda: f(v, s, s, dropout_rate=0.5, dropout_rng=jax.random.split(KEY)),
            ValueError,
            r"dropout_rng: expected one key, got the shape \(2,\)",
        ),
        "impl": (lambda: f(v, s, s, impl="cuda"), ValueError, "impl: expected None, 'kernel'"),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_bad_arguments(name):
    call, error, message = bad_calls()[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("place", range(10))
def test_operands_that_do_not_fit_are_an_error(place):
    """Below the public operation: the target itself reads nothing out of bounds."""
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    s = jnp.ones((3, 2))
    streams = jnp.ones((3, 2), jnp.uint32)
    operands = [
        graph.row_offsets,
        graph.senders,
        graph.row_chunks.table,
        jnp.arange(3, dtype=jnp.int32),
    ]
    operands += [jnp.ones((3, 8)), s, s, jnp.ones((2, 2)), s, streams]
    results = [((3, 8), jnp.float32), ((3, 4), jnp.float32), ((1, 12), jnp.float32)]
    results += [((6,), jnp.float32)]
    attributes = {"negative_slope": 0.2, "drop_below": 0, "self_loops": 1, "chunk_length": 8}

    def call():
        out = ffi.call("jaxgnn_gat_attention", operands, results, **attributes)
        return jax.block_until_ready(out)

    call()
    wrong = operands[place]
    operands[place] = wrong.astype(jnp.float32 if wrong.dtype != jnp.float32 else jnp.int32)
    with pytest.raises(Exception, match="jaxgnn_gat_attention: "):
        call()
