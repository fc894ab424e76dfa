"""`jaxgnn embed`: what it prints and writes, and its errors."""

import itertools
import json
import os
import re

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, sage_embedding
from jaxgnn.train import HostFeatures, RunError, TrainConfig, restore_run, run
from jaxgnn_cli import embed_check, main
from tests.support.oracle_embedding import brute_force_embedding
from tests.support.small_sets import small

GRAPH = """%%MatrixMarket matrix coordinate pattern general
6 6 5
1 2
2 3
3 4
4 1
5 1
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    rng = np.random.default_rng(0)
    shapes = {"x": (6, 3), "Wf1": (3, 4), "Wa1": (3, 5), "Wf2": (9, 2), "Wa2": (9, 2)}
    found = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, matrix in found.items():
        np.save(f"{name}.npy", matrix)
    np.savetxt("x.txt", found["x"])
    (tmp_path / "graph.mtx").write_text(GRAPH)
    (tmp_path / "data.bin").write_text("1")
    os.mkfifo("fifo.mtx")
    os.mkfifo("fifo.npy")
    os.symlink("/dev/zero", "zero.txt")
    np.save("large.npy", np.full((6, 3), 1e300))  # float32 has no such number
    return found


def test_the_embedding_is_written_and_all_combinations_run(files, capsys):
    weights = [
        part for name in ("Wf1", "Wa1", "Wf2", "Wa2") for part in (f"--{name}", f"{name}.npy")
    ]
    arguments = ["--undirected", "--features", "x.txt", *weights, "--rand-seed", "4"]
    sizes = ["--num-children-per-source", "2,3", "--batch-size", "4", "--num-runs", "2"]
    assert main(["embed", "graph.mtx", *arguments, *sizes, "--output", "out.npy"]) == 0
    text = capsys.readouterr().out
    assert "6 nodes, 10 edges, 3 features" in text and "least" in text and "MB" in text
    assert text.count("rows within") == 2 and "children 2, leaves 2, batch 4" in text
    assert re.search(r"ms a batch of 2 \(least [\d.e+-]+, most [\d.e+-]+\)", text)
    graph = Graph.from_edges([1, 2, 3, 0, 0], [0, 1, 2, 3, 4], num_nodes=6, undirected=True)
    expected = brute_force_embedding(
        graph, files["x"], files, jax.random.key(4), num_children=3, num_leaves=3
    )
    np.testing.assert_allclose(np.load("out.npy"), expected, atol=1e-5)


@pytest.mark.system
def test_features_on_the_host_stay_there(files, monkeypatch, capsys):
    """The operation gets them as they are, and draws and computes what it would on the device."""
    got = []

    def spy(graph, features, *arguments, **options):
        got.append((graph.row_offsets.devices(), features))
        return sage_embedding(graph, features, *arguments, **options)

    arguments = ["embed", "graph.mtx", "--features", "x.npy", "--rand-seed", "4"]
    arguments += ["--num-children-per-source", "2,3", "--batch-size", "4", "--num-runs", "1"]
    with monkeypatch.context() as patched:
        patched.setattr("jaxgnn.ops._sampling.sage_embedding.sage_embedding", spy)
        assert main([*arguments, "--features-on", "host", "--output", "host.npy"]) == 0
    text = capsys.readouterr().out
    assert "3 features in host memory" in text and text.count("rows within") == 2
    assert len(got) == 4  # of each of two combinations the first run and the timed one
    for devices, features in got:
        assert isinstance(features, HostFeatures)
        assert {device.platform for device in devices} == {"cpu"}
    assert main([*arguments, "--output", "device.npy"]) == 0
    assert "host memory" not in capsys.readouterr().out
    np.testing.assert_allclose(np.load("host.npy"), np.load("device.npy"), atol=1e-6)


def test_features_on_the_host_need_a_cpu_backend(monkeypatch, capsys):
    def none():
        raise RuntimeError("features: expected JAX's CPU backend, got none: of a test")

    monkeypatch.setattr("jaxgnn.train.loaders.host_features.cpu_device", none)
    message = refused(capsys, "graph.mtx", "--features-on", "host")
    assert message == "jaxgnn: --features-on: expected JAX's CPU backend, got none: of a test\n"


@pytest.mark.system
def test_widths_are_combined_too(capsys):
    widths = ["--feature-column", "2,3", "--Wf2-dim1", "4,5", "--Wf1-dim1", "6", "--Wa1-dim1", "7"]
    given = [*widths, "--Wa2-dim1", "8", "--num-children-per-source", "2", "--num-runs", "1"]
    assert main(["embed", "graph.mtx", *given, "--output", "out.npy"]) == 0
    text = capsys.readouterr().out
    assert "5 edges, 2, 3 features" in text and text.count("rows within") == 4
    for features, width in itertools.product((2, 3), (4, 5)):
        assert f"features {features}, Wf1 6, Wa1 7, Wf2 {width}, Wa2 8\n" in text
    assert np.load("out.npy").shape == (6, 13)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of the model that embeds, of one that does not, and of a form that has no matrices."""
    folder = tmp_path_factory.mktemp("runs")
    small(folder / "small.npz")
    base = {"dataset": str(folder / "small.npz"), "model": "sage_embedding", "hidden": 6}
    for name, options in (("right", {}), ("norm", {"norm": "layer"})):
        run(TrainConfig(**base, **options, epochs=1, run_directory=str(folder / name)))
    for name, changed in (
        ("gcn", {"model": "gcn"}),
        ("elu", {"activation": "elu"}),
        ("embedding", {"features": "embedding"}),
    ):
        record = json.loads((folder / "right" / "config.json").read_text())
        (folder / name).mkdir()
        record["settings"] |= changed
        (folder / name / "config.json").write_text(json.dumps(record))
    return folder


