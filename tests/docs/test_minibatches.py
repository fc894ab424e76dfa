"""The page on mini-batches runs as it stands."""

import re

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from tests.support.paths import ROOT


@pytest.mark.system
def test_the_page_runs():
    text = (ROOT / "docs" / "minibatches.md").read_text(encoding="utf-8")
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(block, names)
    assert names["losses"].shape == (40,) and np.isfinite(names["losses"]).all()
    assert names["out"].shape == names["rows"].shape == (3, 3)
    # The loss of all devices is that of one which has the same sample.
    blocks = names["jaxgnn"].sample_neighbors(
        names["graph"], names["seeds_of_all"], [10, 5], jax.random.key(0)
    )
    logits = nnx.merge(names["graphdef"], names["state"][0])(blocks, blocks.take(names["features"]))
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, names["labels"][names["seeds_of_all"]]
    )
    np.testing.assert_allclose(names["value"], losses.mean(), rtol=1e-5)
    # The strategy of the page takes the latest edges of the seeds.
    recent, times = names["recent"], np.asarray(names["times"])
    receivers, edges = np.asarray(names["graph"].receivers), np.asarray(recent.edges)
    for place, node in enumerate([3, 7]):
        own = np.flatnonzero(receivers == node)
        taken = edges[np.asarray(recent.graphs[0].receivers) == place]
        assert set(taken) == set(own[np.argsort(-times[own])][:10])
    assert len(next(iter(names["by_time"])).seeds) == 64
