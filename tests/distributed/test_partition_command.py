"""`jaxgnn partition`, in this process."""

import numpy as np
import pytest

from jaxgnn._core.ffi import cpu_module
from jaxgnn.data import load
from jaxgnn.distributed import Partition
from jaxgnn_cli.status import run_command

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
