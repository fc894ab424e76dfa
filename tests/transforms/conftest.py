"""What the tests of the transformations share."""

import pytest

from tests.support.strategies import skewed_graph


@pytest.fixture(scope="module")
def graph(request):
    """A graph of the module's size."""
    return skewed_graph(request.module.NODES, request.module.EDGES)
