"""Attention under vmap, scan, checkpoint and shard_map, and what it is lowered to."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxgnn import Graph, gat_attention
from tests.support.devices import two_devices
from tests.support.oracle import close, draw_array
from tests.support.oracle_attention import KEY, draw_operands, gradients
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.usefixtures("strict")


@pytest.fixture(scope="module")
def graph():
    return skewed_graph(12, 60)


def custom_calls(f, *arguments):
    """How many of our custom calls the compiled function makes."""
    return len(re.findall(r"@jaxgnn_gat", jax.jit(f).lower(*arguments).as_text()))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "in_axes",
    [(0, None, None, None, None), (None, 0, 1, 0, None), (2, 1, 0, None, 0)],
    ids=str,
)
def test_vmap_is_one_call_on_more_heads(graph, in_axes):
    batch = 3
    operands = (*draw_operands(graph, 2, 4)[:4], jax.random.key_data(KEY))
    rng = np.random.default_rng(5)

    def batched(array, axis):
        if axis is None:
            return array
        if array.dtype == jnp.uint32:
            return jax.random.key_data(jax.random.split(KEY, batch))
        shape = (*array.shape[:axis], batch, *array.shape[axis:])
        return draw_array(rng, shape, "float32")

    operands = tuple(batched(a, axis) for a, axis in zip(operands, in_axes, strict=True))

    @functools.partial(jax.jit, static_argnums=0)
    def f(impl, *operands):
        return jnp.sin(
            gat_attention(
                graph, *operands[:4], dropout_rate=0.4, dropout_rng=operands[4], impl=impl
            )
        )

    def looped(*operands):
        def one(array, axis, i):
            return array if axis is None else jnp.take(array, i, axis)

        examples = [
            [one(a, axis, i) for a, axis in zip(operands, in_axes, strict=True)]
            for i in range(batch)
        ]
        return jnp.stack([f("jax", *example) for example in examples])

    mapped = jax.vmap(functools.partial(f, "kernel"), in_axes)
    assert custom_calls(mapped, *operands) == 1
    np.testing.assert_allclose(mapped(*operands), looped(*operands), rtol=1e-5, atol=1e-6)
    floats, key = operands[:4], operands[4]

    def all_gradients(mapped):
        return gradients(lambda *floats: mapped(*floats, key), floats)

    assert custom_calls(lambda *floats: gradients(lambda *f: mapped(*f, key), floats), *floats) == 3
    for a, b in zip(all_gradients(mapped), all_gradients(looped), strict=True):
        close(a, b, 5e-6)


def test_vmap_over_graphs_and_of_gradients():
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(3)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    v, src, dst, _, _ = draw_operands(graphs[0], 2, 3)

    @jax.jit
    def gradient(graph, v):
        return gradients(
            lambda *o: gat_attention(graph, *o, dropout_rate=0.2, dropout_rng=KEY), (v, src, dst)
        )

    together = jax.vmap(gradient, (0, None))(stacked, v)
    for i, graph in enumerate(graphs):
        for a, b in zip(together, gradient(graph, v), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-6)


def test_scan_and_checkpoint(graph):
    v, src, dst, bias, _ = draw_operands(graph, 2, 3)

    def layer(v, key, impl):
        out = gat_attention(
            graph, v, src, dst, bias, dropout_rate=0.3, dropout_rng=key, self_loops=True, impl=impl
        )
        return jnp.tanh(out)

    keys = jax.random.split(KEY, 3)

    def scanned(v):
        def step(v, key):
            return jax.checkpoint(functools.partial(layer, impl=None))(v, key), None

        return jnp.sum(jax.lax.scan(step, v, keys)[0] ** 2)

    def unrolled(v):
        for i in range(3):
            v = layer(v, keys[i], "jax")
        return jnp.sum(v**2)

    value, gradient = jax.jit(jax.value_and_grad(scanned))(v)
    expected_value, expected = jax.jit(jax.value_and_grad(unrolled))(v)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    close(gradient, expected, 1e-5)


def test_shard_map():
    """Each device has a graph of its own; features, scores and key are replicated."""
    mesh = two_devices()
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(2)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    operands = draw_operands(graphs[0], 2, 3)[:3]
    words = jax.random.key_data(KEY)

    def f(graph, words, *operands):
        return gat_attention(graph, *operands, dropout_rate=0.3, dropout_rng=words, self_loops=True)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("d"), P(), P(), P(), P()),
        out_specs=P("d"),
        check_vma=True,
    )
    def sharded(stacked, words, *operands):
        graph = jax.tree.map(lambda leaf: leaf[0], stacked)
        return f(graph, words, *operands)[None]

    def single(words, *operands):
        return jnp.stack([f(graph, words, *operands) for graph in graphs])

    def loss(f, *operands):
        return jnp.sum(jnp.sin(f(*operands)))

    ours = jax.jit(jax.value_and_grad(lambda *o: loss(sharded, stacked, words, *o), range(3)))
    theirs = jax.value_and_grad(lambda *o: loss(single, words, *o), range(3))
    for a, b in zip(
        jax.tree.leaves(ours(*operands)), jax.tree.leaves(theirs(*operands)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_nothing_of_edges_times_heads_is_made():
    graph = skewed_graph(50, 3000)
    v, src, dst, _, _ = draw_operands(graph, 4, 8)

    def run(graph, v, src, dst):
        return gradients(
            lambda *o: gat_attention(graph, *o, dropout_rate=0.5, dropout_rng=KEY), (v, src, dst)
        )

    text = jax.jit(run).lower(graph, v, src, dst).as_text()
    assert "jaxgnn_gat_attention_senders" in text
    for wide in ("3000x4", "3000x1x4", "12000"):
        assert wide not in text
