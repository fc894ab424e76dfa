"""Runs over two processes with a GPU each, which talk by NCCL."""

import jax
import pytest

from tests.support.two_runs import kill_one_of_two

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        jax.default_backend() != "gpu" or jax.local_device_count() < 2, reason="needs two GPUs"
    ),
]
# The memory of the GPUs is the process's that runs the tests.
OWN = [
    {
        "CUDA_VISIBLE_DEVICES": process,
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    for process in "01"
]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_other(tmp_path, killed):
    kill_one_of_two(tmp_path, killed, OWN, others=True)  # NCCL's warnings