@pytest.mark.system
def test_a_run_s_matrices_embed(files, runs, capsys):
    given = ["--features", "x.npy", "--checkpoint", str(runs / "right"), "--num-runs", "1"]
    with open("out.npy", "wb") as file:
        file.write(b"longer than what is written" * 100)
    assert main(["embed", "graph.mtx", *given, "--output", "out.npy"]) == 0
    assert "rows within" in capsys.readouterr().out
    restored = restore_run(runs / "right")
    best = restored.best
    model = nnx.merge(restored.program.inference, best.params, best.rest)
    graph = Graph.from_edges([0, 1, 2, 3, 4], [1, 2, 3, 0, 0], num_nodes=6)
    expected = brute_force_embedding(
        *(graph, files["x"], model.matrices(), jax.random.key(0)), num_children=10, num_leaves=10
    )
    np.testing.assert_allclose(np.load("out.npy"), expected, atol=1e-5)
    assert os.path.getsize("out.npy") == 128 + 6 * 6 * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "--checkpoint: nowhere is no run directory"),
        (["RUNS/gcn"], "/gcn: expected a run of --model sage_embedding, got gcn"),
        (["RUNS/elu"], "/elu: expected a run with ReLU, got --activation elu"),
        (["RUNS/embedding"], "expected a run on the data's features, got --features embedding"),
        (["RUNS/norm"], "/norm: norm: expected None of an embedding, got LayerNorm"),
        (["RUNS/right", "--Wa2", "Wa2.npy"], "--checkpoint: expected no --Wa2 with it, got both"),
        (["RUNS/right", "--features", "wide.npy"], "--features: expected 3 columns, as the run of"),
    ],
)
def test_runs_that_cannot_be_taken(runs, capsys, arguments, message):
    np.save("wide.npy", np.ones((6, 4), np.float32))
    run, *rest = (part.replace("RUNS", str(runs)) for part in arguments)
    given = ["--features", "x.npy", "--checkpoint", run, "--output", "out.npy"]
    assert message in refused(capsys, "graph.mtx", *given, *rest)
    assert not os.path.exists("out.npy")  # which is opened first


