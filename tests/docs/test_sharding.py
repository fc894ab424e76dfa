"""The page on sharded features: its snippet, and the collectives that it promises."""

import re
from typing import Any

import jax
import numpy as np
import pytest

from jaxgnn import spmm
from tests.support.paths import ROOT

COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    page = (ROOT / "docs" / "sharding.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(snippet, "docs/sharding.md", "exec"), found)
    return found


def collectives(function: Any, *arguments: Any) -> dict[str, int]:
    text = jax.jit(function).lower(*arguments).compile().as_text()
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in counts.items() if count}


def test_the_snippet_s_results(names):
    graph, x, weights = (jax.device_get(names[name]) for name in ("graph", "x", "weights"))
    np.testing.assert_allclose(names["y"], spmm(graph, x, weights), rtol=1e-6)
    dx, dweights = jax.grad(lambda x, w: (spmm(graph, x, w) ** 2).sum(), (0, 1))(x, weights)
    np.testing.assert_allclose(names["dx"], dx, rtol=1e-6)
    np.testing.assert_allclose(names["dweights"], dweights, rtol=1e-6)


def test_the_collectives(names):
    arguments = [names[name] for name in ("graph", "x", "weights")]
    assert collectives(names["aggregate"], *arguments) == {}
    assert collectives(jax.grad(names["loss"], 1), *arguments) == {}
    assert collectives(jax.grad(names["loss"], (1, 2)), *arguments) == {"all-reduce": 1}


def test_plain_jit_gathers(names):
    """What the recipe is for: this fails when XLA learns to split the call."""
    arguments = [names[name] for name in ("graph", "x", "weights")]
    assert collectives(spmm, *arguments) == {"all-gather": 1}
