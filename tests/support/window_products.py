"""MaxK's products over windows, by the library and in float64."""

import functools

import jax
import numpy as np
import pytest
import scipy.sparse

from jaxgnn import Graph, maxk, maxk_spmm
from tests.support.oracle import edges


def hubs() -> Graph:
    """Windows in several parts: a receiver of 9,000 edges, and repeated ones."""
    rng = np.random.default_rng(0)
    senders = rng.integers(6000, size=60_000)
    receivers = rng.integers(300, size=60_000)
    receivers[:9000] = 7
    return Graph.from_edges(senders, receivers, num_nodes=6000).with_windows(weighted=True)


@functools.partial(jax.jit, static_argnames=("k", "reduce", "packed"))
def products(graph, x, cotangent, k, reduce="sum", packed=False):
    """`maxk_spmm` and the gradient for x."""

    def product(x):
        return maxk_spmm(graph, maxk(x, k, packed=packed), reduce=reduce)

    out, vjp = jax.vjp(product, x)
    return out, vjp(cotangent)[0]


reference_maxk = jax.jit(functools.partial(maxk, impl="jax"), static_argnames="k")


def expected_products(graph, x, cotangent, k, reduce="sum"):
    """The same in float64, from the definition; each with the size of its terms."""
    source, target = edges(graph)
    shape = (graph.num_receivers, graph.num_senders)
    # SciPy's products are many times as fast as `np.add.at`.
    adjacency = scipy.sparse.csr_array((np.ones(len(source)), (target, source)), shape=shape)
    cbsr = reference_maxk(x, k=k)
    kept = np.zeros(x.shape, bool)
    np.put_along_axis(kept, np.asarray(cbsr.indices, np.int64), True, axis=1)
    x, cotangent = np.asarray(x, np.float64), np.asarray(cotangent, np.float64)
    degree = np.maximum(np.bincount(target, minlength=graph.num_receivers), 1)[:, None]

    def both(x, cotangent):
        out = adjacency @ np.where(kept, x, 0)
        if reduce == "mean":
            out, cotangent = out / degree, cotangent / degree
        return out, np.where(kept, adjacency.T @ cotangent, 0)

    return tuple(zip(both(x, cotangent), both(np.abs(x), np.abs(cotangent)), strict=True))


def row_error(result, expected) -> float:
    """The largest error, relative to the size of the terms in its row."""
    expected, size = expected
    result = np.asarray(result, np.float64)
    assert result.shape == expected.shape and np.isfinite(result).all()
    if not result.size:
        return 0.0
    scale = np.maximum(size.max(axis=1, keepdims=True), 1e-300)
    return float((np.abs(result - expected) / scale).max())


# Of the gradient: fast and deterministic, which are one algorithm on the CPU.
both_algorithms = pytest.mark.parametrize(
    "deterministic",
    [False, pytest.param(True, marks=pytest.mark.gpu)],
    ids=["fast", "deterministic"],
)


TOLERANCE = {"float32": 2e-6, "bfloat16": 1e-2, "float16": 1.5e-3}


@functools.partial(jax.jit, static_argnames=("k", "reduce", "packed"))
def weighted_products(graph, x, weights, cotangent, k, reduce="sum", packed=False):
    """`maxk_spmm` with weights, and the gradients for x and for them."""

    def product(x, weights):
        return maxk_spmm(graph, maxk(x, k, packed=packed), weights, reduce=reduce)

    out, vjp = jax.vjp(product, x, weights)
    return out, *vjp(cotangent)


def expected_weighted(graph, x, weights, cotangent, k, reduce="sum"):
    """The same in float64, from the definition; each with the size of its terms."""
    source, target = edges(graph)
    shape = (graph.num_receivers, graph.num_senders)
    kept = np.zeros(x.shape, bool)
    np.put_along_axis(kept, np.asarray(reference_maxk(x, k=k).indices, np.int64), True, axis=1)
    degree = np.maximum(np.bincount(target, minlength=shape[0]), 1)[:, None]
    x, weights, cotangent = (np.asarray(a, np.float64) for a in (x, weights, cotangent))

    def all_three(x, weights, cotangent):
        adjacency = scipy.sparse.csr_array((weights, (target, source)), shape=shape)
        x = np.where(kept, x, 0)
        over = cotangent / degree if reduce == "mean" else cotangent
        out = adjacency @ x / (degree if reduce == "mean" else 1)
        return out, np.where(kept, adjacency.T @ over, 0), (x[source] * over[target]).sum(axis=1)

    exact = all_three(x, weights, cotangent)
    return tuple(zip(exact, all_three(*map(np.abs, (x, weights, cotangent))), strict=True))


def draw_weights(rng, kind: str, count: int) -> np.ndarray:
    """Weights of a kind. Those of several magnitudes are strewn over all rows."""
    uniform, normal = rng.random(count), rng.standard_normal(count)
    return {
        "ones": np.ones(count),
        "uniform": uniform,
        "normal": normal,
        "half zero": normal * (uniform < 0.5),
        "zero": np.zeros(count),
        "decades": 10.0 ** (-4 * uniform),
        "clusters": uniform * rng.choice([1e10, 1.0, 1e-10], count),
        "many decades": 10.0 ** (40 * uniform - 20),
        "1e30": 1e30 * normal,
        "1e-30": 1e-30 * normal,
        "both": uniform * rng.choice([1e30, 1e-30], count),
    }[kind].astype(np.float32)
