"""`jaxgnn embed`: what it prints and writes, and its errors."""

import os

import jax
import numpy as np
import pytest

from jaxgnn import Graph
from jaxgnn.train import RunError
from jaxgnn_cli import embed_check, main
from tests.support.oracle_embedding import brute_force_embedding

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
    graph = Graph.from_edges([1, 2, 3, 0, 0], [0, 1, 2, 3, 4], num_nodes=6, undirected=True)
    expected = brute_force_embedding(
        graph, files["x"], files, jax.random.key(4), num_children=3, num_leaves=3
    )
    np.testing.assert_allclose(np.load("out.npy"), expected, atol=1e-5)


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
        (["data.bin"], "data.bin: expected a Matrix Market file"),
        (["graph.mtx", "--batch-size", "0"], "--batch-size: expected integers from 1"),
        (["graph.mtx", "--num-children-per-source", "10,x"], "--num-children-per-source: expected"),
        (["graph.mtx", "--num-leafs-per-child", "0"], "--num-leafs-per-child: expected a positive"),
        (["graph.mtx", "--num-runs", "0"], "--num-runs: expected an integer from 1"),
        (["graph.mtx", "--Wf1-dim1", "-3"], "--Wf1-dim1: expected an integer from 1"),
        (["graph.mtx", "--bogus", "3"], "--bogus"),
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
    assert main(["embed", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    assert message in captured.err


def test_help(capsys):
    assert main(["embed", "--help"]) == 0
    assert "--num-leafs-per-child" in capsys.readouterr().out
