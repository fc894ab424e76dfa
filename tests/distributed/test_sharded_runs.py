"""`jaxgnn train --devices`: the same training on any number of devices, continued on another."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgnn import distributed
from jaxgnn._core.checksum import checksum
from jaxgnn._core.ffi import cpu_module
from jaxgnn.data import DataError, load, partition_arrays
from jaxgnn.data.formats.partitioned import partition_nodes
from jaxgnn.graph import Graph
from jaxgnn.train import ConfigError, Recovery, TrainConfig, load_run, run
from jaxgnn.train.problems.problem import make_problem
from jaxgnn.train.reports.records import fingerprint
from jaxgnn.train.steps.sharded import devices_of_a_part
from tests.support.processes import run_python
from tests.support.training import NODES, toy

pytestmark = [
    pytest.mark.skipif(cpu_module is None, reason="jaxgnn._cpu is not built"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="simulated devices are the CPU's"),
]


def losses(directory):
    with open(f"{directory}/metrics.jsonl") as file:
        rows = [json.loads(line) for line in file]
    return [(row["loss"], row["val_loss"]) for row in rows]


@pytest.fixture
def folder(tmp_path):
    dataset, path = toy(), tmp_path / "parts"
    save_parts(dataset, path)
    return dataset, path


def weighted():
    """With weights of the edges, repeated edges and self-loops."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, NODES, (2, 300))
    senders[:20] = receivers[:20] = np.arange(20) % 15
    graph, weights = Graph.from_edges(
        senders, receivers, num_nodes=NODES, edge_data=rng.exponential(size=300).astype(np.float32)
    )
    return dataclasses.replace(toy(), graph=graph, weights=np.asarray(weights))


def save_parts(dataset, path, parts=4):
    split = distributed.partition(dataset.graph, parts, edge_balance=2)
    arrays, edge_arrays, data = partition_arrays(dataset)
    split.save(path, dataset.graph, arrays, edge_arrays=edge_arrays, data=data)
    return str(path)


def test_names_of_features_are_kept(tmp_path):
    names = tuple(f"f{i}" for i in range(toy().features.shape[1]))
    for given in (None, names):
        parts = save_parts(dataclasses.replace(toy(), feature_names=given), tmp_path / str(given))
        assert load(parts).feature_names == partition_nodes(parts)[0].feature_names == given


@pytest.mark.system
def test_two_devices_then_one_end_as_one(folder, tmp_path):
    dataset, parts = folder
    back = load(parts)
    for name in ("features", "labels"):
        np.testing.assert_array_equal(getattr(back, name), getattr(dataset, name))
    np.testing.assert_array_equal(back.split(0).test, dataset.split(0).test)
    for name in ("row_offsets", "senders", "transpose_receivers"):
        np.testing.assert_array_equal(getattr(back.graph, name), getattr(dataset.graph, name))

    labels_alone, prefix = partition_nodes(parts)
    np.testing.assert_array_equal(labels_alone.labels, dataset.labels)
    for mask in ("train", "val", "test"):
        found, expected = (getattr(d.split(0), mask) for d in (labels_alone, dataset))
        np.testing.assert_array_equal(found, expected)
    masks = dataset.split(0).train, dataset.split(0).val, dataset.split(0).test
    assert checksum(*masks, after=prefix) == fingerprint(back, back.split(0))

    config = TrainConfig(
        str(parts), model="sage", hidden=8, epochs=3, patience=0, dropout=0.0, features="raw"
    )
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    run(dataclasses.replace(config, epochs=6, run_directory=one))
    first = run(dataclasses.replace(config, devices="2", run_directory=two))
    assert (first["devices"], first["shard"]) == (2, "rows")
    last = run(dataclasses.replace(config, epochs=6, resume=two, run_directory=two))
    assert "devices" not in last and last["epochs"] == 6
    np.testing.assert_allclose(losses(two), losses(one), rtol=1e-5)
    logits = [load_run(path).logits(dataset.graph, dataset.features) for path in (one, two)]
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-5)
    # Scores of the sharded run are of the nodes, not of the places.
    confusion = first["test_score"] * dataset.split(0).test.sum()
    assert confusion == pytest.approx(round(confusion))


