"""The GPU's kernels of `sage_embedding`: the sum of drawn rows, and a layer with its sums."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, config, sage_embedding
from jaxgnn._core import ffi
from jaxgnn.ops._aggregation.kernels import REDUCE
from jaxgnn.ops._sampling import sage_layer
from jaxgnn.ops._sampling.neighbors import Draw, Nodes, aggregate_sampled, operands
from jaxgnn.ops._sampling.sage_layer import (
    LayerInputs,
    UnitLayerInputs,
    grouped_layer,
    unit_layer,
)
from jaxgnn.train import HostFeatures

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
KEY = jax.random.key(3)


def some_graph() -> Graph:
    """Rows of 0, 1, 2, 39, 40, 41, 512, 513 and 5,000 edges, some repeated, and short ones."""
    degrees = [0, 1, 2, 39, 40, 41, 512, 513, 5_000, *RNG.integers(0, 30, 91)]
    receivers = np.repeat(np.arange(100), degrees)
    return Graph.from_edges(RNG.integers(0, 100, receivers.size), receivers, num_nodes=100)


def rows(shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Of values that every dtype has, and TF32."""
    return jnp.asarray(RNG.integers(-64, 65, shape) / 32, dtype)


@functools.partial(jax.jit, static_argnames=("size", "aggr", "impl"))
def sums(graph, nodes, ids, x, size, aggr, impl=None):
    """The sums, those of a batch's second half, and the derivative along x: 1, 2 and 1 times it."""

    def one(x):
        at = Nodes(nodes, ids, KEY, size)
        return aggregate_sampled(Draw(aggr, True), operands(graph, None), x, at)

    with config.use(impl=impl):
        return one(x), jax.vmap(one)(jnp.stack([x, 2 * x]))[1], jax.jvp(one, (x,), (x,))[1]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("size", [1, 10, 128])
def test_sums_of_drawn_rows(size, dtype):
    graph = some_graph()
    nodes = jnp.asarray([*range(100), -1, 8, 8, 0], jnp.int32)
    ids = jnp.asarray(RNG.integers(0, 2**32, nodes.size, np.uint32))
    for width, aggr in ((6, "mean"), (64, "sum"), (64, "mean"), (100, "sum"), (300, "mean")):
        operands = graph, nodes, ids, rows((100, width), dtype), size, aggr
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


def not_called(inputs: LayerInputs | UnitLayerInputs) -> jax.Array:
    raise AssertionError("the reference was traced")


# Groups, places of a group, which of the dtype's widths, columns of both matrices, reduction.
LAYERS = (
    (1000, 10, 2, (128, 128), "mean"),
    (70, 25, 1, (100, 128), "sum"),
    (3, 129, 1, (128, 3), "mean"),
    (1, 1, 0, (1, 1), "sum"),
    (700, 1, 0, (5, 128), "mean"),
)


def check_layers(dtype: str, widths: tuple[int, ...], layer) -> None:
    """`layer(inputs, group, reduce)` beside the layer by hand."""
    for groups, group, place, columns, reduce in LAYERS:
        inputs = inputs_of(groups * group, widths[place], columns, dtype)
        found = layer(inputs, group, reduce)
        assert found.dtype == dtype
        expected = by_hand(inputs, group, reduce == "mean")
        scale = max(1, np.abs(expected).max())
        error = np.abs(np.asarray(found, np.float64) - expected)
        assert error.max() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_layers_and_their_sums(dtype):
    def layer(inputs: LayerInputs, group: int, reduce: str) -> jax.Array:
        with jax.default_matmul_precision("default"):
            assert sage_layer.has_kernel(inputs, jax.nn.relu)
            call = functools.partial(grouped_layer, group, reduce, otherwise=not_called)
            return jax.jit(call)(inputs)

    check_layers(dtype, (4, 36, 64) if dtype == "float32" else (8, 72, 128), layer)


