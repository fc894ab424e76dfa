"""Which kernel of attention by cosines runs where, as programs are lowered; values on a CPU."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, cosine_attention
from jaxgnn._core import ffi, platform
from jaxgnn.distributed import shard
from jaxgnn.ops._attention import cosine_gradients, cosine_rule, cosine_tiles
from jaxgnn.ops._core.rows import neighbors
from tests.support.arrays import normal
from tests.support.devices import two_devices
from tests.support.oracle_attention import gradients
from tests.support.strategies import skewed_graph

NODES = 200


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Rows of 150 edges on average."""
    return skewed_graph(NODES, 30_000, undirected=True).with_tiles(min_edges=2)


@pytest.fixture
def gpu(monkeypatch):
    """Programs may be lowered as for a GPU with all kernels."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    monkeypatch.setitem(ffi.targets, "cuda", set(cosine_rule.TARGETS))


def lowered(graph, x, beta=1.0, *, to="cuda", vmap=False, **options):
    """The program of the values, or with `vmap` of a batch of two."""
    call = functools.partial(cosine_attention, **options)
    if vmap:
        call = jax.vmap(call, (None, 0, None))
        x = jnp.stack([x, x])
    traced = jax.jit(call).trace(graph, x, jnp.asarray(beta))
    return traced.lower(lowering_platforms=(to,)).as_text()


def kernel_of(text):
    """The kernel of a lowered program, and whether its tiles have parts."""
    (target,) = set(re.findall(r"@(jaxgnn_\w+)\(", text))
    if target != cosine_tiles.TARGET:
        return {"jaxgnn_cosine_attention": "walk"}[target]
    return "rows" if "tensor<0x4xi32>" in text else "tiles"


def ones(*shape, dtype="bfloat16"):
    return jnp.ones((NODES, *shape), dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_heads_of_16_bits(graph, gpu, dtype):
    x = ones(2, 64, dtype=dtype)
    for loops in (False, True):
        kernel = functools.partial(lowered, graph, x, self_loops=loops)
        assert kernel_of(kernel(impl="tiles")) == "tiles"
        assert kernel_of(kernel(impl="rows")) == "rows"
        assert kernel_of(kernel()) == "rows"  # this small graph's launches take longer
        assert f"self_loops = {int(loops)}" in kernel()
    assert kernel_of(lowered(graph, x, impl="tiles", vmap=True)) == "tiles"
    assert "heads = 4 " in lowered(graph, x, impl="tiles", vmap=True)


def test_other_heads_run_the_walk(graph, gpu):
    for x in (ones(1, 64, dtype="float32"), ones(1, 72), ones(8, 8)):
        for impl in ("rows", None):
            assert kernel_of(lowered(graph, x, impl=impl)) == "walk"
    assert kernel_of(lowered(graph, ones(1, 72), impl="tiles")) == "walk"
    short = skewed_graph(NODES, 4_000)
    assert kernel_of(lowered(short, ones(1, 64))) == "walk"
    assert kernel_of(lowered(short.with_tiles(min_edges=64), ones(1, 64), impl="tiles")) == "walk"


def test_the_fastest_kernel_by_estimate(graph):
    """The estimates follow the measurements in docs/kernels/tiles.md; narrow heads and short rows
    are the walk's."""
    assert cosine_tiles.picoseconds(232_965, 114_615_892, 1, 64, None) == pytest.approx(
        {"walk": 4.66e9, "rows": 2.264e9}, rel=0.04
    )
    # artist and arxiv, whose kernels change places
    for nodes, edges, fastest in ((50_515, 1_638_396, "rows"), (169_343, 2_315_598, "walk")):
        estimates = cosine_tiles.picoseconds(nodes, edges, 1, 64, None)
        assert min(estimates, key=lambda kernel: estimates[kernel]) == fastest
    rows = neighbors(graph, transpose=False)
    estimates = cosine_tiles.picoseconds(NODES, graph.num_edges, 2, 64, graph.tiles)
    assert set(estimates) == {"walk", "rows", "tiles"}
    assert cosine_tiles.choose(rows, graph.tiles, ones(2, 64), None) == "rows"
    many = ones(2_000, 64)  # heads, of which each saves the same
    assert cosine_tiles.choose(rows, graph.tiles, many, None) == "tiles"
    assert cosine_tiles.choose(rows, graph.tiles, many, "rows") == "rows"
    assert cosine_tiles.choose(rows, graph.tiles, ones(70_000, 8), "tiles") == "walk"


