"""Attention's dropout: its generator, its mask and its statistics."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, gat_attention
from jaxgnn.ops._core import dropout_mask
from tests.support.oracle import close
from tests.support.oracle_attention import KEY, dense_attention, draw_operands
from tests.support.paths import ROOT
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.usefixtures("strict")


def test_the_generator_gives_the_published_words():
    """The known answers of the authors' own library."""
    for word, key, expected in (
        (0, 0, ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]),
        (2**32 - 1, 2**32 - 1, ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]),
    ):
        counter = [jnp.full((), word, jnp.uint32)] * 4
        drawn = dropout_mask.philox4x32(counter, jnp.full(2, key, jnp.uint32))
        assert [f"{int(w):08x}" for w in drawn] == expected


def test_the_generator_s_header_is_free_of_platforms():
    own = '"common/host_device.h"'
    for name, included in (("philox", ["<cstdint>", own]), ("host_device", [])):
        text = (ROOT / "common" / f"{name}.h").read_text()
        assert re.findall(r"#include (\S+)", text) == included


@pytest.mark.parametrize(("heads", "loops"), [(1, False), (9, False), (3, True)])
def test_kernel_and_reference_draw_the_same_mask(heads, loops):
    """One edge for each receiver and no softmax to speak of: the result is the mask."""
    graph = Graph.from_edges(np.arange(1, 400), np.arange(399), num_senders=400, num_receivers=399)
    v = jnp.ones((400, heads, 1))
    src, dst = jnp.zeros((400, heads)), jnp.zeros((399, heads))
    loop_bias = jnp.full((399, heads), 1e4) if loops else None  # then the loop is all there is

    @functools.partial(jax.jit, static_argnums=0)
    def mask(impl):
        return gat_attention(
            graph,
            v,
            src,
            dst,
            dropout_rate=0.3,
            dropout_rng=KEY,
            self_loops=loops,
            loop_bias=loop_bias,
            impl=impl,
        )

    drawn = np.asarray(mask("kernel"))[:, :, 0]
    np.testing.assert_array_equal(drawn, mask("jax")[:, :, 0])
    words = dropout_mask.dropout_words(dropout_mask.key_words(KEY), 399 if loops else 0, 399, heads)
    np.testing.assert_array_equal(drawn > 0, words >= np.uint32(round(0.3 * 2**32)))
    np.testing.assert_allclose(np.unique(drawn), [0, 1 / 0.7], rtol=1e-6)
    # 0.7 of 399 heads, within five standard deviations.
    assert abs((drawn > 0).mean() - 0.7) < 5 * np.sqrt(0.21 / drawn.size)


def test_heads_edges_and_keys_are_independent():
    words = [
        dropout_mask.dropout_words(dropout_mask.key_words(jax.random.key(k)), 0, 5000, 8)
        for k in (0, 1)
    ]
    bits = np.concatenate([np.asarray(w >= np.uint32(2**31), float) for w in words], axis=1)
    correlation = np.corrcoef(np.concatenate([bits[:-1], bits[1:]], axis=1), rowvar=False)
    off_diagonal = correlation[~np.eye(32, dtype=bool)]
    assert np.abs(off_diagonal).max() < 5 / np.sqrt(5000)
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


def test_dropout_keeps_the_mean_and_follows_the_key():
    graph = skewed_graph(40, 800)
    operands = draw_operands(graph, 2, 3)[:4]
    f = jax.jit(lambda key: gat_attention(graph, *operands, dropout_rate=0.5, dropout_rng=key))
    outs = jax.vmap(f)(jax.random.split(KEY, 400))
    expected = gat_attention(graph, *operands)
    error = np.asarray(outs.mean(axis=0) - expected) / (np.asarray(outs.std(axis=0)) / 20 + 1e-9)
    assert np.abs(error).max() < 5.5
    np.testing.assert_array_equal(f(jax.random.key(3)), f(jax.random.key(3)))
    np.testing.assert_array_equal(f(jax.random.key(3)), f(jax.random.PRNGKey(3)))
    assert not np.array_equal(f(jax.random.key(3)), f(jax.random.key(4)))
    f(jax.random.key(3, impl="rbg"))  # a key of four words


def test_dropout_equals_brute_force():
    graph = skewed_graph(40, 800)
    v, src, dst, bias, loops = draw_operands(graph, 3, 5)
    keep = dropout_mask.keep_factors(
        dropout_mask.key_words(KEY), 0, 840, 3, dropout_mask.threshold(0.6), "float32"
    )
    out = gat_attention(
        graph,
        v,
        src,
        dst,
        bias,
        dropout_rate=0.6,
        dropout_rng=KEY,
        self_loops=True,
        loop_bias=loops,
    )
    expected = dense_attention(graph, v, src, dst, bias, loops=loops, keep=np.asarray(keep))
    close(out, expected, 1e-6)
