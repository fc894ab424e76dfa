"""Settings that all tests share."""

import gc
import os
import sys
from pathlib import Path

# On the CPU, unless a GPU was asked for: two devices for shard_map, and half the time to compile.
# JAX reads this when it starts.
if os.environ.get("JAX_PLATFORMS", "cpu") in ("", "cpu"):
    flags = os.environ.get("XLA_FLAGS", "").split()
    for flag in (
        "--xla_force_host_platform_device_count=2",
        "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
        "--xla_cpu_parallel_codegen_split_count=1",
    ):
        if not any(given.startswith(flag.split("=")[0]) for given in flags):
            flags.append(flag)
    os.environ["XLA_FLAGS"] = " ".join(flags)

# Threads of PyTorch and of OpenBLAS would spin for each other, beside those of XLA.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Last, so that the installed jaxgnn is tested: the package `benchmarks` is not installed.
sys.path.append(str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("PYTHONSAFEPATH", "1")  # the same in the processes that tests start

import jax
import pytest
from hypothesis import HealthCheck, settings

from tests.support import strategies

# On a GPU, JAX's default products are TF32, three digits short of what these tests compare.
jax.config.update("jax_default_matmul_precision", "highest")

# On a CPU most of the tests' time is compiling, for programs that run once: here and, by the
# variable, in processes that tests start.
QUICK_COMPILES = os.environ.get("JAX_PLATFORMS", "cpu") in ("", "cpu")
jax.config.update("jax_disable_most_optimizations", QUICK_COMPILES)
if QUICK_COMPILES:
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# HYPOTHESIS_PROFILE=full draws twice as many examples (`strategies.examples`).
for profile, share in strategies.SHARES.items():
    settings.register_profile(
        profile,
        deadline=None,
        derandomize=True,
        max_examples=int(40 * share),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile(strategies.PROFILE)


def pytest_collection_finish():
    """What is imported by now stays: the garbage collector need not walk it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """The directory of the real data sets; tests that need it are skipped without it."""
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    directory = Path(os.environ.get("JAXGNN_DATA") or default)
    if not directory.is_dir():
        pytest.skip(f"no data directory {directory}: set JAXGNN_DATA")
    return directory


@pytest.fixture(scope="module")
def strict():
    """JAX's strict dtype and rank promotion, for a module: `usefixtures("strict")`."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def x64():
    """64-bit types, for one test (or use `jax.enable_x64()` around a part of it)."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def optimized():
    """XLA's programs as users have them, for tests that run them many times."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", QUICK_COMPILES)
