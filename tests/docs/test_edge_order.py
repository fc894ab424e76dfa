"""What takes arrays over edges says in which order: pages in a box, docstrings in words."""

import inspect
import re

import pytest

import jaxgnn
from jaxgnn import Graph, algebra, batch, nn, transform
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Arguments over edges, in code and in the names of parameters.
EDGE_DATA = {"weights", "edge_attr", "edge_weight", "edge_features", "edge_values", "pseudo"}
PARAMETERS = {
    "weights",
    "edge_attr",
    "edge_bias",
    "edge",
    "pseudo",
    "logits",
    "e",
    "data",
    "values",
}
OF_NODES = ("union_node_data", "union_sender_data", "union_graph_data", "annealed_k")


def takes_edge_data(page) -> bool:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
    return bool(EDGE_DATA & set(re.findall(r"\w+", code)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_warn(page):
    boxes = re.findall(r"^> \[!WARNING\]\n((?:> .*\n)+)", page.read_text(), re.M)
    if takes_edge_data(page):
        assert any("graph's edge order" in box for box in boxes)


def test_the_pages_that_warn():
    found = {page.name for page in PAGES if takes_edge_data(page)}
    assert found >= {"algebra.md", "graph.md", "modules.md", "sharding.md"}


def callables():
    for module in (jaxgnn, algebra, transform, batch):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and name not in OF_NODES and function.__doc__:
                yield f"{module.__name__}.{name}", function
    for name, module in inspect.getmembers(nn, inspect.isclass):
        if "__call__" in dir(module):
            yield f"nn.{name}", module.__call__
    for name, method in inspect.getmembers(Graph, inspect.isroutine):
        if not name.startswith("_"):
            yield f"Graph.{name}", method


CALLABLES = dict(callables())


@pytest.mark.parametrize("name", CALLABLES)
def test_docstrings_say_the_order(name):
    function = CALLABLES[name]
    parameters = inspect.signature(function).parameters
    if name.endswith("device_array") or not PARAMETERS & set(parameters):
        return
    text = inspect.getdoc(function) or ""
    assert "sort_edge_data" in text or "there are none" in text or "edge_data" in name
