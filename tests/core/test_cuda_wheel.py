"""The CUDA module of the wheel beside the package, and the versions that they must share."""

import sys
import tomllib
import types

import pytest

import jaxgnn
from jaxgnn._core import ffi
from tests.support.paths import ROOT


@pytest.fixture
def plugin(monkeypatch):
    """An installation without a CUDA module of its own, and with the wheel."""
    monkeypatch.setitem(sys.modules, "jaxgnn._cuda", None)
    package = types.ModuleType("jaxgnn_cuda13")
    module = types.ModuleType("jaxgnn_cuda13._cuda")
    package.__version__ = jaxgnn.__version__
    monkeypatch.setitem(sys.modules, "jaxgnn_cuda13", package)
    monkeypatch.setitem(sys.modules, "jaxgnn_cuda13._cuda", module)
    return package


def test_the_module_of_the_wheel_is_found(plugin):
    assert ffi._import("cuda") is sys.modules["jaxgnn_cuda13._cuda"]


def test_another_version_is_refused(plugin):
    plugin.__version__ = "0.0.9"
    message = f"jaxgnn-cuda13: expected version {jaxgnn.__version__}, as jaxgnn, got 0.0.9"
    with (
        pytest.warns(RuntimeWarning, match=message),
        pytest.raises(ImportError, match=f"{message}: pip install jaxgnn-cuda13=="),
    ):
        ffi._import("cuda")


def test_both_are_missing(plugin, monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxgnn_cuda13", None)
    with pytest.raises(ImportError, match=r"No module named 'jaxgnn\._cuda' or 'jaxgnn_cuda13'"):
        ffi._import("cuda")


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == jaxgnn.__version__
    extra = project["optional-dependencies"]["cuda13"]
    assert f"jaxgnn-cuda13=={jaxgnn.__version__}" in extra
