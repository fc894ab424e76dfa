"""The example that classifies graphs by folds."""

import re
import runpy
import sys

import pytest

from tests.support.paths import ROOT


@pytest.mark.system
def test_it_learns(monkeypatch, capsys, data_directory):
    """Better than the larger class (59.6 %) after a few epochs."""
    script = str(ROOT / "examples" / "graph_classification.py")
    options = [str(data_directory / "proteins_full"), "--folds", "2", "--epochs", "8"]
    monkeypatch.setattr(sys, "argv", [script, *options])
    runpy.run_path(script, run_name="__main__")
    mean = re.search(r"mean │\s+([\d.]+) ± [\d.]+", capsys.readouterr().out)
    assert mean is not None and float(mean[1]) > 63
