"""The snippet of docs/links.md, with its assertion."""

import re

from tests.support.paths import ROOT


def test_the_page_runs():
    text = (ROOT / "docs" / "links.md").read_text(encoding="utf-8")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
