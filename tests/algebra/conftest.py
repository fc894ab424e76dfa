"""What the tests of the algebra share."""

import numpy as np
import pytest

from jaxgnn import Graph
from tests.support.message_operands import NUM_EDGES, RECEIVERS, SENDERS


@pytest.fixture(scope="module")
def graph():
    """Rectangular, with repeated edges and a receiver without."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(SENDERS, size=NUM_EDGES), rng.integers(6, size=NUM_EDGES)
    return Graph.from_edges(senders, receivers, num_senders=SENDERS, num_receivers=RECEIVERS)
