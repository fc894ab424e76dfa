"""Sharded graphs on eight simulated devices: the checks of `eight_devices`, in a child process."""

import jax
import pytest

from tests.support.paths import ROOT
from tests.support.processes import run_python

if jax.default_backend() != "cpu":
    pytest.skip("simulated devices are the CPU's", allow_module_level=True)


def test_layouts_agree_with_one_device():
    done = run_python("-m", "tests.distributed.eight_devices", directory=ROOT)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.system
def test_all_shapes_and_models():
    done = run_python("-m", "tests.distributed.eight_devices", "--all", directory=ROOT)
    assert done.stdout.endswith("all hold\n")