@pytest.mark.system
@pytest.mark.parametrize(
    "options",
    [
        {"model": "gcn", "shard": "rows"},
        {"model": "gcn", "shard": "features"},
        {"model": "sage", "shard": "features", "dtype": "bfloat16"},
        {"model": "gin", "shard": "rows"},
        {"model": "sage", "shard": "rows", "activation": "maxk", "k": 3, "norm": "layer"},
        {"model": "gcn", "num_neighbors": "4,3", "batch_size": 7},
        {"model": "sage", "num_neighbors": "4,3", "batch_size": 7, "evaluation_batch_size": 9},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_weights_of_edges_are_those_of_one_device(tmp_path, options):
    """Of repeated edges and self-loops, too, and continued on one device."""
    dataset = weighted()
    config = TrainConfig(
        hidden=8, epochs=2, patience=0, dropout=0.0, edge_weights=True, features="raw", **options
    )
    alone = dataclasses.replace(config, epochs=3, shard="auto", run_directory=str(tmp_path / "one"))
    run(alone, dataset=dataset)
    two = str(tmp_path / "two")
    found = run(dataclasses.replace(config, devices="2", run_directory=two), dataset=dataset)
    assert (found["devices"], found["shard"]) == (2, options.get("shard", "seeds"))
    run(dataclasses.replace(alone, resume=two, run_directory=two), dataset=dataset)
    limit = 2e-2 if "dtype" in options else 1e-5
    np.testing.assert_allclose(losses(two), losses(alone.run_directory), rtol=limit)
    expected, got = (
        nnx.state(load_run(path).model, nnx.Param) for path in (alone.run_directory, two)
    )
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(have, want, rtol=10 * limit, atol=limit)


@pytest.mark.system
@pytest.mark.parametrize(
    "options",
    [
        {"model": "gcn"},
        {"model": "sage", "shard": "features"},
        {"model": "gin", "dtype": "bfloat16"},
        {"model": "gcn", "num_neighbors": "4,3", "batch_size": 7},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_folder_with_weights_trains_as_the_whole_data(tmp_path, options):
    """On two devices and then on one, which know the data by the same checksum."""
    dataset = weighted()
    config = TrainConfig(
        save_parts(dataset, tmp_path / "parts"), hidden=8, epochs=3, patience=0, dropout=0.0,
        edge_weights=True, features="raw", **options,
    )  # fmt: skip
    alone = dataclasses.replace(config, shard="auto", run_directory=str(tmp_path / "one"))
    run(alone, dataset=dataset)
    two = str(tmp_path / "two")
    run(dataclasses.replace(config, epochs=2, devices="2", run_directory=two))
    run(dataclasses.replace(alone, resume=two, run_directory=two))
    limit = 2e-2 if "dtype" in options else 1e-5
    np.testing.assert_allclose(losses(two), losses(alone.run_directory), rtol=limit)


@pytest.mark.parametrize(("model", "dtype"), [("gcn", "float32"), ("sage", "bfloat16")])
def test_own_parts_have_the_weights_of_their_edges(tmp_path, model, dtype):
    """As a process of several reads them, which knows the data by the checksum of the whole."""
    dataset = weighted()
    config = TrainConfig(
        save_parts(dataset, tmp_path / "parts"), hidden=8, model=model, edge_weights=True,
        features="raw", distributed=True, shard="rows", dtype=dtype,
    )  # fmt: skip
    problem = make_problem(config, None, Recovery())
    assert problem._own is not None and "; weights of the edges are used" in problem.describe()
    assert problem.fingerprint() == fingerprint(dataset, dataset.split(0), weights=True)
    assert problem.fingerprint() != fingerprint(dataset, dataset.split(0))
    problem.build()
    task = problem.task
    assert task.weights is not None and task.weights.dtype == np.float32
    expected = task.graph.scatter_edges(dataset.weights, in_graph_order=True)
    np.testing.assert_array_equal(task.weights, expected)
    without = make_problem(dataclasses.replace(config, edge_weights=False), None, Recovery())
    assert without._own is not None and without.task.weights is None
    assert without.fingerprint() == fingerprint(dataset, dataset.split(0))
    assert "; weights of the edges are not used (weights: --edge-weights)" in without.describe()


@pytest.mark.parametrize(
    ("weight", "message"), [(-100.0, "from 0 for gcn, .* got -1"), (3e38, "that float32 holds ")]
)
def test_errors_of_degrees_of_own_parts(tmp_path, weight, message):
    """Of a node with edges from others, of its first two."""
    dataset = weighted()
    offsets, senders = np.asarray(dataset.graph.row_offsets), np.asarray(dataset.graph.senders)
    node = next(i for i in range(NODES) if i not in senders[offsets[i] : offsets[i + 1]][:2])
    weights = dataset.weights.copy()
    weights[offsets[node] : offsets[node] + 2] = weight
    dataset = dataclasses.replace(dataset, weights=weights)
    config = TrainConfig(
        save_parts(dataset, tmp_path / "parts"), hidden=8, edge_weights=True, features="raw",
        distributed=True, shard="rows",
    )  # fmt: skip
    match = rf"toy: weights: expected degrees {message}.* at node {node}$"
    for own in (config, dataclasses.replace(config, distributed=False, shard="auto")):
        with pytest.raises(DataError, match=match):
            make_problem(own, None, Recovery())
    make_problem(dataclasses.replace(config, model="gin"), None, Recovery())


def test_what_is_refused(folder, tmp_path):
    dataset, parts = folder
    config = TrainConfig(str(parts), hidden=8, epochs=1, run_directory=str(tmp_path / "run"))
    for options, message in (
        ({"devices": "0"}, "--devices: expected a positive integer or all, got '0'"),
        ({"devices": "3"}, "--devices: expected at most 2, the devices of this host"),
        ({"shard": "rows"}, "--shard: expected --devices with it, got rows"),
        ({"devices": "2", "shard": "both"}, "--shard: expected rows or features over 2 devices"),
        (
            {"devices": "2", "num_neighbors": "2,2", "shard": "rows"},
            "--shard: expected none with --num-neighbors, whose seeds are split, got rows",
        ),
        ({"devices": "all", "task": "link"}, "--devices: expected 1 with --task link, got all"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(dataclasses.replace(config, **options))
    for options in ({}, {"devices": "2"}, {"distributed": True}):
        own = dataclasses.replace(config, edge_weights=True, **options)
        with pytest.raises(DataError, match=r"parts: expected weights of the edges .*, got none: "):
            make_problem(own, None, Recovery())
    unequal = dataclasses.replace(config, devices="2", model="agnn", shard="features")
    samples = dataclasses.replace(config, devices="2", sample_size=3)  # in training alone
    for refused in (unequal, samples):
        with pytest.raises(ConfigError, match=r"--devices: .*sharded"):
            run(refused, dataset=dataset)
    assert not (tmp_path / "run").exists()
    save_parts(dataset, tmp_path / "three", 3)
    with pytest.raises(ConfigError, match="expected a divisor of the 3 parts, got 2"):
        run(dataclasses.replace(config, dataset=str(tmp_path / "three"), devices="2"))
    manifest = tmp_path / "three" / "manifest.json"
    text = manifest.read_text()
    for old, new in (('"accuracy"', '"best"'), ('"only"', "1"), ('"name": "toy"', '"name": 1')):
        manifest.write_text(text.replace(old, new))
        with pytest.raises(DataError, match=r"manifest\.json: data: "):
            load(tmp_path / "three")
    manifest.unlink()  # interrupted before the end
    with pytest.raises(DataError, match=r"manifest\.json"):
        load(tmp_path / "three")


def test_auto_takes_rows_where_the_model_does_not_work_by_features(monkeypatch):
    """Where it works by both the faster layout stays."""
    slow = "jaxgnn.distributed._costs.Cost.seconds"
    monkeypatch.setattr(slow, lambda cost, *_: float(cost.layout == "rows"))
    dataset, config = toy(), TrainConfig(hidden=8, devices="2", activation="maxk", k=4)
    for options, layout, reason in (
        ({}, "rows", "(by features: maxk_spmm expected a graph sharded by rows, got one by feat"),
        ({"activation": "relu", "k": 32, "layers": 1}, "features", ""),
    ):
        own = dataclasses.replace(config, **options)
        problem = make_problem(own, dataset, Recovery())
        assert problem.task.graph.layout == "features"
        problem.build()
        assert problem.task.graph.layout == layout
        assert f"; by {layout} over 2 devices{' ' * bool(reason)}{reason}" in problem.describe()
    named = dataclasses.replace(config, shard="features")
    with pytest.raises(ConfigError, match="--devices: graph: maxk_spmm expected"):
        make_problem(named, dataset, Recovery()).build()


def test_who_shares_columns():
    """The devices of a process; of one process, or of a device each, so many that a host has."""
    for processes, expected in (
        ([0] * 8, 4),
        ([0] * 2, 1),
        ([0, 0, 1, 1], 2),
        ([0] * 4 + [1] * 4, 4),
        ([0, 0, 0, 1, 1, 1], 3),
        ([0, 0, 1], 1),
        (list(range(8)), 4),
        (list(range(64)), 8),
    ):
        assert devices_of_a_part(processes) == expected


@pytest.mark.system
def test_eight_devices_then_three_then_one(tmp_path):
    """Whole runs: by rows on the parts of a folder, by features, and alone."""

    def jaxgnn(*arguments, devices=8):
        flags = f"--xla_force_host_platform_device_count={devices}"
        run_python("-m", "jaxgnn_cli", *arguments, directory=tmp_path, XLA_FLAGS=flags)

    jaxgnn("partition", "digits", "parts", "--parts", "8")
    train = ["train", "parts", "--model", "gcn", "--dropout", "0", "--norm", "layer"]
    jaxgnn(*train, "--epochs", "30", "--run-directory", "alone", devices=1)
    jaxgnn(*train, "--epochs", "10", "--devices", "all", "--run-directory", "run")
    more = ["train", "--resume", "run", "--epochs"]
    jaxgnn(*more, "20", "--devices", "3", "--shard", "features")
    jaxgnn(*more, "30", devices=1)
    np.testing.assert_allclose(
        losses(tmp_path / "run"), losses(tmp_path / "alone"), rtol=1e-3, atol=1e-4
    )
    jaxgnn("evaluate", "run", devices=1)
    jaxgnn("predict", "run", "digits", "--output", "predicted.npz", devices=1)
    jaxgnn("predict", "alone", "digits", "--output", "expected.npz", devices=1)
    got, want = (np.load(tmp_path / name) for name in ("predicted.npz", "expected.npz"))
    for name in want.files:
        if want[name].dtype.kind == "f":
            np.testing.assert_allclose(got[name], want[name], atol=1e-2)
