"""Gradients of attention by cosines of 16-bit rows on a GPU, by both kernels, against float64."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from jaxgnn import Graph
from jaxgnn._core import ffi
from jaxgnn.ops._attention import cosine_gradients, cosine_rule
from jaxgnn.ops._attention.cosine_rule import Cosine, CosineOperands

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)
ROUNDING = {"bfloat16": 2**-8, "float16": 2**-10}
KERNELS = ("tensor_cores", "walk")


def graph_of(senders: np.ndarray, receivers: np.ndarray, nodes: int, symmetric: bool) -> Graph:
    """With `symmetric` the edges both ways."""
    if symmetric:
        other = senders != receivers
        both = np.append(senders, receivers[other]), np.append(receivers, senders[other])
        senders, receivers = both
    graph = Graph.from_edges(senders, receivers, num_nodes=nodes)
    assert graph.symmetric == symmetric
    return graph


def hub(symmetric: bool) -> Graph:
    """Hubs at either end that are taken in parts, repeats, self-loops, nodes without edges."""
    senders, receivers = RNG.integers(0, 300, (2, 15_000))
    receivers[:5_000], senders[5_000:9_000] = 70, 71
    loops = np.repeat(np.arange(0, 300, 6), 2)
    graph = graph_of(np.append(senders, loops), np.append(receivers, loops), 310, symmetric)
    for chunks in (graph.row_chunks, graph.transpose_row_chunks):
        assert np.asarray(chunks.table)[:, 1].max() > 1
    return graph


def all_lengths(symmetric: bool) -> Graph:
    """Rows of 0 to 59 edges, and of the transpose about as many."""
    receivers = np.repeat(np.arange(60), np.arange(60))
    senders = RNG.permutation(receivers)
    return graph_of(senders, receivers, 60, symmetric)


def operands(graph: Graph, heads: int, width: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    """Rows of several lengths, and a cotangent."""
    shape = graph.num_senders, heads, width
    x = RNG.standard_normal(shape) * RNG.uniform(0.3, 3, (graph.num_senders, heads, 1))
    return jnp.asarray(x, dtype), jnp.asarray(RNG.standard_normal(shape), dtype)


@functools.partial(jax.jit, static_argnames="loops")
def residuals(graph: Graph, x: jax.Array, beta: jax.Array, *, loops: bool) -> Any:
    static = Cosine(loops, "rows")
    return cosine_rule.forward(static, CosineOperands(graph, x, beta[None]))


@functools.partial(jax.jit, static_argnames=("kernel", "loops"))
def backward(
    graph: Graph,
    x: jax.Array,
    beta: jax.Array,
    saved: Any,
    dy: jax.Array,
    *,
    kernel: Any,
    loops: Any,
) -> tuple[jax.Array, jax.Array]:
    static, given = Cosine(loops, "rows"), CosineOperands(graph, x, beta[None])
    _, dx, dbeta, _ = cosine_rule.gradients(static, given, *saved, dy, kernel=kernel)
    return dx, dbeta[0]


def exact(
    graph: Graph, x: Any, beta: Any, saved: Any, dy: Any, *, loops: bool
) -> tuple[np.ndarray, ...]:
    """In float64, by the equations of `cosine_rule.gradients`: the gradient of x and the size of
    its terms, that of beta and of its."""
    x, beta, out, log_sum, dy = (np.asarray(a, np.float64) for a in (x, beta, *saved, dy))
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    nodes = graph.num_senders
    if loops:
        kept = senders != receivers
        senders = np.append(senders[kept], np.arange(nodes))
        receivers = np.append(receivers[kept], np.arange(nodes))
    dx, sizes = np.zeros((2, *x.shape))
    dbeta, beta_sizes = np.zeros((2, x.shape[1]))
    for h, b in enumerate(beta):
        norms = np.linalg.norm(x[:, h], axis=1)
        c, cube = 1 / np.maximum(norms, 1e-12), np.where(norms > 1e-12, norms, np.inf) ** -3.0
        units = c[:, None] * x[:, h]
        scores = b * np.einsum("ef,ef->e", units[senders], units[receivers])
        alpha = np.exp(scores - log_sum[receivers, h])
        delta = np.sum(dy[:, h] * out[:, h], axis=1)
        ds = alpha * (np.einsum("ef,ef->e", dy[receivers, h], x[senders, h]) - delta[receivers])
        size = np.einsum("ef,ef->e", np.abs(dy[receivers, h]), np.abs(x[senders, h]))
        size = alpha * (size + np.abs(delta[receivers]))

        def summed(values: np.ndarray) -> Any:
            return scipy.sparse.coo_matrix((values, (receivers, senders)), (nodes, nodes)).tocsr()

        u = summed(ds) @ units + summed(ds).T @ units
        u_size = summed(size) @ np.abs(units) + summed(size).T @ np.abs(units)
        along = np.sum(x[:, h] * u, axis=1, keepdims=True)
        along_size = np.sum(np.abs(x[:, h]) * u_size, axis=1, keepdims=True)
        dx[:, h] = summed(alpha).T @ dy[:, h]
        dx[:, h] += b * (c[:, None] * u - cube[:, None] * along * x[:, h])
        sizes[:, h] = summed(alpha).T @ np.abs(dy[:, h]) + np.abs(b) * (
            c[:, None] * u_size + cube[:, None] * along_size * np.abs(x[:, h])
        )
        dbeta[h], beta_sizes[h] = c @ along[:, 0] / 2, c @ along_size[:, 0] / 2
    return dx, sizes, dbeta, beta_sizes


def check(
    graph: Graph,
    heads: int,
    width: int,
    dtype: str,
    *,
    loops: bool = False,
    zero: bool = False,
    kernels: tuple[str, ...] = KERNELS,
) -> None:
    """The gradients, in the same bits twice; with `zero` one node's row is 0."""
    x, dy = operands(graph, heads, width, dtype)
    x = x.at[graph.num_senders // 2].set(0) if zero else x
    beta = jnp.asarray([1.5, -2.0, 9.0][:heads])
    saved = residuals(graph, x, beta, loops=loops)
    dx, sizes, dbeta, beta_sizes = exact(graph, x, beta, saved, dy, loops=loops)
    for kernel in kernels:
        run = functools.partial(backward, graph, x, beta, saved, dy, kernel=kernel, loops=loops)
        found = run()
        for again, one in zip(run(), found, strict=True):
            np.testing.assert_array_equal(again, one)
        error = np.abs(np.asarray(found[0], np.float64) - dx)
        bound = ROUNDING[dtype] * np.abs(dx) + 3e-5 * sizes + 1e-7
        assert (error <= bound).all(), (kernel, (error / bound).max())
        error = np.abs(np.asarray(found[1], np.float64) - dbeta)
        assert (error <= 1e-5 * beta_sizes + 1e-7).all(), (kernel, error, dbeta)


SYMMETRIC = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
DTYPES = pytest.mark.parametrize("dtype", list(ROUNDING))


@SYMMETRIC
@DTYPES
def test_long_rows(dtype, symmetric):
    """In chunks; several heads and widths, self-loops, a row schedule, a table with padding."""
    graph = hub(symmetric)
    check(graph, 1, 64, dtype)
    check(graph, 2, 24, dtype, loops=True)
    check(graph.with_row_schedule(), 3, 8, dtype, loops=True)
    tables = {}
    for name in ("row_chunks", "transpose_row_chunks"):
        chunks = getattr(graph, name)
        table = np.append(chunks.table, np.full((9, 2), [-1, 0]), axis=0)
        tables[name] = dataclasses.replace(chunks, table=jnp.asarray(table, jnp.int32))
    check(dataclasses.replace(graph, **tables), 1, 40, dtype, kernels=KERNELS[:1])


@SYMMETRIC
@DTYPES
def test_short_rows(dtype, symmetric):
    """Every number of edges in the last iteration, with a self-loop and without."""
    graph = all_lengths(symmetric)
    check(graph, 1, 64, dtype)
    check(graph, 1, 64, dtype, loops=True)
    check(graph, 2, 8, dtype, loops=True, zero=dtype == "bfloat16")


@DTYPES
def test_self_loops_alone(dtype):
    for graph in (
        Graph.from_edges([], [], num_nodes=70),
        Graph.from_edges(np.arange(70), np.arange(70), num_nodes=90),
    ):
        check(graph, 2, 16, dtype, loops=True)
        check(graph, 1, 64, dtype)


@pytest.mark.parametrize("loops", [False, True], ids=["", "loops"])
@pytest.mark.parametrize("of", ["x", "cotangent"])
@SYMMETRIC
def test_what_is_not_finite_reaches_its_neighbors_alone(symmetric, of, loops):
    """And of these the head alone; all else has the same bits as without it."""
    graph = all_lengths(symmetric)
    x, dy = operands(graph, 2, 24, "bfloat16")
    beta, node = jnp.asarray([1.0, -1.0]), int(graph.senders[-1])
    saved = residuals(graph, x, beta, loops=loops)
    run = functools.partial(backward, kernel="tensor_cores", loops=loops)

    def with_values(*values: float) -> jax.Array:
        given = [array.at[node, 0, :2].set(jnp.asarray(values, "bfloat16")) for array in (x, dy)]
        return run(graph, given[0] if of == "x" else x, beta, saved, given[1] if of != "x" else dy)[
            0
        ]

    found, plain = with_values(np.nan, np.inf), with_values(0.0, 0.0)
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    reached = np.zeros(graph.num_senders, bool)
    reached[senders[receivers == node]] = True
    if of == "x":  # the scores of the edges that it starts, too
        reached[receivers[senders == node]] = True
    reached[node] = True
    assert not reached.all()
    finite = np.asarray(jnp.isfinite(found).all(axis=2))
    np.testing.assert_array_equal(finite, np.stack([~reached, np.ones_like(reached)], axis=1))
    np.testing.assert_array_equal(np.asarray(found)[finite], np.asarray(plain)[finite])


def test_rows_that_tensor_cores_do_not_take():
    """Below the public operation: of the target itself."""
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    structure = [graph.row_offsets, graph.senders, graph.row_chunks.table, jnp.zeros(3, jnp.int32)]
    parts = 2 * graph.row_chunks.table.shape[0]
    for width, dtype in ((64, "float32"), (72, "bfloat16")):
        x = jnp.ones((3, width), dtype)
        results: list[Any] = [(x.shape, x.dtype), ((3, 1), jnp.float32)]
        results += [((3, width), jnp.float32), ((parts, 2 * width), jnp.float32)]
        attributes = {"heads": 1, "self_loops": 0, "symmetric": 0, "chunk_length": 8}
        given = [*structure, *structure, x, jnp.ones(1), jnp.ones((3, 4)), x]
        with pytest.raises(Exception, match="tensor cores take 16-bit values and heads of at most"):
            out = ffi.call(cosine_gradients.TARGET, given, results, tensor_cores=1, **attributes)
            jax.block_until_ready(out)
