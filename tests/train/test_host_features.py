"""`HostFeatures`: which rows, in programs, from files, how long the memory lives, errors."""

import gc
import weakref

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxgnn
from jaxgnn._core import ffi
from jaxgnn.ops._sampling.host_rows import HostRows, gather_host_rows
from jaxgnn.train import HostFeatures, NeighborLoader

pytestmark = pytest.mark.few(1)

NODES = 50


def matrix(width, dtype=np.float32, nodes=NODES):
    rng = np.random.default_rng(width)
    return rng.standard_normal((nodes, width)).astype(dtype)


def expected(features, nodes):
    inside = (nodes >= 0) & (nodes < features.shape[0])
    return np.where(inside[..., None], features[np.where(inside, nodes, 0)], 0)


def places(count=300, nodes=NODES):
    """Some of them padding, some out of range."""
    drawn = np.random.default_rng(0).integers(-3, nodes + 3, count).astype(np.int32)
    drawn[:4] = [-1, 0, nodes - 1, nodes]
    return drawn


@jax.jit
def in_a_scan(features, nodes):
    """The rows of each line of `nodes`, one line after the other."""
    return jax.lax.scan(lambda _, line: (_, features.take(line)), None, nodes)[1]


@pytest.mark.parametrize("impl", [None, "jax"])
@pytest.mark.parametrize(
    ("width", "dtype"), [(3, np.float32), (1, np.float16), (16, ml_dtypes.bfloat16)]
)
def test_rows(impl, width, dtype):
    features, nodes = matrix(width, dtype), places()
    with jaxgnn.config.use(impl=impl):
        for cached in (0, 7, NODES):
            host = HostFeatures(features, cache_rows=cached, hot=np.arange(NODES) % 11)
            rows = host.take(nodes)
            assert rows.dtype == dtype == host.dtype
            np.testing.assert_array_equal(rows, expected(features, nodes))
        lines = nodes.reshape(3, 100)
        np.testing.assert_array_equal(in_a_scan(host, lines), expected(features, lines))
        for axes in ((None, 0), (0, 0)):
            several = host if axes[0] is None else jax.tree.map(lambda x: jnp.stack([x] * 3), host)
            rows = jax.vmap(HostFeatures.take, in_axes=axes)(several, lines)
            np.testing.assert_array_equal(rows, expected(features, lines))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64])
def test_nodes_of_narrow_and_wide_integers(dtype):
    features = matrix(3, np.float32, 40_000)
    nodes = np.array([0, 3, 100, 127, 39_999, 2**32 + 1], np.int64).astype(dtype)
    rows = HostFeatures(features).take(nodes)
    inside = (nodes >= 0) & (nodes < 40_000)
    np.testing.assert_array_equal(rows[inside], features[nodes[inside]])
    assert not np.any(rows[~inside])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("width", [1, 3, 16, 100, 602])
def test_rows_on_a_gpu(width, dtype):
    """Rows at every alignment, with misses, hits and rows that begin within a line."""
    features, nodes = matrix(width, dtype, 5000), places(20_000, 5000)
    for cached in (0, 700):
        host = HostFeatures(features, cache_rows=cached, hot=np.arange(5000) % 97)
        with jaxgnn.config.use(impl="kernel"):
            np.testing.assert_array_equal(host.take(nodes), expected(features, nodes))
            lines = nodes.reshape(40, 500)
            np.testing.assert_array_equal(in_a_scan(host, lines), expected(features, lines))
        del host
        gc.collect()  # the same array is locked again


def test_one_program_serves_every_matrix():
    traces = []

    @jax.jit
    def take(features, nodes):
        traces.append(nodes.shape)
        return features.take(nodes)

    nodes = places()
    for seed in range(3):
        features = matrix(5) + np.float32(seed)
        np.testing.assert_array_equal(
            take(HostFeatures(features), nodes), expected(features, nodes)
        )
    assert len(traces) == 1


def test_rows_of_the_cache_come_from_there():
    features, nodes = matrix(4), places()
    graph = jaxgnn.Graph.from_edges([3, 3, 3, 9, 9, 0], [1, 2, 3, 4, 5, 6], num_nodes=NODES)
    host = HostFeatures(features, cache_rows=2, hot=graph)
    before, want = features.copy(), expected(features, nodes)
    features += 1  # the rows that are sampled most often were copied
    rows = np.asarray(host.take(nodes))
    hot = np.isin(nodes, [3, 9])
    assert hot.any()
    np.testing.assert_array_equal(rows[hot], want[hot])
    np.testing.assert_array_equal(rows[~hot], expected(before + 1, nodes)[~hot])


def test_empty_features():
    assert HostFeatures(matrix(0)).take(places()).shape == (300, 0)
    assert not HostFeatures(np.zeros((0, 3), np.float32)).take(places()).any()
    host = HostFeatures(matrix(3))
    assert host.take(np.zeros((2, 0), np.int32)).shape == (2, 0, 3)
    with pytest.raises(TypeError, match="nodes: expected integers, got float32"):
        host.take(jnp.ones(3))


def test_no_gradient():
    host = HostFeatures(matrix(3), cache_rows=4, hot=np.arange(NODES))

    def loss(scale, cache):
        rows = gather_host_rows(
            HostRows(*host.tree_flatten()[0][:2], cache), jnp.arange(NODES), NODES, 3, np.float32
        )
        return jnp.sum(rows * scale)

    gradients = jax.grad(loss, argnums=(0, 1))(2.0, host.tree_flatten()[0][2])
    np.testing.assert_allclose(gradients[0], matrix(3).sum(), rtol=1e-5)
    assert not gradients[1].any()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a CPU holds the matrix by its address")
