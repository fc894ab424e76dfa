"""Which engine runs: `spmm` and `sddmm` over tiles or by rows, by what is asked and by estimate."""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, sddmm, spmm, tiles
from jaxgnn._core import platform
from jaxgnn.graph._layouts import tile_rule
from jaxgnn.nn import GCNConv, GINConv, SAGEConv
from tests.support.strategies import dense_adjacency, skewed_graph

pytestmark = pytest.mark.few(1)

RNG = np.random.default_rng(0)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU takes the tiles")
def test_spmm_by_rows_on_a_cpu():
    """The same bits as by rows: outputs, gradients, second derivatives, `vmap`, means, weights."""
    graph = skewed_graph(70, 900).with_tiles(min_edges=2)
    x = jnp.asarray(RNG.standard_normal((70, 5)), jnp.float32)
    weights = jnp.asarray(RNG.standard_normal(graph.num_edges), jnp.float32)

    @jax.jit
    def run(graph, x, weights):
        def both(f):
            return [f(impl) for impl in ("rows", "tiles")]

        def loss(x, impl):
            return jnp.sum(spmm(graph, jnp.sin(x), reduce="mean", impl=impl) ** 3)

        def derivatives(impl):
            return jax.jvp(jax.grad(lambda x: loss(x, impl)), (x,), (x,))

        def weighted(impl):
            def loss(x, weights):
                scores = sddmm(graph, jnp.sin(x), x, impl=impl)
                return jnp.sum(spmm(graph, x, weights + scores, impl=impl) ** 2)

            return jax.value_and_grad(loss, (0, 1))(x, weights)

        many = jnp.stack([x, 2 * x])
        return (
            both(weighted),
            both(lambda impl: spmm(graph, x, transpose=True, impl=impl)),
            both(lambda impl: jax.vmap(lambda x: spmm(graph, x, impl=impl))(many)),
            both(derivatives),
        )

    results = run(graph, x, weights)
    for one, other in results:
        jax.tree.map(np.testing.assert_array_equal, one, other)
    expected = dense_adjacency(graph).T @ np.asarray(x, np.float64)
    np.testing.assert_allclose(results[1][1], expected, rtol=1e-4, atol=1e-4)
    got = spmm(graph, x, impl="tiles", reduce="max")  # no tiles: also by rows
    np.testing.assert_array_equal(got, spmm(graph, x, reduce="max"))
    bare = dataclasses.replace(graph.transpose().drop_edge_permutation(), tiles=None)
    with pytest.raises(ValueError, match=r"impl: 'tiles' needs .* Graph\.with_tiles"):
        spmm(bare, x, impl="tiles")
    with pytest.raises(ValueError, match=r"impl: expected one of None, .*'tiles', got 'tile'"):
        spmm(graph, x, impl="tile")
    for half in (bare, bare.transpose()):  # its derivatives sum over both
        with pytest.raises(ValueError, match=r"impl: 'tiles' needs .* Graph\.with_tiles"):
            sddmm(half, x, x, impl="tiles")
    with pytest.raises(ValueError, match=r"impl: expected one of None, .*'tiles', got 'tile'"):
        sddmm(graph, x, x, impl="tile")  # pyright: ignore[reportArgumentType]


