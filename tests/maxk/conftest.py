import pytest

from jaxgnn import config


@pytest.fixture(autouse=True)
def no_choice():
    """A GPU runs the kernels by rows, or over the windows that a graph has, also on the small
    graphs of these tests, where `spmm` of the dense rows is often faster."""
    with config.use(maxk_engine="windows"):
        yield
