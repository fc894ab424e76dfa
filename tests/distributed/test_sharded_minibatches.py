"""Mini-batches whose seeds several devices share: the samples, steps and runs of one device."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxgnn import Graph, sage_embedding, sample_neighbors, sampled_edges, sampled_spmm
from jaxgnn._core.ffi import cpu_module
from jaxgnn.train import ConfigError, TrainConfig, build, run
from jaxgnn.train.loop.epochs import Compiled
from jaxgnn.train.problems.node_problem import make_task
from jaxgnn.train.steps import sharded
from jaxgnn.train.steps.step import _own_keys
from tests.distributed.test_sharded_runs import losses
from tests.support.processes import run_python
from tests.support.strategies import skewed_graph
from tests.support.training import toy

pytestmark = [
    pytest.mark.skipif(cpu_module is None, reason="jaxgnn._cpu is not built"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="simulated devices are the CPU's"),
    pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices"),
    pytest.mark.few(1),
]

CONFIG = TrainConfig(
    model="sage", hidden=8, layers=2, num_neighbors="4,3", batch_size=7, dropout=0.0, patience=0
)


def edges_by_hop(edges, devices, sizes):
    """The edges that are drawn, hop by hop in the order of the places."""
    edges, begins = np.asarray(edges).reshape(devices, -1), [0]
    width = edges.shape[1]
    share = width // sum(np.cumprod(sizes))
    for size in np.cumprod(sizes):
        begins.append(begins[-1] + share * size)
    hops = [edges[:, begin:end] for begin, end in itertools.pairwise(begins)]
    return [hop[hop >= 0] for hop in hops]


@pytest.mark.parametrize(
    "options",
    [{}, {"replace": True}, {"method": "labor"}, {"weighted": True}],
    ids=["uniform", "replace", "labor", "weighted"],
)
def test_the_edges_are_those_of_one_device(options):
    """Hop by hop and in the same order, padding and rows of every length among them."""
    rng = np.random.default_rng(0)
    receivers = np.minimum(rng.integers(0, 60, 500), rng.integers(0, 60, 500))
    graph = Graph.from_edges(rng.integers(0, 60, 500), receivers, num_nodes=60)
    options = dict(options)
    if options.pop("weighted", False):
        options["weights"] = rng.uniform(0, 1, 500).astype(np.float32)
    seeds = np.append(rng.integers(0, 60, 10), [-1, -1]).astype(np.int32)
    sizes, key = [3, 2, 2], jax.random.key(5)
    want = edges_by_hop(sample_neighbors(graph, seeds, sizes, key, **options).edges, 1, sizes)
    assert all(hop.size for hop in want)
    mesh = Mesh(np.array(jax.local_devices()[:2]), ("devices",))

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P("devices"), P()), out_specs=P("devices")
    )
    def edges(graph, seeds, key):
        blocks = sample_neighbors(graph, seeds, sizes, key, axis_name="devices", **options)
        return blocks.edges

    got = edges_by_hop(edges(graph, seeds, key), 2, sizes)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


def split_over_devices(function):
    """`function(graph, x, nodes)` on two devices, each with half of the nodes."""
    mesh = Mesh(np.array(jax.local_devices()[:2]), ("devices",))
    specs = (P(), P(), P("devices"))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("devices")))


def test_neighbors_with_64_bits_and_without_promotion():
    graph, seeds = Graph.from_edges(np.arange(9), np.arange(9) // 3, num_nodes=9), np.arange(4)

    def draw(graph, x, seeds):
        return sample_neighbors(graph, seeds, [2, 2], jax.random.key(0), axis_name="devices").nodes

    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        nodes = split_over_devices(draw)(graph, None, seeds)
    np.testing.assert_array_equal(nodes[:2], seeds[:2])


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "random"},
        {"strategy": "random", "replace": True, "impl": "jax"},
        {"strategy": "stride"},
        {"strategy": "bucket"},
    ],
    ids=["random", "replace", "stride", "bucket"],
)
def test_rows_draw_what_one_device_draws(options):
    graph = skewed_graph(30, 400)
    rows = np.array([7, 7, 3, -1, 7, 7, 29, 0], np.int32)
    x = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    if options["strategy"] != "bucket":
        options = {**options, "key": jax.random.key(5)}

    def draw(graph, x, rows, axis_name=None):
        given = {"rows": rows, "sample_size": 4, "axis_name": axis_name, **options}

        def loss(x):
            y = sampled_spmm(graph, x, **given)
            return jnp.sum(y**2), y

        gradient, y = jax.grad(loss, has_aux=True)(x)
        return sampled_edges(graph, **given), y, gradient[None]

    edges, y, gradient = split_over_devices(functools.partial(draw, axis_name="devices"))(
        graph, x, rows
    )
    expected, y_expected, gradient_expected = draw(graph, x, rows)
    jax.tree.map(np.testing.assert_array_equal, edges, expected)
    np.testing.assert_allclose(y, y_expected, rtol=1e-6)
    # All devices have the features, so that their gradient is the sum over the devices.
    for part in gradient:
        np.testing.assert_allclose(part, gradient_expected[0], rtol=1e-5, atol=1e-5)
    if "key" in options:
        assert expected[0][0].tolist() != expected[0][4].tolist()


@pytest.mark.system
@pytest.mark.parametrize("batch_size", [2, 100])
def test_sources_draw_what_one_device_draws(batch_size):
    graph = skewed_graph(30, 400)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 5)).astype(np.float32)
    shapes = {"Wf1": (5, 4), "Wa1": (5, 4), "Wf2": (8, 3), "Wa2": (8, 3)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    sources = np.array([7, 7, 3, -1, 7, 7, 29, 0], np.int32)

    def embed(graph, x, sources, axis_name=None):
        key, options = jax.random.key(5), {"sources": sources, "axis_name": axis_name}
        options |= {"num_children": 3, "batch_size": batch_size}
        return sage_embedding(graph, x, params, key, **options)

    z = split_over_devices(functools.partial(embed, axis_name="devices"))(graph, x, sources)
    expected = embed(graph, x, sources)
    np.testing.assert_allclose(z, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(expected[0], expected[4])


def test_an_axis_without_rows_is_an_error():
    graph, x = skewed_graph(5, 20), jnp.ones((5, 2))
    with pytest.raises(ValueError, match="axis_name: expected None without rows, got 'devices'"):
        sampled_spmm(graph, x, sample_size=2, axis_name="devices")
    params = {"Wf1": x[:2], "Wa1": x[:2], "Wf2": x[:4], "Wa2": x[:4]}
    with pytest.raises(ValueError, match="axis_name: expected None without sources"):
        sage_embedding(graph, x, params, jax.random.key(0), axis_name="devices")


def test_devices_merge_the_nodes_of_their_own_seeds():
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(0, 40, (2, 300)), num_nodes=40)
    seeds = rng.integers(0, 40, 12).astype(np.int32)
    mesh = Mesh(np.array(jax.local_devices()[:2]), ("devices",))
    sample = functools.partial(sample_neighbors, num_neighbors=[3, 2], deduplicate=True)

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P("devices"), P()), out_specs=P("devices")
    )
    def nodes_and_edges(graph, seeds, key):
        blocks = sample(graph, seeds, key=key, axis_name="devices")
        return blocks.nodes, blocks.edges

    key = jax.random.key(5)
    found = nodes_and_edges(graph, seeds, key)
    shares = [sample(graph, share, key=key) for share in np.split(seeds, 2)]
    for got, name in zip(found, ("nodes", "edges"), strict=True):
        np.testing.assert_array_equal(got, np.concatenate([getattr(b, name) for b in shares]))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "batch"},
        {"model": "gat", "heads": 2},
        {"activation": "maxk", "k": 4, "input_layer": True, "jumping": "last"},
        {"features_on": "host"},
        {"steps_per_call": 2},
        {"dtype": "float16"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_steps_are_those_of_one_device(options):
    """Losses and parameters, also with a last batch that leaves a device without seeds."""
    dataset = toy()
    config = dataclasses.replace(CONFIG, **options)
    results = []
    for devices in (1, 2):
        own = dataclasses.replace(config, devices=str(devices)).check()
        task = make_task(own, dataset, dataset.splits["only"])
        program, state = build(own, task)
        assert (program.batches.mesh is None) == (devices == 1)
        assert 0 < program.batches.num_seeds % 7 <= 4  # of the last batch, a share is 4
        state = sharded.replicate(state, task.graph)
        compiled = Compiled(program, state, task)
        found = []
        for _ in range(3):
            state, loss = compiled.step(state, task)
            _, metrics = compiled.evaluate(state.params, state.rest, task)
            found += [float(loss), float(metrics["val_loss"])]
        results.append((found, jax.device_get((state.params, state.rest))))
    tolerance = 2e-2 if config.dtype == "float16" else 1e-5
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=tolerance)
    if config.dtype != "float16":
        paths, others = (jax.tree_util.tree_leaves_with_path(result[1]) for result in results)
        for (path, one), (_, other) in zip(paths, others, strict=True):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            # BatchNorm subtracts the bias before it: its gradient is rounding, which Adam scales.
            free = config.norm == "batch" and "convs.0.linear_neighbors.bias" in name
            if not free and not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_devices_drop_other_entries_and_keep_the_streams():
    dataset = toy()
    config = dataclasses.replace(CONFIG, devices="2", dropout=0.5).check()
    task = make_task(config, dataset, dataset.splits["only"])
    program, state = build(config, task)
    mesh = program.batches.mesh

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P("devices"))
    def masks(rest):
        keys = jax.tree.leaves(nnx.split_state(_own_keys(rest, "devices"), nnx.RngKey, ...)[0])
        return jnp.stack([jax.random.bernoulli(key, 0.5, (64,)) for key in keys])

    drawn = np.asarray(masks(sharded.replicate(state.rest, task.graph)))
    first, second = np.split(drawn, 2)
    assert first.size and (first != second).any(axis=1).all()
    state = sharded.replicate(state, task.graph)
    after, _ = jax.jit(program.step)(state, task)
    for old, new in zip(
        *(jax.tree.leaves(nnx.split_state(s.rest, nnx.RngKey, ...)[0]) for s in (state, after)),
        strict=True,
    ):
        np.testing.assert_array_equal(jax.random.key_data(old), jax.random.key_data(new))


@pytest.mark.system
@pytest.mark.few(1)
@pytest.mark.parametrize("deduplicate", [False, True])
def test_a_run_is_continued_with_the_same_bits(tmp_path, deduplicate):
    dataset = toy()
    config = dataclasses.replace(
        CONFIG, devices="2", dropout=0.3, norm="batch", deduplicate=deduplicate
    )
    whole, cut = (
        dataclasses.replace(config, run_directory=str(tmp_path / name)) for name in ("whole", "cut")
    )
    summary = run(dataclasses.replace(whole, epochs=4), dataset=dataset)
    assert (summary["devices"], summary["shard"]) == (2, "seeds")
    run(dataclasses.replace(cut, epochs=2), dataset=dataset)
    run(dataclasses.replace(cut, epochs=4, resume=cut.run_directory), dataset=dataset)
    assert losses(cut.run_directory) == losses(whole.run_directory)
    # And with one device, whose dropout is another.
    one = dataclasses.replace(cut, epochs=5, resume=cut.run_directory, devices="1")
    assert run(one, dataset=dataset)["epochs"] == 5


def test_what_is_refused():
    for options in ({"devices": "2"}, {"devices": "1", "distributed": True}):
        with pytest.raises(ConfigError, match="--shard: expected none with --num-neighbors"):
            dataclasses.replace(CONFIG, shard="rows", **options).check()


@pytest.mark.system
def test_eight_devices_are_one(tmp_path):
    def jaxgnn(*arguments):
        environment = {"JAX_NUM_CPU_DEVICES": "8", "XLA_FLAGS": ""}
        return run_python("-m", "jaxgnn_cli", *arguments, directory=tmp_path, **environment)

    options = "train digits --num-neighbors 4,3 --batch-size 100 --epochs 2 --dropout 0 --plain"
    for devices in ("1", "3", "8"):
        jaxgnn(*options.split(), "--devices", devices, "--run-directory", f"run{devices}")
    one = losses(tmp_path / "run1")
    for devices in ("3", "8"):
        np.testing.assert_allclose(losses(tmp_path / f"run{devices}"), one, rtol=1e-4)
