"""The GPU's kernels of `sage_embedding`: the sum of drawn rows, a layer with its sums, and both
layers of the sources."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, config, sage_embedding
from jaxgnn.ops._sampling import sage_layer
from jaxgnn.ops._sampling.neighbors import Draw, Nodes, aggregate_sampled, operands
from jaxgnn.ops._sampling.sage_layer import (
    Into,
    LayerInputs,
    SourceInputs,
    grouped_layer,
    source_layers,
)
from jaxgnn.train import HostFeatures

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
KEY = jax.random.key(3)


def some_graph() -> Graph:
    """Rows of 0, 1, 2, 39, 40, 41, 512, 513 and 5,000 edges, some repeated, and short ones."""
    return graph_of([0, 1, 2, 39, 40, 41, 512, 513, 5_000, *RNG.integers(0, 30, 91)])


def short_rows() -> Graph:
    """Rows of three edges on average, and one of 41."""
    return graph_of([0, 1, 2, 41, 13, *RNG.integers(0, 6, 95)])


def graph_of(degrees: list[int]) -> Graph:
    receivers = np.repeat(np.arange(100), degrees)
    return Graph.from_edges(RNG.integers(0, 100, receivers.size), receivers, num_nodes=100)


def rows(shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Of values that every dtype has, and TF32."""
    return jnp.asarray(RNG.integers(-64, 65, shape) / 32, dtype)


@functools.partial(jax.jit, static_argnames=("size", "aggr", "impl"))
def sums(graph, nodes, first, x, size, aggr, impl=None):
    """The sums, those of a batch's second half, and the derivative along x: 1, 2 and 1 times it."""

    def one(x):
        at = Nodes(nodes, first, KEY, size)
        return aggregate_sampled(Draw(aggr, True), operands(graph, None), x, at)

    with config.use(impl=impl):
        return one(x), jax.vmap(one)(jnp.stack([x, 2 * x]))[1], jax.jvp(one, (x,), (x,))[1]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("size", [1, 10, 128])
def test_sums_of_drawn_rows(size, dtype):
    graph, short = some_graph(), short_rows()
    assert short.num_edges <= 4 * short.num_receivers  # kShortRows in drawn_rows.cu
    nodes = jnp.asarray([*range(100), -1, 8, 8, 0], jnp.int32)
    first = jnp.uint32(2**32 - 50)  # places count modulo 2^32
    cases = [(graph, 6, "mean"), (graph, 64, "sum"), (graph, 100, "sum"), (graph, 300, "mean")]
    for graph, width, aggr in [*cases, (short, 6, "sum"), (short, 64, "mean")]:
        operands = graph, nodes, first, rows((100, width), dtype), size, aggr
        assert "jaxgnn_drawn_rows" in sums.lower(*operands).as_text()
        expected = np.asarray(sums(*operands, impl="jax")[0], np.float64)
        limit = TOLERANCE[dtype] * max(1, np.abs(expected).max())
        for found, times in zip(sums(*operands), (1, 2, 1), strict=True):
            error = np.abs(np.asarray(found, np.float64) - times * expected)
            assert error.max() <= times * limit


def by_hand(inputs: LayerInputs, group: int, mean: bool) -> np.ndarray:
    x, around, own, other = (np.asarray(a, np.float64) for a in inputs[1:])
    nodes = np.asarray(inputs.nodes)
    there = nodes >= 0
    parts = [x[np.where(there, nodes, 0)] @ own, around @ other]
    layer = np.concatenate(parts, axis=1)
    layer = np.where(layer < 0, 0, layer) * there[:, None]
    lengths = np.linalg.norm(layer, axis=1, keepdims=True)
    layer = layer / np.where(lengths > 0, lengths, 1)
    total = layer.reshape(-1, group, layer.shape[1]).sum(axis=1)
    if not mean:
        return total
    return total / np.maximum(there.reshape(-1, group).sum(axis=1), 1)[:, None]


def inputs_of(places: int, width: int, columns: tuple[int, int], dtype: str) -> LayerInputs:
    return LayerInputs(
        jnp.asarray(RNG.integers(-1, 50, places), jnp.int32),
        rows((50, width), dtype),
        rows((places, width), dtype),
        *(rows((width, count), dtype) for count in columns),
    )


