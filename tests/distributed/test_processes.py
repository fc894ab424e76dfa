"""A graph over two processes of two devices each, which talk by Gloo."""

import os
import socket

import jax
import pytest

from tests.support.paths import ROOT
from tests.support.processes import PACKAGES, start_python

if jax.default_backend() != "cpu":
    pytest.skip("simulated devices are the CPU's", allow_module_level=True)

PATH = os.pathsep.join((PACKAGES, str(ROOT)))  # the installed jaxgnn first


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def run_two(module, *options):
    """The outputs of two processes."""
    port = free_port()
    environment = {"PYTHONPATH": PATH, "XLA_FLAGS": ""}
    processes = [
        start_python("-m", module, port, process, *options, directory=ROOT, **environment)
        for process in "01"
    ]
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, output + errors
        yield output


@pytest.mark.parametrize("options", [(), pytest.param(("--all",), marks=pytest.mark.system)])
def test_two_processes_agree_with_one(options):
    for output in run_two("tests.distributed.two_processes", *options):
        assert output.endswith("all hold\n")
