"""The pages for beginners run as they stand, and name what exists."""

import inspect
import re
from typing import Any

import numpy as np
import pytest

import jaxgnn
from jaxgnn import nn, train
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
# Names of ours in a table's second column: `nn`, `batch.pad`, `Graph.from_edges(...)`.
NAME = re.compile(r"`((?:\w+\.)*\w+)[(`]")
PUBLIC = {name: getattr(package, name) for package in (train, jaxgnn) for name in package.__all__}
OURS = PUBLIC | vars(nn)


def run(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    text = (DOCS / "start" / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, page, "exec"), names)
    return names


def test_five_minutes():
    names = run("quickstart.md")
    assert names["losses"][-1] < 0.5 * names["losses"][0]
    assert names["accuracy"] > 0.85
    np.testing.assert_allclose(names["probabilities"].sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("page", ["coming-from.md", "pitfalls.md", "numerics.md", "faq.md"])
def test_the_page_runs(page):
    assert "graph" in run(page)


def test_two_node_types():
    assert run("two-node-types.md")["accuracy"] > 0.9


def test_names_of_the_tables_exist():
    page = (DOCS / "start" / "coming-from.md").read_text(encoding="utf-8").split("## Linen")[0]
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    names = {name for row in rows for name in NAME.findall(row[1])}
    missing = []
    # Arguments of layers and models, and what the page calls data.
    modules = (value for value in vars(nn).values() if isinstance(value, type))
    options = {name for kind in modules for name in inspect.signature(kind.__init__).parameters}
    others = {"membership", "none", "losses.mean", "nnx.List", "jnp.asarray"}
    for name in names - options - others:
        value: Any = None
        for i, part in enumerate(name.removeprefix("jaxgnn.").split(".")):
            value = getattr(value, part, None) if i else OURS.get(part)
        attributes = ("num_senders", "num_receivers", "node_mask", "edge_mask", "graph_mask")
        if value is None and name not in attributes:
            missing.append(name)
    assert len(names) > 25 and missing == []


def test_figures_of_published_systems_are_those_of_their_sources():
    """No figure of these pages is older than the page that it is from."""
    sources = [DOCS / "performance.md", *sorted((DOCS / "kernels").glob("*.md"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    known = set(re.findall(r"\d[\d,]*(?:\.\d+)?", text))
    for page in sorted((DOCS / "systems").glob("*.md")):
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("| "):
                found = set(re.findall(r"\d[\d,]*(?:\.\d+)?", line.split(" | ", 1)[1]))
                assert found <= known, f"{page.name}: {sorted(found - known)} are on no source page"
