"""The nearest neighbors' graph against brute force: sorted, padded, on the device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxgnn import Graph, data, gather_edges, knn_graph, spmm
from jaxgnn.graph._build import device_csr, row_chunks
from jaxgnn.ops._knn import nearest
from tests.support.devices import two_devices
from tests.support.strategies import skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

RUN = jax.jit(knn_graph, static_argnums=1, static_argnames="loop")


def brute_force(points, k, *, batch=None, loop=False):
    """(senders, receivers) by point, nearest first; the lower index at ties."""
    points = np.asarray(points, np.float64)
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    if not loop:
        np.fill_diagonal(distance, np.inf)
    if batch is not None:
        distance[np.asarray(batch)[:, None] != np.asarray(batch)] = np.inf
    k = min(k, len(points))
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :k]
    known = np.isfinite(np.take_along_axis(distance, nearest, axis=1))
    receivers = np.broadcast_to(np.arange(len(points))[:, None], nearest.shape)
    return nearest[known], receivers[known]


def grid(count, dimensions=3, extent=4, seed=0):
    """Points of a small grid: ties and coinciding points in plenty."""
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(extent, size=(count, dimensions)), jnp.float32)


def assert_is(graph, expected, counted=True):
    """Every leaf is that of the graph built on the host, split tables padded or not."""
    for name in (
        "row_offsets",
        "senders",
        "transpose_row_offsets",
        "transpose_receivers",
        "transpose_permutation",
        "self_loops",
        *(["edge_permutation"] if counted else []),
    ):
        ours, theirs = getattr(graph, name), getattr(expected, name)
        assert ours.dtype == jnp.int32, name
        np.testing.assert_array_equal(ours, theirs, name)
    for name in ("row_chunks", "transpose_row_chunks"):
        ours, theirs = getattr(graph, name), getattr(expected, name)
        assert ours.length == theirs.length
        ours, theirs = np.asarray(ours.table), np.asarray(theirs.table)
        np.testing.assert_array_equal(ours[ours[:, 0] >= 0], theirs[theirs[:, 0] >= 0])
    assert graph.is_square and graph.num_edges == expected.num_edges


@pytest.mark.parametrize(("loop", "block"), [(False, 2048), (False, 16), (True, 16)])
def test_is_brute_force(monkeypatch, loop, block):
    """Of one block of distances, and of several, the last of them not full."""
    monkeypatch.setattr(nearest, "_BLOCK", block)
    points = grid(50)
    graph = jax.jit(lambda points: knn_graph(points, 6, loop=loop))(points)
    senders, receivers = brute_force(points, 6, loop=loop)
    assert_is(graph, Graph.from_edges(senders, receivers, num_nodes=50))
    if not loop:
        assert not np.any(np.asarray(graph.self_loops))
        host = data.knn(np.asarray(points), 6, symmetrize=False)
        np.testing.assert_array_equal(graph.senders, host.senders)


@pytest.mark.parametrize(
    ("loop", "order", "block"),
    [(False, "sorted", 16), (True, "mixed", 16), (False, "mixed", 2048)],
)
def test_clouds_of_any_sizes(monkeypatch, loop, order, block):
    """Some with fewer than k others, one of a single point: the last node has those edges."""
    monkeypatch.setattr(nearest, "_BLOCK", block)
    sizes, k = [20, 3, 1, 26], 6
    batch = np.repeat(np.arange(4), sizes)
    if order == "mixed":
        batch = np.random.default_rng(1).permutation(batch)
    points = grid(50)
    options = {"padding_node": True, "loop": loop}
    run = jax.jit(lambda points, batch: knn_graph(points, k, batch=batch, **options))
    graph = run(points, batch)
    senders, receivers = brute_force(points, k, batch=batch, loop=loop)
    padding = np.full(50 * k - senders.size, 50)
    expected = Graph.from_edges(
        np.append(senders, padding), np.append(receivers, padding), num_nodes=51
    )
    assert padding.size and graph.num_receivers == 51
    assert_is(graph, expected, counted=False)
    known = np.asarray(graph.receivers) < 50
    assert known.sum() == senders.size
    # Arrays by point, nearest first, come into the graph's order.
    ranks = jnp.arange(50 * k) % k
    permutation = np.asarray(graph.edge_permutation)
    assert (permutation[~known] == -1).all()
    np.testing.assert_array_equal(permutation[known] // k, np.asarray(graph.receivers)[known])
    assert np.all(np.asarray(graph.sort_edge_data(ranks, fill_value=-1))[~known] == -1)
    # And the operations take it: nothing reaches the padding node or comes from it.
    x = jnp.ones((51, 2)).at[50].set(jnp.nan)
    sums = np.asarray(spmm(graph, x))[:50, 0]
    np.testing.assert_array_equal(sums, np.bincount(receivers, minlength=50))


@pytest.mark.parametrize("loop", [False, True])
def test_clouds_of_enough_points_need_no_padding_node(loop):
    batch = np.repeat([5, 2, 9], [7, 30, 13])
    points, k = grid(50), 7 if loop else 6
    graph = knn_graph(points, k, batch=batch, loop=loop)
    senders, receivers = brute_force(points, k, batch=batch, loop=loop)
    assert_is(graph, Graph.from_edges(senders, receivers, num_nodes=50))
    with pytest.raises(ValueError, match=rf"batch: .* at least {k + 1 + (not loop)} .* one of 7"):
        knn_graph(points, k + 1, batch=batch, loop=loop)


def test_clouds_of_equal_size():
    clouds = jnp.stack([grid(12, seed=seed) for seed in range(3)])
    graph = RUN(clouds, 4)
    batch = np.repeat(np.arange(3), 12)
    senders, receivers = brute_force(clouds.reshape(36, 3), 4, batch=batch)
    assert_is(graph, Graph.from_edges(senders, receivers, num_nodes=36))


def test_edge_data_by_nearness():
    """What is given nearest first ends at the edge that it belongs to."""
    points = grid(20, extent=9)
    graph = RUN(points, 5)
    senders, receivers = brute_force(points, 5)
    distance = np.square(np.asarray(points)[senders] - np.asarray(points)[receivers]).sum(axis=1)
    difference = gather_edges(graph, points, points, "sub")
    squares = jnp.sum(difference**2, axis=1)
    np.testing.assert_array_equal(graph.sort_edge_data(distance), squares)


def test_a_hub_is_split():
    """A point that is the nearest of all: a row of the transpose that the kernels split."""
    points = jnp.eye(301, 300)  # unit vectors, and the origin
    graph = RUN(points, 1)
    assert (np.asarray(graph.transpose_row_chunks.table)[:, 0] >= 0).sum() > 1
    senders = np.append(np.full(300, 300), 0)
    assert_is(graph, Graph.from_edges(senders, np.arange(301), num_nodes=301))
    out = spmm(graph, jnp.ones((301, 1)), transpose=True)
    np.testing.assert_array_equal(out[:, 0], graph.out_degrees)


def test_the_chunks_of_long_rows():
    table = jax.jit(row_chunks.chunk_rows_on_device, static_argnums=1)
    for lengths in (
        [512, 512, 512, 512, 512, 0],
        [0, 0, 0, 0, 0, 2560],
        [513, 1535, 1, 511, 0, 0],
        [2048, 0, 512, 0, 0, 0],
        [426, 426, 427, 427, 427, 427],
    ):
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        expected = row_chunks.chunk_rows(offsets, row_chunks.chunk_length(2560, 6)).table
        ours = np.asarray(table(jnp.asarray(offsets), 2560).table)
        assert len(ours) == row_chunks.chunk_capacity(2560, 6)
        used = expected[expected[:, 0] >= 0]
        np.testing.assert_array_equal(ours[: len(used)], used)
        assert (ours[len(used) :] == [-1, 0]).all()


def test_a_graph_of_sorted_edges_is_the_host_s():
    graph = skewed_graph(30, 900)
    built = jax.jit(device_csr.square_graph)(
        graph.row_offsets, graph.senders, graph.receivers, graph.edge_permutation
    )
    assert_is(built, graph)


@pytest.mark.parametrize(
    ("points", "k", "loop", "edges"),
    [
        (0, 3, False, 0),
        (1, 3, False, 0),
        (1, 3, True, 1),
        (4, 9, False, 12),
        (4, 9, True, 16),
    ],
)
def test_few_points(points, k, loop, edges):
    def counts(points, **options):
        graph = jax.eval_shape(lambda points: knn_graph(points, k, loop=loop, **options), points)
        assert graph.senders.shape == (graph.num_edges,)
        return graph.num_receivers, graph.num_edges

    cloud = grid(points)
    assert counts(cloud) == (points, edges)
    batch = np.zeros(points, np.int32)
    assert counts(cloud, batch=batch) == (points, edges)
    assert counts(cloud, batch=batch, padding_node=True) == (points + 1, edges)
    assert counts(jnp.stack([cloud] * 2)) == (2 * points, 2 * edges)


def test_fewer_points_than_neighbors():
    alone = jax.jit(lambda points: knn_graph(points, 3))(grid(1))
    assert alone.num_edges == 0
    np.testing.assert_array_equal(spmm(alone, jnp.ones((1, 2))), jnp.zeros((1, 2)))
    points = grid(4)
    graph = RUN(points, 9, loop=True)
    np.testing.assert_array_equal(np.asarray(graph.senders).reshape(4, 4), [np.arange(4)] * 4)


@pytest.mark.parametrize("loop", [False, True])
def test_points_without_coordinates(loop):
    """All are in one place."""
    for shape in ((5, 0), (2, 5, 0)):
        graph = knn_graph(jnp.zeros(shape), 2, loop=loop)
        same = knn_graph(jnp.zeros((*shape[:-1], 3)), 2, loop=loop)
        np.testing.assert_array_equal(graph.senders, same.senders)
        np.testing.assert_array_equal(graph.receivers, same.receivers)


def test_no_clouds():
    graph = knn_graph(jnp.zeros((0, 5, 3)), 2)
    assert (graph.num_receivers, graph.num_edges) == (0, 0)


def test_numbers_of_clouds_are_compared_whole(x64):
    points, batch = grid(4), np.array([0, 0, 2**32, 2**32])
    for numbers in (batch, batch.tolist(), jnp.asarray(batch), batch.astype(np.uint64)):
        senders = np.asarray(knn_graph(points, 1, batch=numbers).senders)
        np.testing.assert_array_equal(senders[:4], [1, 0, 3, 2])
    jitted = jax.jit(
        lambda points, batch: knn_graph(points, 1, batch=batch, padding_node=True).senders
    )
    np.testing.assert_array_equal(jitted(points, jnp.asarray(batch))[:4], [1, 0, 3, 2])
    assert knn_graph(points[:0], 1, batch=[]).num_edges == 0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_dtypes(dtype, x64):
    points = grid(20)
    senders = RUN(points.astype(dtype), 4).senders
    np.testing.assert_array_equal(senders, RUN(points, 4).senders)


def test_float64_is_kept(x64):
    fine = jnp.asarray([[0.0], [1.0], [1.0 - 2.0**-40]], jnp.float64)
    assert np.asarray(RUN(fine, 1).senders)[0] == 2  # nearer by less than float32 can say


def test_points_that_are_not_finite_give_indices_in_range():
    """Kernels read what indices say."""
    points = grid(20).at[3].set(jnp.nan).at[5].set(jnp.inf)
    batch = jnp.repeat(jnp.arange(4), 5)
    for options in ({}, {"batch": batch}, {"batch": batch, "padding_node": True}):
        senders = np.asarray(knn_graph(points, 4, **options).senders)
        assert senders.min() >= 0 and senders.max() <= 20


def test_under_vmap_and_shard_map(monkeypatch):
    monkeypatch.setattr(nearest, "_BLOCK", 8)
    clouds = jnp.stack([grid(12, seed=seed) for seed in range(2)])
    batch = jnp.asarray(np.repeat([0, 1], [5, 7]))

    def run(points):
        graph = knn_graph(points, 3, batch=batch, padding_node=True)
        return spmm(graph, jnp.pad(points, ((0, 1), (0, 0))))

    single = jax.jit(run)
    expected = jnp.stack([single(points) for points in clouds])
    np.testing.assert_allclose(jax.jit(jax.vmap(run))(clouds), expected, rtol=1e-6)
    sharded = functools.partial(
        jax.shard_map, mesh=two_devices(), in_specs=P("d"), out_specs=P("d"), check_vma=True
    )(lambda points: run(points[0])[None])
    np.testing.assert_allclose(jax.jit(sharded)(clouds), expected, rtol=1e-6)


def test_no_gradient_through_the_choice():
    points = grid(10) + 0.25

    def loss(points):
        return jnp.sum(spmm(knn_graph(points, 3), points))

    gradient = jax.jit(jax.grad(loss))(points)
    degrees = np.asarray(RUN(points, 3).out_degrees)
    np.testing.assert_array_equal(gradient, np.broadcast_to(degrees[:, None], (10, 3)))


def bad_calls():
    points = grid(10)
    batch = np.zeros(10, np.int32)
    return {
        "axes": ((points[0], 3), {}, ValueError, r"points: .* got \(3,\)"),
        "dtype": ((points.astype(int), 3), {}, TypeError, "points: .* got int32"),
        "k": ((points, 0), {}, ValueError, "k: expected an integer from 1 .* got 0"),
        "number": ((points, 2.0), {}, TypeError, "k: expected an integer, got float"),
        "floats": ((points, 3), {"batch": batch / 1.0}, TypeError, "batch: .* got float"),
        "what": ((points, 3), {"batch": "0"}, TypeError, "batch: expected an array, got str"),
        "length": ((points, 3), {"batch": batch[1:]}, ValueError, r"batch: .*\(10,\).* \(9,\)"),
        "small": ((points, 3), {"batch": batch + (np.arange(10) > 6)}, ValueError, "one of 3"),
        "traced": (
            (points, 3),
            {"batch": batch, "jit": True},
            ValueError,
            "padding_node: expected True with a traced batch",
        ),
        "padding": ((points, 3), {"padding_node": True}, ValueError, "padding_node: .* batch"),
        "loop": ((points, 3), {"loop": "no"}, TypeError, "loop: expected True or .* got 'no'"),
        "both": ((points[None], 3), {"batch": batch}, ValueError, r"batch: .* got \(1, 10, 3\)"),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_bad_arguments(name):
    arguments, options, error, message = bad_calls()[name]
    call = knn_graph
    if options.pop("jit", False):
        call = jax.jit(knn_graph, static_argnums=1)
    with pytest.raises(error, match=message):
        call(*arguments, **options)
