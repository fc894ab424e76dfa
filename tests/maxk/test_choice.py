"""Which of MaxK's engines a GPU runs, and that all compute the same."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, config, maxk, maxk_spmm
from jaxgnn._core import platform
from jaxgnn.ops._maxk import choice, spgemm_kernels, sspmm_kernels
from tests.support.oracle import draw_array
from tests.support.strategies import skewed_graph

# Sizes of the windows of the benchmark shapes: edges, nodes, entries, parts.
REDDIT = (114_615_892, 232_965, 48_292_869, 4_826)
ARTIST = (1_638_396, 50_515, 1_190_545, 790)
DD = (1_686_092, 334_925, 677_315, 5_234)


def case(shape, k, *, windows=True, itemsize=4, **more) -> choice.Case:
    edges, nodes, entries, parts = shape
    sizes = (entries, parts) if windows else (0, 0)
    return choice.Case(edges, nodes, nodes, 256, k, itemsize, *sizes, **more)


# Where the fastest of the measured times of an H200 is at least 25 % ahead of the next.
@pytest.mark.parametrize(
    ("shape", "windows", "k", "operation", "fastest"),
    [
        (REDDIT, True, 8, "spgemm", "windows"),
        (REDDIT, True, 32, "sspmm", "windows"),
        (REDDIT, True, 128, "spgemm", "windows"),
        (REDDIT, True, 192, "sspmm", "dense"),
        (REDDIT, False, 32, "spgemm", "rows"),
        (REDDIT, False, 32, "sspmm", "rows"),
        (REDDIT, False, 64, "sspmm", "dense"),
        (REDDIT, False, 192, "spgemm", "dense"),
        (ARTIST, True, 64, "sspmm", "windows"),
        (ARTIST, False, 8, "spgemm", "rows"),
        (DD, True, 8, "spgemm", "windows"),
        (DD, True, 128, "sspmm", "rows"),
    ],
)
def test_the_fastest_measured_engine_is_chosen(shape, windows, k, operation, fastest):
    assert choice.choose(case(shape, k, windows=windows), operation) == fastest


def test_without_windows_it_is_between_rows_and_dense_rows():
    assert set(choice.estimate(case(REDDIT, 32, windows=False), "spgemm")) == {"rows", "dense"}


@pytest.mark.parametrize("operation", ["spgemm", "sspmm"])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_estimates_grow_with_what_there_is_to_do(operation, itemsize):
    for more in ({}, {"weighted": True}, {"deterministic": True}):
        by_k = [
            choice.estimate(case(REDDIT, k, itemsize=itemsize, **more), operation)
            for k in (4, 8, 16, 32)
        ]
        for engine in by_k[0]:
            seconds = [estimate[engine] for estimate in by_k]
            assert seconds[0] > 0 and seconds == sorted(seconds)
    plain = choice.estimate(case(REDDIT, 32, itemsize=itemsize), operation)
    weighted = choice.estimate(case(REDDIT, 32, itemsize=itemsize, weighted=True), operation)
    assert all(weighted[engine] >= plain[engine] for engine in plain)
    assert weighted["windows"] > plain["windows"]


def test_an_empty_graph_has_an_estimate():
    empty = choice.Case(0, 0, 0, 256, 8, 4)
    assert choice.choose(empty, "spgemm") in ("rows", "dense")


def products(graph: Graph, x, weights, reduce, transpose):
    """The product and both gradients of a jitted `maxk_spmm`."""

    @jax.jit
    def run(x, weights, cotangent):
        def product(x, weights):
            return maxk_spmm(graph, maxk(x, 5), weights, reduce=reduce, transpose=transpose)

        out, pull = jax.vjp(product, x, weights)
        return out, pull(cotangent.astype(out.dtype))

    rows = graph.num_senders if transpose else graph.num_receivers
    return run(x, weights, jnp.asarray(draw_array(np.random.default_rng(3), (rows, 24), "float32")))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("transpose", [False, True])
def test_dense_rows_give_the_same(monkeypatch, weighted, reduce, transpose):
    """What a GPU runs for `"dense"`, by this platform's kernels."""
    graph = skewed_graph(60, 900)
    rng = np.random.default_rng(1)
    inputs = graph.num_receivers if transpose else graph.num_senders
    x = jnp.asarray(draw_array(rng, (inputs, 24), "float32"))
    weights = jnp.asarray(draw_array(rng, graph.num_edges, "float32")) if weighted else None
    expected = products(graph, x, weights, reduce, transpose)
    calls = set()
    for module in (spgemm_kernels, sspmm_kernels):

        def on_cuda(kernel, *, otherwise, module=module):
            calls.add(module)
            return kernel

        monkeypatch.setattr(module, "on_cuda", on_cuda)
    with config.use(maxk_engine="dense"):
        found = products(graph, x, weights, reduce, transpose)
    assert calls == {spgemm_kernels, sspmm_kernels}
    for ours, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-5 * float(jnp.abs(other).max()))


@pytest.mark.parametrize(
    ("dtype", "reduce", "wide"),
    [("float16", "mean", True), ("float16", "sum", False), ("bfloat16", "mean", False)],
)
def test_float16_means_divide_in_float32(monkeypatch, dtype, reduce, wide):
    """Where a cotangent over a degree may be less than float16 has."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    graph = skewed_graph(40, 400).with_windows()
    x = jnp.ones((40, 64), dtype)

    def loss(x):
        return jnp.sum(maxk_spmm(graph, maxk(x, 8), reduce=reduce).astype(jnp.float32))

    with config.use(maxk_engine="windows"):
        text = jax.jit(jax.grad(loss)).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    (call,) = re.findall(r"@jaxgnn_maxk_sspmm_windows\(.*? -> \(tensor<40x8x(\w+)>", text)
    assert (call == "f32") == wide


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["auto", "rows", "windows", "dense"])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_engine_gives_the_same_on_a_gpu(engine, deterministic, dtype):
    graph = skewed_graph(400, 9000).with_windows(weighted=True)
    rng = np.random.default_rng(1)
    x = jnp.asarray(draw_array(rng, (400, 24), "float32")).astype(dtype)
    for weights in (None, jnp.asarray(draw_array(rng, graph.num_edges, "float32"))):
        with config.use(impl="jax"):  # whose sums in 16 bits are rounded at each step on a GPU
            expected = products(graph, x.astype("float32"), weights, "mean", False)
        with config.use(maxk_engine=engine, deterministic=deterministic):
            found = products(graph, x, weights, "mean", False)
        tolerance = 2e-5 if dtype == "float32" else 2e-2
        for ours, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            ours, other = (np.asarray(a, np.float64) for a in (ours, other))
            np.testing.assert_allclose(ours, other, rtol=0, atol=tolerance * np.abs(other).max())
