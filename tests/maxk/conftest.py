"""What the tests of products over windows share."""

import pytest

from jaxgnn import Graph, config
from tests.support.window_products import hubs


@pytest.fixture
def windows_engine():
    """Windows wherever they are, also where another engine is estimated to be faster on a GPU."""
    with config.use(maxk_engine="windows"):
        yield


@pytest.fixture(scope="session")
def hub_graph() -> Graph:
    return hubs()