def by_variant(variant: int, inputs: LayerInputs, group: int, reduce: str) -> jax.Array:
    """By the kernel of all devices, 0, or by Hopper's, 1."""
    columns = inputs.own_matrix.shape[1] + inputs.around_matrix.shape[1]
    result = [((inputs.nodes.shape[0] // group, columns), inputs.features.dtype)]
    attributes = {"group": group, "reduce": REDUCE[reduce], "variant": variant}
    return ffi.call("jaxgnn_sage_layer_variant", list(inputs), result, **attributes)[0]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("variant", [0, 1])
def test_layers_by_either_kernel(variant, dtype):
    layer = jax.jit(functools.partial(by_variant, variant), static_argnums=(1, 2))
    narrow = (4, 20, 32) if dtype == "float32" else (8, 40, 64)
    check_layers(dtype, narrow, layer)
    check_layers(dtype, tuple(2 * width for width in narrow), layer)
    inputs = inputs_of(60_000, narrow[2], (128, 128), dtype)
    np.testing.assert_array_equal(layer(inputs, 10, "sum"), layer(inputs, 10, "sum"))
    if dtype == "float32":  # rows whose squares overflow or underflow
        inputs = inputs_of(64, narrow[2], (128, 128), dtype)
        scale = jnp.asarray(np.geomspace(1e-33, 1e33, 64)[:, None], jnp.float32)
        positive = LayerInputs(*(jnp.abs(array) for array in inputs))
        around = positive.around * scale
        positive = positive._replace(nodes=jnp.arange(64), features=around, around=around)
        lengths = np.linalg.norm(np.asarray(layer(positive, 1, "sum"), np.float64), axis=1)
        np.testing.assert_allclose(lengths, 1, atol=1e-5)


def test_layers_of_any_scale():
    """Rows whose squares overflow or underflow have the length 1; NaN and infinity stay."""
    inputs = inputs_of(64, 64, (128, 128), "float32")
    scale = jnp.asarray(np.geomspace(1e-33, 1e33, 64)[:, None], jnp.float32)
    x, around = jnp.abs(inputs.around) * scale, jnp.abs(inputs.around[::-1]) * scale
    matrices = [jnp.abs(inputs.own_matrix), jnp.abs(inputs.around_matrix)]
    nodes = jnp.arange(64, dtype=jnp.int32)
    with jax.default_matmul_precision("default"):
        layer = jax.jit(functools.partial(grouped_layer, 1, "sum", otherwise=not_called))
        found = np.asarray(layer(LayerInputs(nodes, x, around, *matrices)), np.float64)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        x = x.at[3, 5].set(jnp.nan).at[9, 5].set(jnp.inf)
        found = np.asarray(layer(LayerInputs(nodes, x, around, *matrices)))
    assert np.isnan(found[3]).all() and np.isnan(found[9]).any()
    others = np.delete(np.arange(64), [3, 9])
    np.testing.assert_allclose(np.linalg.norm(found[others], axis=1), 1, atol=1e-5)


@functools.partial(jax.jit, static_argnames="otherwise")
def unit_rows_of(inputs: UnitLayerInputs, otherwise=not_called) -> jax.Array:
    with jax.default_matmul_precision("default"):
        return unit_layer(inputs, otherwise)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_last_layers(dtype):
    vector = 16 // jnp.dtype(dtype).itemsize
    for count, width, columns in (
        (300, 256, (128, 128)),
        (1, vector, (1, 1)),
        (129, 260, (3, 100)),
    ):
        width = width // vector * vector
        inputs = UnitLayerInputs(
            rows((count, width), dtype),
            rows((count, width), dtype),
            *(rows((width, each), dtype) for each in columns),
        )
        inputs = inputs._replace(x=inputs.x.at[count // 2].set(0))
        found = unit_rows_of(inputs)
        assert found.dtype == dtype
        x, around, own, other = (np.asarray(a, np.float64) for a in inputs)
        layer = np.maximum(np.concatenate([x @ own, around @ other], axis=1), 0)
        lengths = np.linalg.norm(layer, axis=1, keepdims=True)
        expected = layer / np.where(lengths > 0, lengths, 1)
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, atol=TOLERANCE[dtype])


def test_last_layers_of_any_scale():
    """Rows whose squares overflow or underflow have the length 1; zeros, NaN and infinity stay."""
    scale = jnp.asarray(np.geomspace(1e-33, 1e33, 64)[:, None], jnp.float32)
    x = jnp.abs(rows((64, 64), "float32")) * scale
    matrix = jnp.abs(rows((64, 128), "float32"))
    x = x.at[7].set(0)
    found = np.asarray(unit_rows_of(UnitLayerInputs(x, x, matrix, matrix)), np.float64)
    assert (found[7] == 0).all()
    lengths = np.linalg.norm(np.delete(found, 7, axis=0), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-5)
    x = x.at[3, 5].set(jnp.nan).at[9, 5].set(jnp.inf)
    other = np.asarray(unit_rows_of(UnitLayerInputs(x, x, matrix, matrix)))
    assert np.isnan(other[3]).all() and np.isnan(other[9]).any()
    rest = np.delete(np.arange(64), [3, 9])
    np.testing.assert_array_equal(other[rest], found[rest].astype(np.float32))


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
        assert "jaxgnn_sage_layer" in program and "jaxgnn_unit_layer" in program
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


def test_sanitized():
    """Few programs, so that the sanitizer can run them: all kernels, every kind of row."""
    graph = some_graph()
    nodes = jnp.asarray([*range(100), -1], jnp.int32)
    ids = jnp.arange(101, dtype=jnp.uint32)

    @jax.jit
    def run(graph, nodes, ids, x, inputs):
        at = Nodes(nodes, ids, KEY, 10)
        around = aggregate_sampled(Draw("mean", True), operands(graph, None), x, at)
        hidden = UnitLayerInputs(inputs.around, inputs.around, *inputs[3:])
        layer = grouped_layer(7, "mean", inputs, not_called)
        return around, layer, unit_layer(hidden, not_called)

    inputs = inputs_of(40 * 7, 40, (100, 128), "bfloat16")
    results = run(graph, nodes, ids, rows((100, 60), "float32"), inputs)
    assert all(bool(jnp.isfinite(rows).all()) for rows in results)