def test_what_a_gpu_is_given(monkeypatch):
    """Tiles forward and backward; rows for a maximum. Without `impl` the estimate decides."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    both = {2: 5.0, 4: 5.0}  # tiles are worth a launch
    rates = tile_rule.Rates({2: 14.0, 4: 14.0}, 0, 0, 100, both, both, 0.2, 4e6)
    monkeypatch.setattr(tile_rule, "_RATES", dict.fromkeys(tile_rule._RATES, rates))
    graph = skewed_graph(130, 3_000).with_tiles(min_edges=3)
    x = jnp.ones((130, 2, 9), jnp.bfloat16)

    def calls(
        *arguments,
        f=spmm,
        gradient=True,
        x=x,
        graph=graph,
        names=("tiles_spmm", "spmm"),
        **options,
    ):
        def loss(x, graph):
            return jnp.sum(f(graph, x, *arguments, **options).astype(jnp.float32) ** 2)

        function = jax.jit(jax.grad(loss) if gradient else loss)
        text = function.trace(x, graph).lower(lowering_platforms=("cuda",)).as_text()
        return [text.count(f"custom_call @jaxgnn_{name}(") for name in names]

    assert calls(impl="tiles", reduce="mean") == [2, 0]
    assert calls(gradient=False) == calls(impl="rows", gradient=False) == [0, 1]
    assert calls(impl="tiles", reduce="max", gradient=False) == [0, 1]

    def many(graph, x, **options):
        return jax.vmap(lambda x: spmm(graph, x, **options))(jnp.stack([x, x, x]))

    assert calls(impl="tiles", f=many, gradient=False) == [1, 0]
    # A batch is a wider row: of 8 rows tiles are worth a launch, of one they are not.
    dense = skewed_graph(130, 30_000).with_tiles()
    x = jnp.ones((dense.num_senders, 256))
    assert calls(x=x, graph=dense) == [0, 2]
    wide = jnp.ones((dense.num_senders, 4096))
    assert calls(x=wide, graph=dense) == calls(x=wide, graph=dense, reduce="mean") == [2, 0]
    assert calls(x=wide, graph=dense, impl="kernel", transpose=True) == [2, 0]
    assert calls(x=wide, graph=dense, impl="rows") == [0, 2]
    # Weights; their gradient, dot products by rows; and those of dot products, weighted sums.
    names = ("tiles_weighted_spmm", "spmm", "sddmm")
    ones = jnp.ones(30_000)
    assert calls(ones, x=wide, graph=dense, names=names) == [2, 0, 0]
    assert calls(ones, x=x, graph=dense, names=names) == [0, 2, 0]

    def by_weights(graph, x, **options):
        weights = jnp.broadcast_to(jnp.sum(x[:1, :1], axis=1), graph.num_edges)
        return spmm(graph, x, weights, **options)

    assert calls(f=by_weights, x=wide, graph=dense, names=names) == [2, 0, 1]
    assert calls(f=by_weights, x=x, graph=dense, names=names, impl="tiles") == [2, 0, 1]
    assert calls(f=by_weights, x=x, graph=dense, names=names, impl="rows") == [0, 2, 1]

    def scores(graph, x, **options):
        return sddmm(graph, x, x, **options)

    assert calls(f=scores, x=wide, graph=dense, names=names) == [2, 0, 1]
    assert calls(f=scores, x=x, graph=dense, names=names) == [0, 2, 1]
    assert calls(f=scores, x=x, graph=dense, names=names, impl="tiles") == [2, 0, 1]
    assert calls(f=scores, x=wide, graph=dense, names=names, impl="rows") == [0, 2, 1]
    heads, by_head = jnp.ones((dense.num_senders, 3, 6), jnp.bfloat16), jnp.ones((30_000, 3))
    options = {"x": heads, "graph": dense, "names": names, "impl": "tiles"}
    assert calls(by_head, **options) == [2, 0, 0]

    def weights_of_each(graph, x, **options):
        return jax.vmap(lambda w: spmm(graph, x[:, 0], w, **options))(by_head.T)

    assert calls(f=weights_of_each, **options) == [2, 0, 0]
    assert calls(
        f=lambda graph, x: jax.vmap(lambda x: spmm(graph, x))(jnp.stack([x] * 16)),
        x=x,
        graph=dense,
        gradient=False,
    ) == [1, 0]
    # GCN's weights are products of two nodes' numbers: the nodes are scaled, the mask stays.
    free = dict.fromkeys(tile_rule._RATES, rates._replace(launch=0))
    monkeypatch.setattr(tile_rule, "_RATES", free)
    for conv in (
        GCNConv(256, 256, rngs=nnx.Rngs(0)),
        SAGEConv(256, 256, rngs=nnx.Rngs(0)),
        GINConv(jnp.sin),
    ):
        assert calls(x=x, graph=dense, f=lambda graph, x, conv=conv: conv(graph, x)) == [2, 0]


def test_precision(monkeypatch):
    """All products without weights have it, forward and backward; a CPU and rows have none."""
    graph = skewed_graph(70, 900).with_tiles(min_edges=2)
    x = jnp.asarray(RNG.standard_normal((70, 5)), jnp.float32)
    weights = jnp.asarray(RNG.standard_normal(graph.num_edges), jnp.float32)

    def loss(x, weights, impl, precision):
        def sums(x, *weights, **options):
            return spmm(graph, x, *weights, impl=impl, precision=precision, **options)

        many = jax.vmap(lambda x: sums(x, reduce="mean"))(jnp.stack([x, jnp.sin(x)]))
        scores = sddmm(graph, x, many[1], impl=impl)
        return jnp.sum(sums(many[0]) ** 2) + jnp.sum(sums(x, weights + scores) ** 2)

    def run(impl, precision):
        return jax.jit(jax.value_and_grad(loss, (0, 1)), static_argnums=(2, 3)).trace(
            x, weights, impl, precision
        )

    if jax.default_backend() == "cpu":
        plain, allowed = (
            run("tiles", precision).lower().compile()(x, weights)
            for precision in (None, "tensorfloat32")
        )
        jax.tree.map(np.testing.assert_array_equal, plain, allowed)
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    attribute = re.compile(r"@jaxgnn_tiles_spmm\(.*tensorfloat32 = (\d) :")
    for impl, precision, expected in (
        ("tiles", None, ["0"] * 4),
        ("tiles", "tensorfloat32", ["1"] * 4),
        ("rows", "tensorfloat32", []),
    ):
        text = run(impl, precision).lower(lowering_platforms=("cuda",)).as_text()
        assert attribute.findall(text) == expected
    match = "precision: expected one of None, 'tensorfloat32', got "
    for wrong in ("tf32", "highest", jax.lax.Precision.HIGH, 19):
        with pytest.raises(ValueError, match=match + re.escape(repr(wrong))):
            spmm(graph, x, precision=wrong)


def test_estimate():
    """The stated terms, and the engine that follows from what a graph shares."""
    shared = Graph.from_edges(np.tile(np.arange(512), 512), np.repeat(np.arange(512), 512))
    apart = Graph.from_edges(np.arange(512), np.arange(512)).with_tiles()
    tiled = shared.with_tiles()
    edges, entries = 512 * 512, 8 * 512
    for operation, (dtype, width) in itertools.product(
        ("spmm", "weighted_spmm"), (("bfloat16", 256), ("float32", 256), ("float16", 1))
    ):
        r = tile_rule._RATES[operation]
        size = 4 if dtype == "float32" else 2
        slices = -(-width * size // 128)
        guess = tiles.estimate(tiled, width, dtype, operation=operation)
        rows = edges * (slices * r.edge_slice[size] + r.edge) + 512 * slices * r.row_slice
        assert guess.rows == pytest.approx(rows * 1e-12)
        over = slices * (512 * r.rest_row_slice + entries * r.entry_slice[size]) + r.launch
        over += 2 * 8 * 64 * width * 4 * r.scratch_byte
        if operation == "weighted_spmm":
            over += edges * slices * r.tile_edge_slice[size]
        assert guess.tiles == pytest.approx(over * 1e-12)
        assert guess == tiles.estimate(tiled, width, dtype, operation=operation, transpose=True)
    half, whole = (tiles.estimate(apart, width).rows for width in (16, 17))  # rows of one edge
    assert whole - half == pytest.approx(
        512 * 0.4 * tile_rule._SPMM.edge_slice[4] * 1e-12, rel=1e-2
    )
    guess = tiles.estimate(tiled, 1024)
    assert guess.engine == "tiles"
    for dtype, engine in (("float32", "tiles"), ("bfloat16", "rows")):
        weighted = tiles.estimate(tiled, 4096, dtype, operation="weighted_spmm")
        assert weighted.engine == engine
    assert guess.calls_until_paid(100 * (guess.rows - guess.tiles) + 1e-12) == 101
    for guess in (tiles.estimate(tiled, 256, "float64"), tiles.estimate(apart, 256)):
        assert guess.engine == "rows" and guess.tiles == float("inf")
        assert guess.calls_until_paid(1.0) is None
    with pytest.raises(ValueError, match=r"graph: expected one with tiles, .*Graph\.with_tiles"):
        tiles.estimate(shared, 256)
    with pytest.raises(TypeError, match="graph: expected a jaxgnn"):
        tiles.estimate(None, 256)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"width: expected an integer from 1 to .*, got 0"):
        tiles.estimate(tiled, 0)
    with pytest.raises(TypeError, match="width: expected an integer, got float"):
        tiles.estimate(tiled, 8.0)  # pyright: ignore[reportArgumentType]
    for dtype in ("int8", bool, "float8_e4m3fn", jnp.int32, "complex64", "fp32", None):
        with pytest.raises(TypeError, match=r"dtype: expected float32, .* or float64, got"):
            tiles.estimate(tiled, 8, dtype)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="transpose: expected True or False, got 1"):
        tiles.estimate(tiled, 8, transpose=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"operation: expected one of 'spmm', .*, got 'gemm'"):
        tiles.estimate(tiled, 8, operation="gemm")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"operation: expected one of 'spmm', .*, got array"):
        tiles.estimate(tiled, 8, operation=np.arange(3))  # pyright: ignore[reportArgumentType]