@pytest.fixture(params=[True, False], ids=["warpgroups", "any_device"])
def warpgroups(request, monkeypatch) -> bool:
    """Hopper's kernels, on such a device, and those of all devices."""
    monkeypatch.setattr(sage_layer, "WARPGROUPS", request.param)
    return request.param


def not_called(inputs: LayerInputs | SourceInputs) -> jax.Array:
    raise AssertionError("the reference was traced")


# Groups, places of a group, which of the dtype's widths, columns of both matrices, reduction.
LAYERS = (
    (1000, 10, 2, (128, 128), "mean"),
    (70, 25, 1, (100, 128), "sum"),
    (3, 129, 1, (128, 3), "mean"),
    (1, 1, 0, (1, 1), "sum"),
    (700, 1, 0, (5, 128), "mean"),
)


def layer_of(inputs: LayerInputs, group: int, reduce: str) -> jax.Array:
    with jax.default_matmul_precision("default"):
        assert sage_layer.has_kernel(inputs, jax.nn.relu)
        return jax.jit(functools.partial(grouped_layer, group, reduce, otherwise=not_called))(
            inputs
        )


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("widths", [(4, 20, 32), (8, 36, 64)])  # of four bytes a feature
def test_layers_and_their_sums(warpgroups, widths, dtype):
    scale = 4 // jnp.dtype(dtype).itemsize
    for groups, group, place, columns, reduce in LAYERS:
        inputs = inputs_of(groups * group, scale * widths[place], columns, dtype)
        found = layer_of(inputs, group, reduce)
        assert found.dtype == dtype
        expected = by_hand(inputs, group, reduce == "mean")
        error = np.abs(np.asarray(found, np.float64) - expected)
        assert error.max() <= TOLERANCE[dtype] * max(1, np.abs(expected).max())
    inputs = inputs_of(60_000, scale * widths[2], (128, 128), dtype)
    np.testing.assert_array_equal(layer_of(inputs, 10, "sum"), layer_of(inputs, 10, "sum"))


WIDTHS = pytest.mark.parametrize("width", [32, 64])  # in float32 one panel of shared memory, or two


def any_scale(width: int) -> LayerInputs:
    """Positive rows whose squares overflow or underflow."""
    inputs = inputs_of(64, width, (128, 128), "float32")
    scale = jnp.asarray(np.geomspace(1e-33, 1e33, 64)[:, None], jnp.float32)
    x, around = jnp.abs(inputs.around) * scale, jnp.abs(inputs.around[::-1]) * scale
    matrices = [jnp.abs(inputs.own_matrix), jnp.abs(inputs.around_matrix)]
    return LayerInputs(jnp.arange(64, dtype=jnp.int32), x, around, *matrices)


def spoiled(inputs: LayerInputs) -> LayerInputs:
    """With NaN in row 3 and infinity in row 9."""
    x = inputs.features.at[3, 5].set(jnp.nan).at[9, 5].set(jnp.inf)
    return inputs._replace(features=x)


def check_lengths(found: jax.Array) -> None:
    lengths = np.linalg.norm(np.asarray(found, np.float64), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-5)


def check_spoiled(found: jax.Array) -> None:
    """What is not finite stays; all other lengths are 1."""
    rows = np.asarray(found)
    assert np.isnan(rows[3]).all() and np.isnan(rows[9]).any()
    check_lengths(np.delete(rows, [3, 9], axis=0))


@WIDTHS
def test_layers_of_any_scale(warpgroups, width):
    inputs = any_scale(width)
    check_lengths(layer_of(inputs, 1, "sum"))
    check_spoiled(layer_of(spoiled(inputs), 1, "sum"))


def sources_of(inputs: SourceInputs, into: Into | None = None) -> jax.Array:
    with jax.default_matmul_precision("default"):
        return jax.jit(functools.partial(source_layers, otherwise=not_called))(inputs, into)


