"""The example about TC-GNN, small."""

import numpy as np
import pytest

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
    assert small.aggregation_seconds > 0
    share = small.translation_share("gcn", 200)
    steps = 200 * small.step_seconds["gcn"]
    assert share == pytest.approx(100 * small.translate_seconds / (small.translate_seconds + steps))
    text = capsys.readouterr().out
    assert f"{small.blocks_before:,}" in text and f"{small.fewer_blocks:.1f}" in text
    assert "24 to 63 in the paper's logs" in text and "0.00011 %" in text and "4.43 %" in text
    # A file of TC-GNN's; no steps.
    np.savez(tmp_path / "cora.npz", src_li=[0, 0, 0, 0], dst_li=[0, 9, 17, 25], num_nodes=40)
    results = example["main"](["cora", "--data", str(tmp_path), "--models"])
    cora = results["cora"]
    assert (cora.blocks_before, cora.blocks, cora.step_seconds) == (4, 1, {})  # rows are src_li
    assert "Training steps" not in capsys.readouterr().out
    for arguments, message in (
        (["reddit"], "sets: expected some of"),
        (["pubmed", "--data", str(tmp_path)], "pubmed.npz"),
        (["--steps", "0"], "--steps: expected at least 1, got 0"),
    ):
        with pytest.raises(SystemExit, match=message):
            example["main"](arguments)