def test_the_matrix_lives_until_the_last_program_has_read_it():
    square = jnp.ones((300, 300))

    @jax.jit
    def late(features, square):
        square = jax.lax.fori_loop(0, 60, lambda _, x: jnp.sin(x @ square), square)
        return features.take(jnp.where(square[0] < 9, 1, 0))

    features = matrix(8)
    want, alive = features[1].copy(), weakref.ref(features)
    host = HostFeatures(features)
    jax.block_until_ready(late(host, square))
    result = late(host, square)
    del features, host
    gc.collect()
    np.testing.assert_array_equal(result[-1], want)
    del result
    gc.collect()
    assert alive() is None


@pytest.mark.system
def test_a_loader_reads_a_file(tmp_path):
    """The same batches as from an array on the device, by iteration and by scan."""
    rng = np.random.default_rng(0)
    graph = jaxgnn.Graph.from_edges(*rng.integers(0, NODES, (2, 400)), num_nodes=NODES)
    features = matrix(6)
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    for options in ({}, {"deduplicate": True, "capacity": [3, 3]}):
        one, other, scanned = (
            NeighborLoader(graph, x, None, [4, 3], batch_size=16, **options)
            for x in (features, *(HostFeatures(mapped, cache_rows=9, hot=graph) for _ in range(2)))
        )
        batches = list(one)
        for batch, from_host in zip(batches, other, strict=True):
            np.testing.assert_array_equal(batch.features, from_host.features)
            np.testing.assert_array_equal(batch.blocks.nodes, from_host.blocks.nodes)
        _, sums = scanned.scan(
            lambda n, batch: (n, jnp.sum(jnp.asarray(batch.features))), 0, len(batches)
        )
        np.testing.assert_allclose(
            sums, [jnp.sum(jnp.asarray(b.features)) for b in batches], rtol=1e-4, atol=1e-4
        )
    with pytest.raises(ValueError, match=r"features: expected the shape \(50, ...\), got \(49, 6"):
        NeighborLoader(graph, HostFeatures(mapped[:49]), None, [4])


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        ([[1.0]], {}, "features: expected a NumPy array, got list"),
        (np.ones((3, 2)), {}, "features: expected float32, bfloat16 or float16 .* got float64"),
        (np.ones((3, 2), np.int32), {}, "features: expected float32.* got int32"),
        (np.ones(3, np.float32), {}, r"features: expected 2 axes, got the shape \(3,\)"),
        (np.ones((2, 3), np.float32).T, {}, "features: expected a contiguous, .* strides"),
        (np.ones((3, 2), ">f4"), {}, "features: expected"),
        (matrix(2), {"cache_rows": 51}, "cache_rows: expected"),
        (matrix(2), {"cache_rows": 5}, "hot: expected a graph or a number for each node"),
        (matrix(2), {"cache_rows": 5, "hot": [1, 2]}, r"hot: expected 50 numbers, got int64\[2\]"),
    ],
)
def test_errors(features, options, message):
    if jax.config.read("jax_enable_x64"):
        pytest.skip("float64 is one of the types")
    with pytest.raises((TypeError, ValueError), match=message):
        HostFeatures(features, **options)


@pytest.fixture
def pinned(monkeypatch):
    """What a CUDA module that refuses memory twice has locked: sizes by address."""
    from jaxgnn.train.loaders import host_features

    locked = {}

    class Module:
        def pin(self, address, size):
            if size > 1000:
                raise RuntimeError("cudaHostRegister: out of memory")
            assert address not in locked, "CUDA refuses to register the same memory twice"
            locked[address] = size

        def unpin(self, address):
            del locked[address]

    gc.collect()  # what a GPU's tests locked is unlocked by the module that locked it
    monkeypatch.setattr(host_features.platform, "of_device", lambda: "cuda")
    monkeypatch.setattr(host_features.platform, "serves", lambda *_: True)
    monkeypatch.setattr(ffi, "cuda_module", Module())
    yield locked
    gc.collect()
    assert locked == {}


@pytest.mark.system
def test_memory_that_cannot_be_locked_is_named(pinned):
    """With CUDA's words; a copy in pages of its own stands for a read-only array."""
    features = matrix(20)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"features: 4000 bytes .* cudaHostRegister: out of"):
            HostFeatures(features)
    assert pinned == {}
    features = matrix(2)
    features.flags.writeable = False
    host = HostFeatures(features)
    (address,) = pinned
    assert address % 4096 == 0 and address != features.ctypes.data
    del host
    gc.collect()
    assert pinned == {}


@pytest.mark.system
def test_objects_of_the_same_array_share_its_lock(pinned):
    features, other = matrix(2), matrix(4)
    first, second, third = HostFeatures(features), HostFeatures(features), HostFeatures(other)
    both = {features.ctypes.data: 400, other.ctypes.data: 800}
    assert pinned == both
    del first
    gc.collect()
    assert pinned == both
    first = HostFeatures(features)
    del second, third
    gc.collect()
    assert pinned == {features.ctypes.data: 400}
    del first
    gc.collect()
    assert pinned == {}
    again = HostFeatures(features)
    assert pinned == {features.ctypes.data: 400}
    del again
