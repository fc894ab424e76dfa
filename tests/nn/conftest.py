"""What all tests of the modules share."""

import sys

import pytest


@pytest.fixture(autouse=True)
def same_references():
    """PyTorch's modules start from the same parameters in every run."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