def test_an_output_that_cannot_be_written_is_found_before_the_runs(monkeypatch, capsys):
    def fail(*_):
        raise AssertionError("it ran")

    monkeypatch.setattr("jaxgnn_cli.embed._embed", fail)
    for path, reason in ((".", "Is a directory"), ("none/out.npy", "No such file or directory")):
        message = refused(capsys, "graph.mtx", "--output", path)
        assert message.endswith(f"--output: {path}: {reason}\n")
    np.save("old.npy", np.arange(3))
    with pytest.raises(AssertionError, match="it ran"):
        main(["embed", "graph.mtx", "--output", "old.npy"])
    np.testing.assert_array_equal(np.load("old.npy"), np.arange(3))


def test_a_disk_that_is_full_gives_its_path_and_status_1(capsys):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    assert main(["embed", "graph.mtx", "--num-runs", "1", "--output", "/dev/full"]) == 1
    assert capsys.readouterr().err == "jaxgnn: /dev/full: No space left on device\n"


def refused(capsys, *arguments: str) -> str:
    """The line of a command that ends with status 2 and has printed nothing else."""
    assert main(["embed", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    return captured.err


def test_a_wrong_embedding_is_refused(files):
    graph = Graph.from_edges([1, 2], [0, 1], num_nodes=6)
    arguments = (graph, files["x"], files, jax.random.key(0))
    right = embed_check.reference(*arguments, 2, 2, np.arange(6))
    embed_check.check_embedding(*arguments, right, 2, 2, 6)
    for wrong, message in ((right * 1.01, "length"), (right[::-1], "float64")):
        with pytest.raises(RunError, match=message):
            embed_check.check_embedding(*arguments, wrong, 2, 2, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.mtx"], "nowhere.mtx: cannot be read: No such file"),
        (["nowhere"], "nowhere: no such file or directory"),
        (["data.bin"], "data.bin: expected a Matrix Market file"),
        (["graph.mtx", "--batch-size", "0"], "--batch-size: expected integers from 1"),
        (["graph.mtx", "--num-children-per-source", "10,x"], "--num-children-per-source: expected"),
        (["graph.mtx", "--num-leafs-per-child", "0"], "--num-leafs-per-child: expected a positive"),
        (["graph.mtx", "--num-runs", "0"], "--num-runs: expected an integer from 1"),
        (["graph.mtx", "--Wf1-dim1", "-3"], "--Wf1-dim1: expected integers from 1"),
        (["graph.mtx", "--feature-column", "2,x"], "--feature-column: expected integers from 1"),
        (
            ["graph.mtx", "--feature-column", "3,4", "--Wa1", "Wa1.npy"],
            "--Wa1: expected a single number for --feature-column with it",
        ),
        (
            ["graph.mtx", "--Wa1-dim1", "3,4", "--Wf2", "Wf2.npy"],
            "--Wf2: expected a single number for --Wf1-dim1 and --Wa1-dim1 with it",
        ),
        (["graph.mtx", "--bogus", "3"], "--bogus"),
        (["graph.mtx", "--features-on", "disk"], "--features-on"),
        (["graph.mtx", "--checkpoint", "run"], "--checkpoint: expected --features with it, got"),
        (["graph.mtx", "--output", "emb.csv"], "--output: expected a file name with .npy, got emb"),
        (
            ["graph.mtx", "--output", "data.bin"],
            "--output: expected a file name with .npy, got dat",
        ),
        (["graph.mtx", "--features", "none.npy"], "none.npy: cannot be read: No such file"),
        (["fifo.mtx"], "fifo.mtx: cannot be read: expected a regular file, got a FIFO"),
        (["graph.mtx", "--features", "fifo.npy"], "expected a regular file, got a FIFO"),
        (["graph.mtx", "--features", "zero.txt"], "regular file, got a character device"),
        (["graph.mtx", "--features", "large.npy"], "large.npy: expected finite numbers"),
        (["graph.mtx", "--features", "Wf1.npy"], "--features: Wf1.npy: expected 6 rows"),
        (["graph.mtx", "--features", "graph.mtx"], "--features: graph.mtx: "),
        ([], "GRAPH"),
    ],
)
def test_a_bad_value_gives_one_line_and_status_2(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_help(capsys):
    assert main(["embed", "--help"]) == 0
    assert "--num-leafs-per-child" in capsys.readouterr().out
