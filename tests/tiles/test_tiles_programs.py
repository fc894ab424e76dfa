"""Programs over graphs with tiles: `shard_map`, export, settings, devices, sharded graphs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxgnn import Graph, sddmm, spmm, tiles
from jaxgnn._core import platform
from jaxgnn.distributed import shard
from tests.support.arrays import normal
from tests.support.devices import two_devices
from tests.support.strategies import skewed_graph

NODES = 70


@pytest.fixture(scope="module")
def graph() -> Graph:
    return skewed_graph(NODES, 900)


def loss(graph, x, weights, impl="tiles"):
    """A masked mean, a weighted sum, and dot products, whose derivatives are both."""
    out = spmm(graph, x, reduce="mean", impl=impl) + spmm(graph, x, weights, impl=impl)
    return jnp.sum(jnp.sin(out)) + jnp.sum(sddmm(graph, x, out, impl=impl) ** 2)


gradients = jax.value_and_grad(loss, (1, 2))


def test_shard_map(graph, monkeypatch):
    """Over features: values and gradients of the untiled graph on one device."""
    mesh, x, weights = two_devices(), normal(NODES, 8), normal(900, seed=1)

    def sums(graph, x, weights, impl="tiles"):
        out = spmm(graph, x, reduce="mean", impl=impl) + spmm(graph, x, weights, impl=impl)
        return jnp.sum(out**2)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P(None, "d"), P()), out_specs=P(), check_vma=True
    )
    def sharded(graph, x, weights):
        return jax.lax.psum(sums(graph, x, weights), "d")

    tiled, run = graph.with_tiles(min_edges=2), jax.jit(jax.value_and_grad(sharded, (1, 2)))
    single = jax.jit(jax.value_and_grad(functools.partial(sums, impl="rows"), (1, 2)))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3),
        run(tiled, x, weights),
        single(graph, x, weights),
    )
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    traced = jax.jit(jax.value_and_grad(sharded, (1, 2))).trace(tiled, x, weights)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "@jaxgnn_tiles_spmm(" in text and "@jaxgnn_tiles_weighted_spmm(" in text


def test_export_for_both_platforms(graph, monkeypatch):
    """One program: tiles on a GPU, rows on a CPU, where it has the bits of the untiled graph."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    tiled, x, weights = graph.with_tiles(min_edges=2), normal(NODES, 8), normal(900, seed=1)
    leaves, structure = jax.tree.flatten((tiled, x, weights))
    names = ("spmm", "sddmm", "tiles_spmm", "tiles_weighted_spmm")
    exported = jax.export.export(
        jax.jit(lambda *leaves: jax.tree.leaves(gradients(*jax.tree.unflatten(structure, leaves)))),
        platforms=("cpu", "cuda"),
        disabled_checks=[
            jax.export.DisabledSafetyCheck.custom_call(f"jaxgnn_{name}") for name in names
        ],
    )(*leaves)
    text = exported.mlir_module()
    assert exported.platforms == ("cpu", "cuda")
    assert all(f"@jaxgnn_{name}(" in text for name in names)
    loaded = jax.export.deserialize(bytearray(exported.serialize()))
    if jax.default_backend() == "cpu":
        expected = jax.tree.leaves(jax.jit(gradients, static_argnums=3)(graph, x, weights, "rows"))
        for one, other in zip(loaded.call(*leaves), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_no_setting_makes_it_tensorfloat32(graph, monkeypatch):
    """The lowered programs are the same, forward and backward."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    tiled, x, weights = graph.with_tiles(min_edges=2), normal(NODES, 8), normal(900, seed=1)

    def text(precision):
        with jax.default_matmul_precision(precision):
            traced = jax.jit(gradients).trace(tiled, x, weights)
            return traced.lower(lowering_platforms=("cuda",)).as_text()

    float32 = text("float32")
    assert "@jaxgnn_tiles_spmm(" in float32 and "@jaxgnn_tiles_weighted_spmm(" in float32
    assert "tensorfloat32 = 0" in float32 and "tensorfloat32 = 1" not in float32
    for precision in ("tensorfloat32", "bfloat16", None):
        assert text(precision) == float32


def test_what_is_made_of_a_graph_lies_beside_it(graph, tmp_path):
    """Tiles, windows, schedules and translations of a graph on another device are there, too."""
    if jax.device_count() < 2:
        pytest.skip("needs two devices")
    device = jax.devices()[1]
    placed = jax.device_put(graph, device)
    tiled = placed.with_tiles()
    tiles.save(tiled, tmp_path / "tiles")
    made = [
        tiled,
        placed.with_windows(weighted=True),
        placed.with_row_schedule(),
        tiles.load(placed, tmp_path / "tiles"),
        tiles.translate(placed),
    ]
    assert {d for leaf in jax.tree.leaves(made) for d in leaf.devices()} == {device}
    symmetric = jax.device_put(skewed_graph(30, 90, undirected=True), device).with_tiles()
    assert symmetric.tiles is symmetric.transpose_tiles
    tiles.save(symmetric, tmp_path / "tiles")
    symmetric = tiles.load(symmetric, tmp_path / "tiles")
    assert symmetric.tiles is symmetric.transpose_tiles
    mine = graph.with_tiles().tiles  # nobody placed it: neither are its tiles
    assert not any(leaf.committed for leaf in jax.tree.leaves(mine))


def test_parts_have_no_tiles(graph):
    """By rows; by features each device has the whole graph, with its tiles."""
    mesh, tiled = two_devices(), graph.with_tiles()
    by_rows = shard(tiled, mesh, rows="d")
    places = np.ones((by_rows.num_senders, 4), np.float32)
    for call in (
        lambda: spmm(by_rows, places, impl="tiles"),
        lambda: sddmm(by_rows, places, places, impl="tiles"),
    ):
        with pytest.raises(ValueError, match=r"impl: 'tiles' .* the parts of one sharded by rows"):
            call()
    by_features = shard(tiled, mesh, features="d")
    places = jax.ShapeDtypeStruct((by_features.num_senders, 4), np.float32)
    out = jax.eval_shape(lambda graph, x: spmm(graph, x, impl="tiles"), by_features, places)
    assert out.shape == places.shape