def unit_rows_by_hand(x, around, own, other) -> np.ndarray:
    x, around, own, other = (np.asarray(a, np.float64) for a in (x, around, own, other))
    layer = np.maximum(np.concatenate([x @ own, around @ other], axis=1), 0)
    lengths = np.linalg.norm(layer, axis=1, keepdims=True)
    return layer / np.where(lengths > 0, lengths, 1)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_layers_of_the_sources(warpgroups, dtype):
    vector = 16 // jnp.dtype(dtype).itemsize
    # Sources, features, columns of the first layer's matrices, and of the last one's.
    for count, width, first_columns, columns in (
        (300, 16 * vector, (128, 128), (128, 128)),
        (1, vector, (1, vector - 1), (1, 1)),
        (129, 9 * vector, (100, 3 * vector - 100 % vector), (3, 100)),
        (40_000, 8 * vector, (64, 128), (128, 7)),
    ):
        first = inputs_of(count, width, first_columns, dtype)
        # A row of no node has zeros around it, as one that draws nothing.
        first = first._replace(around=jnp.where((first.nodes < 0)[:, None], 0, first.around))
        hidden = sum(first_columns)
        around = rows((count, hidden), dtype) / 8
        inputs = SourceInputs(first, around, *(rows((hidden, c), dtype) for c in columns))
        found = sources_of(inputs)
        assert found.dtype == dtype
        # What is kept between the layers is rounded: to the dtype, or to TF32.
        kept = np.asarray(jnp.asarray(by_hand(first, 1, False), dtype), np.float64)
        expected = unit_rows_by_hand(kept, *inputs[1:])
        error = np.abs(np.asarray(found, np.float64) - expected).max()
        assert error <= (1e-3 if dtype == "float32" else TOLERANCE[dtype])
        np.testing.assert_array_equal(found, sources_of(inputs))
        # In rows 2 to count + 1 of an array.
        larger = jnp.full((count + 5, sum(columns)), 7, dtype)
        written = sources_of(inputs, Into(larger, jnp.int32(2)))
        np.testing.assert_array_equal(written[2 : count + 2], found)
        assert bool((written[:2] == 7).all() and (written[count + 2 :] == 7).all())


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_last_layers_of_the_sources(warpgroups, dtype):
    """Over rows of the first layer that are 0 or have a single 1, which no rounding changes."""
    vector = 16 // jnp.dtype(dtype).itemsize
    for count, width, first_columns, columns in (
        (300, 16 * vector, (128, 128), (128, 128)),
        (1, vector, (1, vector - 1), (1, 1)),
        (129, 8 * vector, (100, 3 * vector - 100 % vector), (3, 100)),
    ):
        first = inputs_of(count, width, first_columns, dtype)
        first = first._replace(
            features=jnp.eye(50, width, dtype=dtype),
            around=jnp.zeros((count, width), dtype),
            own_matrix=jnp.eye(width, first_columns[0], dtype=dtype),
        )
        hidden = sum(first_columns)
        matrices = (rows((hidden, c), dtype) for c in columns)
        inputs = SourceInputs(first, rows((count, hidden), dtype), *matrices)
        expected = unit_rows_by_hand(by_hand(first, 1, False), *inputs[1:])
        found = np.asarray(sources_of(inputs), np.float64)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE[dtype])


