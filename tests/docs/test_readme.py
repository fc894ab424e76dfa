"""The README's snippet runs as it stands."""

import re

import jax.numpy as jnp

from tests.support.paths import ROOT


def test_the_snippet_runs():
    text = (ROOT / "README.md").read_text()
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    assert names["logits"].shape == (4, 2)
    assert bool(jnp.isfinite(names["logits"]).all()) and names["dx"].shape == (4, 3)
