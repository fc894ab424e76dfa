"""The tutorials run as they stand, in a directory of their own."""

import re
from typing import Any

import numpy as np
import pytest

from tests.support.paths import ROOT


def run(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    text = (ROOT / "docs" / "tutorials" / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.system
def test_own_table(tmp_path, monkeypatch):
    pytest.importorskip("flatbuffers")
    monkeypatch.chdir(tmp_path)
    assert run("own-table.md")["right"] > 0.8


@pytest.mark.system
def test_graph_classification(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert min(run("graph-classification.md")["accuracies"]) > 0.8


@pytest.mark.system
def test_point_cloud():
    assert run("point-cloud.md")["accuracy"] > 0.9


@pytest.mark.system
def test_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("links.md")
    assert names["roc_auc"] > 0.75
    assert all(int(name.removeprefix("person-")) % 4 == 0 for name in names["best"])


@pytest.mark.system
def test_nodes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("nodes.md")
    assert names["accuracy"] > 0.85 and names["summary"]["test_score"] > 0.8
    graph, x = names["digits"].graph, names["features"]
    np.testing.assert_allclose(names["loaded"](graph, x), names["logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.system
def test_export(tmp_path, monkeypatch):
    pytest.importorskip("flatbuffers")
    monkeypatch.chdir(tmp_path)
    run("export.md")
