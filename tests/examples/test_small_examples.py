"""The examples that are a page long, in a few epochs each."""

import re
import runpy
import sys

import numpy as np
import pytest

from jaxgnn.train import TrainConfig, run
from tests.support.paths import ROOT, load_example
from tests.support.small_sets import small

pytestmark = pytest.mark.system


@pytest.fixture
def example(monkeypatch, capsys, tmp_path):
    """Runs an example as a script, and returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(name, *arguments):
        script = str(ROOT / "examples" / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("name", ["train_digits", "linen"])
def test_loops_on_digits(name):
    """Far better than one of ten classes after ten epochs."""
    assert load_example(name)["main"](10) > 0.5


def test_seeds(example):
    small("small.npz")
    out = example("seeds", "small.npz", "--own-splits", "--num-seeds", "2", "--epochs", "8")
    mean = re.search(r"mean │\s+│\s+([\d.]+) ± [\d.]+ %", out)
    assert mean is not None and float(mean[1]) > 35


def test_link_prediction(example, tmp_path):
    ends = np.random.default_rng(0).integers(60, size=(300, 2))
    np.savetxt(tmp_path / "edges.txt", np.stack([ends[:, 0], ends[:, 0] // 10 * 10], 1), "%d")
    out = example("link_prediction", "edges.txt", "--num-seeds", "2", "--epochs", "20")
    mean = re.search(r"mean, % │\s+│\s+([\d.]+) ± ", out)
    assert mean is not None and float(mean[1]) > 60


def test_exported_model(example):
    pytest.importorskip("flatbuffers")
    small("small.npz")
    run(TrainConfig("small.npz", hidden=4, epochs=1, run_directory="run"))
    for options in ([], ["--portable"]):
        out = example("exported_model", "run", "--calls", "3", *options)
        difference = re.search(r"largest difference of a logit: (\S+)", out)
        assert difference is not None and float(difference[1]) < 1e-5
        assert "ratio exported / run: " in out


def test_exported_model_with_edge_weights(example, tmp_path):
    pytest.importorskip("flatbuffers")
    rng = np.random.default_rng(0)
    nodes = [f"{i},{'xy'[i % 2]},{i % 2}" for i in range(30)]
    edges = [f"{i},{j},{1 + i % 3}" for i, j in rng.integers(30, size=(90, 2))]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "nodes.csv").write_text("\n".join(["id,label,a", *nodes]))
    (tmp_path / "set" / "edges.csv").write_text("\n".join(["source,target,weight", *edges]))
    run(TrainConfig("set", hidden=4, epochs=1, edge_weights=True, run_directory="run"))
    out = example("exported_model", "run", "--calls", "3")
    difference = re.search(r"largest difference of a logit: (\S+)", out)
    assert difference is not None and float(difference[1]) < 1e-5


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("exported_model nowhere", "nowhere is no run directory"),
        ("exported_model nowhere --calls 0", "--calls: expected at least 1, got 0"),
        ("seeds digits --num-seeds 0", "--num-seeds: expected at least 1, got 0"),
        ("link_prediction digits --num-seeds 0", "--num-seeds: expected at least 1, got 0"),
        ("graph_classification nowhere", "nowhere: no such file"),
        ("graph_classification nowhere --folds 0", "--folds: expected at least 1, got 0"),
        ("graph_classification nowhere --batch-size 0", "--batch-size: expected at least 1, got 0"),
        ("edgeconv_pointclouds --shapes 19", "--shapes: expected at least 20, got 19"),
        ("edgeconv_pointclouds --batch-size 0", "--batch-size: expected at least 1, got 0"),
        ("edgeconv_pointclouds --data nowhere", "--data: expected a directory with points.npz"),
        ("maxk_approximation --steps 0", "--steps: expected at least 1, got 0"),
        ("maxk_approximation --points 1", "--points: expected at least 2, got 1"),
        ("maxk_approximation --hidden 4 0", "--hidden: expected numbers of at least 1"),
        ("maxk_approximation --plot /dev/null/fit.png", "--plot: "),
        ("maxk_accuracy --datasets digits --seeds 0", "--seeds: expected at least 1, got 0"),
        ("maxk_accuracy --output /dev/null/out", "/dev/null/out"),
        ("sampling_accuracy --seeds 0", "--seeds: expected at least 1, got 0"),
        ("sampling_accuracy --tables nowhere.json", "nowhere.json"),
        ("sampling_accuracy --tables /dev/null", "/dev/null: expected a file of this script"),
        ("train_sharded --devices 0", "--devices: expected at least 1, got 0"),
        ("train_sharded --steps 0", "--steps: expected at least 1, got 0"),
        ("train_sharded --layout both --devices 3", "--devices: expected an even number"),
        ("train_sharded --features 0", "--features: expected at least 1, got 0"),
        ("train_sharded --classes 0", "--classes: expected at least 1, got 0"),
        ("train_sharded --layers -1", "--layers: expected at least 1, got -1"),
        ("train_sharded --model GAT --features 20", "--features: expected a multiple of the 8"),
        ("train_sharded --layout rows --k 300", "--k: expected 1 to --features, 256, got 300"),
        ("train_sharded --k 8", "--layout: expected rows, auto or one with --k, got features"),
        ("train_sharded --partition block", "--partition: expected none with --layout features"),
        ("train_sharded --layout rows --partition windows", "--partition: expected --k with"),
        ("train_sharded --layout one --exchange-dtype bfloat16", "--exchange-dtype: expected none"),
        ("train_sharded --shape lattice", "--shape: expected one of reddit, "),
        ("train_sharded --scale 0", "--scale: expected more than 0, at most 10, got 0"),
    ],
)
def test_bad_options_are_one_line(example, command, expected):
    with pytest.raises(SystemExit) as raised:
        example(*command.split())
    assert expected in str(raised.value) and "\n" not in str(raised.value)