def backward_kernel(graph, x, *, vmap=False):
    """Whether the gradient's kernel makes its dot products on tensor cores."""

    def loss(x):
        call = functools.partial(cosine_attention, graph)
        return jnp.sum((jax.vmap(call) if vmap else call)(x).astype(jnp.float32))

    x = jnp.stack([x, x]) if vmap else x
    traced = jax.jit(jax.grad(loss)).trace(x)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@jaxgnn_cosine_attention_gradients(") == 1
    return {"0": "walk", "1": "tensor_cores"}[re.findall(r"tensor_cores = (\d)", text)[0]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_kernel_of_the_gradients(graph, gpu, dtype):
    """By tensor cores for long rows of wide heads of 16 bits; the walk has all else."""
    for vmap in (False, True):
        assert backward_kernel(graph, ones(2, 64, dtype=dtype), vmap=vmap) == "tensor_cores"
    assert backward_kernel(skewed_graph(NODES, 30_000), ones(1, 64, dtype=dtype)) == "tensor_cores"
    assert backward_kernel(graph, ones(8, 8, dtype=dtype)) == "walk"
    assert backward_kernel(graph, ones(1, 72, dtype=dtype)) == "walk"
    assert backward_kernel(graph, ones(1, 64, dtype="float32")) == "walk"
    assert backward_kernel(skewed_graph(NODES, 1_000), ones(1, 64, dtype=dtype)) == "walk"


def test_the_gradients_kernel_is_the_fastest_by_estimate(graph):
    """Each head takes the same; a directed graph takes more."""
    rows, shape = neighbors(graph, transpose=False), (NODES, graph.num_edges)
    one, two, directed = (
        cosine_gradients.picoseconds(*shape, heads, 64, symmetric=symmetric)
        for heads, symmetric in ((1, True), (2, True), (1, False))
    )
    for kernel in ("walk", "tensor_cores"):
        assert two[kernel] == 2 * one[kernel] and directed[kernel] > one[kernel]
    fastest = min(one, key=lambda kernel: one[kernel])
    assert cosine_gradients.choose(rows, ones(1, 64), symmetric=True) == fastest
    assert cosine_gradients.choose(rows, ones(70_000, 8), symmetric=True) == "walk"


def test_on_a_cpu_tiles_change_nothing(graph):
    """The program of rows, and its bits, with gradients."""
    plain = skewed_graph(NODES, 30_000, undirected=True)
    x, beta = normal(NODES, 2, 16).astype(jnp.bfloat16), jnp.asarray([1.0, -2.0])

    def run(graph, impl, x, beta):
        f = functools.partial(cosine_attention, graph, self_loops=True, impl=impl)
        return f(x, beta), *gradients(f, (x, beta))

    expected = jax.jit(functools.partial(run, plain, None))(x, beta)
    for impl in ("tiles", "rows", None):
        if jax.default_backend() == "cpu":
            out = jax.jit(functools.partial(run, graph, impl))(x, beta)
            jax.tree.map(np.testing.assert_array_equal, out, expected)
        calls = [
            re.findall(r"@jaxgnn_\w+", lowered(g, x, beta, to="cpu", impl=i))
            for g, i in ((graph, impl), (plain, None))
        ]
        assert calls[0] == calls[1] and len(calls[0]) == 1


def test_what_impl_may_be(graph):
    """Also on a sharded graph, whose parts by rows have no tiles."""
    x, plain = ones(2, 8), skewed_graph(NODES, 400)
    sharded = shard(plain, two_devices(), rows="d")
    places = jnp.ones((sharded.num_senders, 2, 8), "bfloat16")
    needs = "impl: 'tiles' needs a graph with tiles"
    for call, message in (
        (lambda: cosine_attention(plain, x, impl="tiles"), needs),
        (lambda: cosine_attention(graph, x, impl="gpu"), "impl: expected one of None, 'kernel'"),
        (
            lambda: cosine_attention(sharded, places, impl="gpu"),
            "impl: expected one of None, 'kernel'",
        ),
        (lambda: cosine_attention(sharded, places, impl="tiles"), needs),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    rows = cosine_attention(sharded, places, impl="rows")
    np.testing.assert_array_equal(rows, cosine_attention(sharded, places))
