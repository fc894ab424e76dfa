"""The pages' code uses public names alone."""

import re

import pytest

from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A module or a name below jaxgnn that begins with an underscore.
PRIVATE = re.compile(r"\bjaxgnn[\w.]*\._\w+|\bfrom jaxgnn[\w.]* import [^;\n]*\b_\w+")


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```(?:python|pycon)\n(.*?)^```", text, re.M | re.S)


def test_the_pattern_finds_private_names():
    for line in ("jaxgnn.ops._core.rows", "from jaxgnn import _cpu", "import jaxgnn._core"):
        assert PRIVATE.search(line)
    assert not PRIVATE.search("from jaxgnn.nn import GCNConv; jaxgnn.config.use(x=1)._y")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_public_names(page):
    found = [PRIVATE.findall(block) for block in code_blocks(page.read_text(encoding="utf-8"))]
    assert not [name for names in found for name in names]


def test_pages_have_code():
    assert sum(len(code_blocks(page.read_text(encoding="utf-8"))) for page in PAGES) > 10
