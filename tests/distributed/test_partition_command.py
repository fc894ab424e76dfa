"""`jaxgnn partition`, in this process."""

import jax
import numpy as np
import pytest

from jaxgnn._core.ffi import cpu_module
from jaxgnn.data import PlainGraph, load
from jaxgnn.distributed import Partition
from jaxgnn_cli.status import run_command
from tests.support.small_sets import weighted_tables

pytestmark = pytest.mark.skipif(cpu_module is None, reason="jaxgnn._cpu is not built")


def test_command(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert run_command(["partition", "digits", out, "--parts", "3"]) == 0
    assert "3 parts by stream" in capsys.readouterr().out
    dataset, part = load("digits"), Partition.load_part(out, 2)
    np.testing.assert_array_equal(part.arrays["features"], np.asarray(dataset.features)[part.nodes])
    np.testing.assert_array_equal(part.arrays["labels"], np.asarray(dataset.labels)[part.nodes])
    (tmp_path / "file").touch()
    other, file = str(tmp_path / "other"), str(tmp_path / "file")
    for arguments, message in (
        ([out], "OUT: expected an empty directory"),
        ([file], "file: File exists"),
        ([f"{file}/out"], "Not a directory"),
        ([other, "--parts", "0"], "parts: expected an integer from 1 to"),
        ([other, "--passes", "99999999999999999999"], "passes: expected an integer from 1 to"),
    ):
        assert run_command(["partition", "digits", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_reverse_edges(tmp_path, capsys):
    """Parts of a graph with them; a run does not add them to parts."""
    (tmp_path / "nodes.csv").write_text("id,label,split\na,x,train\nb,y,val\nc,x,test\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\n")
    out = str(tmp_path / "out")
    assert run_command(["partition", str(tmp_path), out, "--parts", "2", "--undirected"]) == 0
    assert load(out).graph.num_edges == 4 and load(tmp_path).graph.num_edges == 2
    capsys.readouterr()
    assert run_command(["train", out, "--undirected", "--epochs", "1"]) == 2
    assert "--undirected: expected a dataset that is not in parts" in capsys.readouterr().err


@pytest.mark.parametrize("labels", [True, False])
def test_weights_of_edges_come_back(tmp_path, capsys, labels):
    """Repeated edges, whose weights are summed with the reverse ones, and self-loops, too."""
    weighted_tables(tmp_path, 9, labels=labels)
    whole, out = load(tmp_path), str(tmp_path / "out")
    split = ["--parts", "3", "--method", "block"]
    assert run_command(["partition", str(tmp_path), out, *split]) == 0
    back = load(out)
    assert isinstance(back, PlainGraph) is not labels
    np.testing.assert_array_equal(back.graph.senders, whole.graph.senders)
    assert whole.weights is not None and back.weights.dtype == np.float32
    np.testing.assert_array_equal(back.weights, whole.weights)
    assert back.feature_names == whole.feature_names == ("x",)
    both = str(tmp_path / "both")
    assert run_command(["partition", str(tmp_path), both, *split, "--undirected"]) == 0
    np.testing.assert_array_equal(load(both).weights, load(tmp_path, undirected=True).weights)
    if labels:
        capsys.readouterr()
        train = ["train", out, "--edge-weights", "--epochs", "1"]
        assert run_command([*train, "--run-directory", str(tmp_path / "run")]) == 0
        assert "; weights of the edges are used" in capsys.readouterr().out


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("devices", ["1", "2"])
def test_errors_of_parts_without_weights(tmp_path, capsys, devices):
    out = str(tmp_path / "out")
    assert run_command(["partition", "digits", out, "--parts", "2"]) == 0
    assert run_command(["train", out, "--edge-weights", "--devices", devices]) == 2
    error = capsys.readouterr().err
    assert f"{out}: expected weights of the edges for --edge-weights, got none: jaxgnn p" in error
