"""The example about TC-GNN, small."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from jaxgnn.nn import AGNNConv
from tests.support.paths import load_example


def test_the_tables_of_tc_gnn(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    example = load_example("tcgnn_paper")
    results = example["main"](["--quick", "--models", "gcn"])
    assert list(results) == ["cora", "ovcar_8h"]
    small = results["ovcar_8h"]
    assert (small.kind, small.nodes, small.edges) == ("II", 18_909, 39_464)
    assert small.dense_bytes == 4 * 18_909**2
    assert small.density == pytest.approx(39_464 / 18_909**2)
    assert 0 < small.blocks < small.blocks_before
    assert 0 < small.square <= small.square_before < small.blocks_before
    assert small.product_seconds > 0 and small.aggregation_seconds["gcn"] > 0
    assert [r.comparable for r in results.values()] == [True, False]
    share = small.translation_share("gcn", 200)
    steps = 200 * small.step_seconds["gcn"]
    assert share == pytest.approx(100 * small.translate_seconds / (small.translate_seconds + steps))
    text = capsys.readouterr().out
    assert f"{small.blocks_before:,}" in text and f"{small.fewer_blocks:.1f}" in text
    assert f"{small.square_before:,}" in text and "ovcar_8h*" in text and "Type II:" not in text
    assert "72 to 86 in the paper's logs" in text and "0.00011 %" in text and "4.43 %" in text
    assert "87 to 94 %" in text and "Products of type III" not in text
    # A file of TC-GNN's; no steps.
    np.savez(tmp_path / "cora.npz", src_li=[0, 0, 0, 0], dst_li=[0, 9, 17, 25], num_nodes=40)
    results = example["main"](["cora", "--data", str(tmp_path), "--models"])
    cora = results["cora"]
    assert (cora.blocks_before, cora.blocks, cora.step_seconds) == (4, 1, {})  # rows are src_li
    assert (cora.square_before, cora.square, cora.comparable) == (2, 1, True)
    assert "Training steps" not in capsys.readouterr().out
    for arguments, message in (
        (["reddit"], "sets: expected some of"),
        (["pubmed", "--data", str(tmp_path)], "pubmed.npz"),
        (["--steps", "0"], "--steps: expected at least 1, got 0"),
    ):
        with pytest.raises(SystemExit, match=message):
            example["main"](arguments)


def test_both_models_beside_plain_jax(capsys):
    example = load_example("tcgnn_paper")
    options = example["Options"](("artist",), scale=0.002, steps=1, models=(), baseline=True)
    bare = example["measure"]("artist", options)
    result = dataclasses.replace(
        bare,
        step_seconds={"gcn": 0.010, "agnn": 0.020},
        baseline_seconds={"gcn": 0.015, "agnn": 0.050},
        aggregation_seconds={"gcn": 0.009, "agnn": 0.011},
        product_seconds=0.004,
        translate_seconds=0.1,
        tiles_seconds=None,
    )
    options = dataclasses.replace(options, models=("gcn", "agnn"))
    example["show"](Console(width=220), {"artist": result}, options)
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if "artist" in line and "1.50" in line)
    cells = [cell.strip() for cell in row.strip("│ ").split("│")]
    assert cells == ["artist", "4", "10", "1.50", "4.76", "90", "20", "2.50", "2.44", "55"]
    assert "3.1 to 4.1 ms in the paper" in text
    assert "agnn, type III: on average 2.50 times plain JAX here" in text
    assert "TC-GNN is 1.51 times DGL of" in text and "TC-GNN is 1.7 times DGL over both" in text
    # What is timed of the AGNN are its layers.
    graph, x = example["graph_of"]("artist", options), jnp.ones((101, 32)).at[::2, 1:].set(0)
    layer = AGNNConv()
    expected = x
    for _ in range(4):
        expected = layer(graph, expected)
    np.testing.assert_allclose(example["attend"](graph, x), expected, rtol=1e-5)
