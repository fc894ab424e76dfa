"""The tutorials run as they stand, in a directory of their own."""

import re

import pytest

from tests.support.paths import ROOT


@pytest.mark.system
def test_own_table(tmp_path, monkeypatch):
    pytest.importorskip("flatbuffers")
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "tutorials" / "own-table.md"
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        exec(compile(block, page.name, "exec"), names)
    assert names["right"] > 0.8
