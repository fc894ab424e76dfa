"""Merged edge data: the sum of three and more values has the bits of a sum in their order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxgnn import Graph, transform
from jaxgnn.graph._build.ordered_sum import sum_in_order, sum_sorted_rows, take_in_order
from tests.support.arrays import normal

COUNTS = np.arange(1, 10)  # edges between two nodes
RECEIVERS = np.random.default_rng(0).permutation(np.repeat(np.arange(9), COUNTS))
SENDERS = RECEIVERS + 9
SIZE = RECEIVERS.size


def of_many_scales(*shape):
    """Values whose sum depends on its order."""
    scales = 10.0 ** np.random.default_rng(1).integers(-3, 4, size=shape)
    return np.asarray(normal(*shape) * scales, np.float32)


def in_order(values, index, size, dtype=np.float32):
    sums = np.zeros((size, *values.shape[1:]), dtype)
    for row, i in zip(values, index, strict=True):
        if i < size:
            sums[i] = sums[i] + row
    return sums


@pytest.mark.parametrize("columns", [(), (3,)])
def test_merged_values_are_sums_in_the_users_order(columns):
    data = of_many_scales(SIZE, *columns)
    expected = in_order(data, RECEIVERS, 9)
    assert (expected != in_order(data[::-1], RECEIVERS[::-1], 9)).any()
    of_list = Graph.from_edges(SENDERS, RECEIVERS, num_nodes=18, deduplicate=True, edge_data=data)
    graph, sorted_ = Graph.from_edges(SENDERS, RECEIVERS, num_nodes=18, edge_data=data)

    def coalesced(weights):
        return transform.coalesce(graph, weights)[1]

    for merged in (of_list[1], coalesced(sorted_), jax.jit(coalesced)(sorted_)):
        np.testing.assert_array_equal(merged, expected)
    # Both ways: first all edges, then all reverses. Here the values of a pair come from one way.
    for values in (
        transform.to_undirected(graph, sorted_)[1],
        jax.jit(lambda w: transform.to_undirected(graph, w)[1])(sorted_),
        Graph.from_edges(SENDERS, RECEIVERS, num_nodes=18, undirected=True, edge_data=data)[1],
    ):
        np.testing.assert_array_equal(values, np.concatenate([expected, expected]))


def test_gradients_are_sums_in_order_too():
    """Of the user's order: as many cotangents as edges were merged."""
    graph, values = Graph.from_edges(
        SENDERS, RECEIVERS, num_nodes=18, deduplicate=True, edge_data=np.ones(SIZE, np.float32)
    )
    cotangent = of_many_scales(SIZE)
    (back,) = jax.jit(lambda v, ct: jax.vjp(graph.unsort_edge_data, v)[1](ct))(values, cotangent)
    np.testing.assert_array_equal(back, in_order(cotangent, RECEIVERS, 9))
    weights = of_many_scales(9)
    (back,) = jax.vjp(graph.sort_edge_data, jnp.asarray(cotangent))[1](jnp.asarray(weights))
    np.testing.assert_array_equal(back, weights[RECEIVERS])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_kernel_sums_in_the_rows_order(dtype):
    """What runs on a GPU: rows sorted by their index, those beyond the size left out."""
    with jax.enable_x64(dtype == "float64"):
        index = jnp.asarray(np.append(RECEIVERS, [9, 9]))
        rows = jnp.asarray(of_many_scales(SIZE + 2, 3), dtype)
        wide = np.asarray(rows, np.float64 if dtype == "float64" else np.float32)
        expected = in_order(wide, index, 9, wide.dtype)
        sums = jax.jit(lambda i, r: sum_sorted_rows(i, r[:, None], 9))(index, jnp.asarray(wide))
        np.testing.assert_array_equal(sums[:, 0], expected)
        np.testing.assert_array_equal(
            sum_in_order(rows, index, 9), jnp.asarray(expected, dtype), strict=True
        )


def test_long_rows_and_none():
    """A row of several chunks is summed chunk by chunk, and empty ones are 0."""
    index = np.r_[np.full(3000, 2), 0, np.full(7, 4)]
    rows = np.asarray(normal(index.size, 1, 2), np.float32)
    sums = sum_sorted_rows(jnp.asarray(index), jnp.asarray(rows), 6)
    expected = in_order(rows.astype(np.float64), index, 6, np.float64)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-4)
    assert not np.asarray(sums)[[1, 3, 5]].any()
    for shape, size in (((0, 2), 3), ((4, 0), 3), ((4, 2), 0)):
        some = jnp.ones(shape), jnp.zeros(shape[0], jnp.int32)
        assert sum_in_order(*some, size).shape == (size, shape[1])
        assert take_in_order(jnp.ones((size, shape[1])), some[1]).shape == shape


def test_transformations():
    index, rows = jnp.asarray(RECEIVERS), jnp.asarray(of_many_scales(4, SIZE, 2))
    one_by_one = jnp.stack([sum_in_order(r, index, 9) for r in rows])
    np.testing.assert_array_equal(jax.vmap(lambda r: sum_in_order(r, index, 9))(rows), one_by_one)
    several = jnp.stack([index, index[::-1]])
    both = jax.vmap(lambda i: sum_in_order(rows[0], i, 9))(several)
    np.testing.assert_array_equal(both[0], one_by_one[0])
    np.testing.assert_array_equal(both[1], sum_in_order(rows[0], several[1], 9))
    forward = jax.jacfwd(lambda r: sum_in_order(r, index, 9))(rows[0, :, 0])
    np.testing.assert_array_equal(forward, np.arange(9)[:, None] == RECEIVERS)
    back = jax.jacrev(lambda v: take_in_order(v, index))(jnp.ones(9))
    np.testing.assert_array_equal(back, forward.T)
    mesh = Mesh(np.asarray(jax.devices("cpu")[:1]), ("d",))
    spec = PartitionSpec(None, "d")
    sharded = jax.shard_map(
        lambda r: jax.grad(lambda r: (sum_in_order(r, index, 9) ** 2).sum())(r),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
    )(rows[0])
    np.testing.assert_array_equal(sharded, 2 * one_by_one[0][RECEIVERS])
