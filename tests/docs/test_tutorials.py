"""The tutorials run as they stand, in a directory of their own."""

import glob
import re
import shlex
import shutil
from typing import Any

import numpy as np
import pytest

from jaxgnn_cli import main
from tests.support.paths import ROOT


def run(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    text = (ROOT / "docs" / "tutorials" / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, page, "exec"), names)
    return names


def commands(page: str) -> list[list[str]]:
    """The arguments of the page's commands, patterns of files as a shell expands them."""
    text = (ROOT / "docs" / "tutorials" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix("jaxgnn ")) for line in lines]


@pytest.mark.system
def test_own_table(tmp_path, monkeypatch):
    pytest.importorskip("flatbuffers")
    monkeypatch.chdir(tmp_path)
    assert run("own-table.md")["right"] > 0.8


@pytest.mark.system
def test_graph_classification(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert min(run("graph-classification.md")["accuracies"]) > 0.8
    for fold in glob.glob("fold*"):  # the commands read what they wrote themselves
        shutil.rmtree(fold)
    for words in commands("graph-classification.md"):
        assert main([path for word in words for path in sorted(glob.glob(word)) or [word]]) == 0


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
