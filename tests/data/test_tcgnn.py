"""The reader of TC-GNN's files, and what `jaxgnn info` says of tiles."""

import re

import numpy as np
import pytest

from jaxgnn import Graph, data
from jaxgnn.data import DataError


def test_tcgnn(tmp_path):
    """The edges as listed, each once; anything else is refused."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 50, (2, 400))
    arrays = dict(src_li=ends[0], dst_li=ends[1].astype(np.int32), num_nodes=60)

    def written(**changes):
        path = tmp_path / "set.npz"
        np.savez(path, **{k: v for k, v in {**arrays, **changes}.items() if v is not None})
        return path

    read = data.read_tcgnn(written())
    graph = Graph.from_edges(*ends, num_nodes=60, deduplicate=True)
    np.testing.assert_array_equal(read.graph.row_offsets, graph.row_offsets)
    np.testing.assert_array_equal(read.graph.senders, graph.senders)
    assert data.load(written()).graph.num_edges == graph.num_edges and read.name == "set"
    empty = np.zeros(0, np.int64)
    assert data.read_tcgnn(written(src_li=empty, dst_li=empty, num_nodes=[0])).num_nodes == 0
    for changes, message in (
        (dict(src_li=None), r"set\.npz: no array 'src_li'"),
        (dict(src_li=ends[0] - 1), "src_li: expected 0 to 59, got -1"),
        (dict(dst_li=ends[1, 1:]), "src_li, dst_li: expected one length, got 400 and 399"),
        (dict(dst_li=ends[1] * 1.0), "dst_li: expected integers"),
        (dict(num_nodes=49), "src_li: expected 0 to 48, got"),
        (dict(num_nodes=1 << 31), "num_nodes: expected an integer from 0 to 2"),
        (dict(num_nodes=60.0), "num_nodes: expected an integer, got float64"),
        (dict(num_nodes=[60, 60]), "num_nodes: expected an integer, got"),
        (dict(num_nodes=(1 << 31) - 1), "more than the limit"),
    ):
        with pytest.raises(DataError, match=message):
            data.read_tcgnn(written(**changes))


def test_info_says_what_tiles_would_share(tmp_path, capsys, monkeypatch):
    from jaxgnn_cli import main

    monkeypatch.setenv("COLUMNS", "200")
    ends = np.divmod(np.arange(320), 20)
    np.savez(tmp_path / "set.npz", src_li=ends[0], dst_li=ends[1] + 20, num_nodes=100)
    assert main(["info", str(tmp_path / "set.npz")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "nodes │ 100 " in text
    assert "edges a column of 64 rows │ 20.00 (numbered) │" in text
    assert "edges in tiles, 4 a column or more │ 100% in 16 columns │" in text
    # 320 edges are not worth a launch, 160,000 are.
    row = re.escape("aggregating 256 float32, H200 (estimate) │ rows ")
    assert re.search(row + r"0\.\d+ µs, tiles 4\.\d+ µs: rows │", text)
    ends = np.divmod(np.arange(160_000), 400)
    np.savez(tmp_path / "large.npz", src_li=ends[0], dst_li=ends[1] + 400, num_nodes=800)
    assert main(["info", str(tmp_path / "large.npz")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(row + r"1\d\.\d µs, tiles .*µs: tiles; with_tiles, .* paid after [1-9]", text)