@WIDTHS
def test_layers_of_sources_of_any_scale(warpgroups, width):
    first = any_scale(width)
    matrix = jnp.abs(rows((256, 128), "float32"))
    around = jnp.ones((64, 256), jnp.float32) / 16
    check_lengths(sources_of(SourceInputs(first, around, matrix, matrix)))
    check_spoiled(sources_of(SourceInputs(spoiled(first), around, matrix, matrix)))
    # The same of the last layer's rows. One source is no node, and has nothing around it.
    scale = jnp.asarray(np.geomspace(1e-33, 1e33, 64)[:, None], jnp.float32)
    first = first._replace(nodes=first.nodes.at[7].set(-1), around=first.around.at[7].set(0))
    around = (around * scale).at[7].set(0)
    plain = np.asarray(sources_of(SourceInputs(first, around, 0 * matrix, matrix)))
    assert (plain[7] == 0).all()
    check_lengths(np.delete(plain, 7, axis=0))
    around = around.at[9].set(jnp.nan)
    found = np.asarray(sources_of(SourceInputs(spoiled(first), around, 0 * matrix, matrix)))
    assert np.isnan(found[3]).all() and np.isnan(found[9]).any()
    others = np.delete(np.arange(64), [3, 9])
    np.testing.assert_array_equal(found[others], plain[others])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_embeddings_and_their_gradients(dtype):
    graph = some_graph()
    x = rows((100, 64), dtype)
    names, sizes = ("Wf1", "Wa1", "Wf2", "Wa2"), (64, 64, 256, 256)
    params = {name: rows((size, 128), dtype) for name, size in zip(names, sizes, strict=True)}
    options = {"num_children": 5, "num_leaves": 7, "batch_size": 30}

    def loss(x, params, impl):
        out = sage_embedding(graph, x, params, KEY, impl=impl, **options)
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    with jax.default_matmul_precision("default"):
        run = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnames="impl")
        program = run.lower(x, params, None).as_text()
        assert "jaxgnn_sage_layer" in program and "jaxgnn_source_layers" in program
        (_, found), gradients = run(x, params, None)
    (_, expected), others = run(x, params, "jax")
    np.testing.assert_allclose(
        found.astype("float32"),
        expected.astype("float32"),
        atol=2e-2 if dtype != "float32" else 3e-3,
    )
    for a, b in zip(*map(jax.tree.leaves, (gradients, others)), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        # Where TF32 rounds a sum near 0 to the other side, ReLU has another derivative.
        assert np.linalg.norm(a - b) <= (4e-2 if dtype == "float32" else 8e-2) * np.linalg.norm(b)


def test_features_in_host_memory():
    """A CPU draws and reduces, the GPU multiplies: what the GPU alone makes of an array."""
    graph, x = some_graph(), RNG.normal(size=(100, 64)).astype(np.float32)
    names, sizes = ("Wf1", "Wa1", "Wf2", "Wa2"), (64, 64, 256, 256)
    params = {name: rows((size, 128), "float32") for name, size in zip(names, sizes, strict=True)}
    for aggr, replace in (("mean", True), ("max", False)):
        options = {"num_children": 5, "num_leaves": 7, "aggr": aggr, "replace": replace}
        found = sage_embedding(graph, HostFeatures(x), params, KEY, batch_size=30, **options)
        assert next(iter(found.devices())).platform == "gpu"
        expected = sage_embedding(graph, x, params, KEY, **options)
        np.testing.assert_allclose(found, expected, atol=3e-3)


def test_sanitized(warpgroups):
    """Few programs, so that the sanitizer can run them: all kernels, every kind of row."""
    graphs = [some_graph(), some_graph(), some_graph(), short_rows()]
    nodes = jnp.asarray([*range(100), -1], jnp.int32)

    @jax.jit
    def run(graphs, nodes, tables, inputs, sources):
        def around(graph, x, size):
            at = Nodes(nodes, jnp.uint32(0), KEY, size)
            return aggregate_sampled(Draw("mean", True), operands(graph, None), x, at)

        drawn = [around(*of) for of in zip(graphs, tables, (10, 101, 3, 10), strict=True)]
        layer = grouped_layer(7, "mean", inputs, not_called)
        return *drawn, layer, source_layers(sources, None, not_called)

    inputs = inputs_of(40 * 7, 40, (100, 128), "bfloat16")
    first = inputs_of(140, 40, (96, 128), "bfloat16")
    matrices = (rows((224, columns), "bfloat16") for columns in (128, 9))
    sources = SourceInputs(first, rows((140, 224), "bfloat16"), *matrices)
    # 16, 8, 32 and 4 lanes a place.
    widths = {100: "float32", 64: "bfloat16", 300: "float16", 30: "float16"}
    tables = [rows((100, width), dtype) for width, dtype in widths.items()]
    results = run(graphs, nodes, tables, inputs, sources)
    assert all(bool(jnp.isfinite(rows).all()) for rows in results)
