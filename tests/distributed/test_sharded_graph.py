"""Sharded graphs on eight simulated devices: the checks of `eight_devices`, in a child process."""

import os
import re

import jax
import pytest

from tests.support.paths import ROOT
from tests.support.processes import PACKAGES, run_python

if jax.default_backend() != "cpu":
    pytest.skip("simulated devices are the CPU's", allow_module_level=True)

EIGHT_DEVICES = ("-m", "tests.distributed.eight_devices")
PATH = os.pathsep.join((PACKAGES, str(ROOT)))  # the installed jaxgnn first


def test_layouts_agree_with_one_device():
    done = run_python(*EIGHT_DEVICES, directory=ROOT, PYTHONPATH=PATH)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.system
def test_all_shapes_and_models():
    done = run_python(*EIGHT_DEVICES, "--all", directory=ROOT, PYTHONPATH=PATH)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.system
def test_models_on_one_to_three_devices():
    done = run_python(*EIGHT_DEVICES, "--few", directory=ROOT, PYTHONPATH=PATH)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.system
def test_the_example_trains_alike_in_all_layouts():
    losses = []
    for layout in ("one", "rows", "features"):
        options = (
            f"--shape arxiv --scale 0.02 --features 16 --steps 2 --devices 3 --layout {layout}"
        )
        done = run_python(
            "examples/train_sharded.py", *options.split(), directory=ROOT, XLA_FLAGS=""
        )
        assert done.stdout.endswith("1 compiled\n")
        found = re.search(r"loss (\d+\.\d{6}) to (\d+\.\d{6})", done.stdout)
        assert found is not None
        losses.append([float(text) for text in found.groups()])
    assert losses[0][0] > losses[0][1]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)
