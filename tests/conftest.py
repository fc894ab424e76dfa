"""Settings that all tests share."""

import collections
import gc
import math
import os
import random
import re
import sys
import time
from pathlib import Path

# On the CPU, unless a GPU was asked for: two devices for shard_map. There most of the tests' time
# is compilation of programs that run once, so that most of XLA's optimizations are off, here and
# in processes that tests start. With JAXGNN_TEST_OPTIMIZED=1 they are on, as users have them.
# JAX reads these variables when it starts.
if os.environ.get("JAX_PLATFORMS", "cpu") in ("", "cpu"):
    flags = os.environ.get("XLA_FLAGS", "").split()
    added = ["--xla_force_host_platform_device_count=2"]
    if os.environ.get("JAXGNN_TEST_OPTIMIZED", "0") != "1":
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        added.append("--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters")
        added.append("--xla_cpu_parallel_codegen_split_count=1")
    for flag in added:
        if not any(given.startswith(flag.split("=")[0]) for given in flags):
            flags.append(flag)
    os.environ["XLA_FLAGS"] = " ".join(flags)
else:
    # The workers of a run share the GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Threads of PyTorch and of OpenBLAS would spin for each other, beside those of XLA.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No test leaves built graphs in the user's cache.
os.environ["JAXGNN_CACHE"] = ""

# Last, so that the installed jaxgnn is tested: the package `benchmarks` is not installed.
sys.path.append(str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("PYTHONSAFEPATH", "1")  # the same in the processes that tests start

import jax
import pytest
from hypothesis import HealthCheck, settings

import jaxgnn
from tests.support import strategies

# On a GPU, JAX's default products are TF32, three digits short of what these tests compare.
jax.config.update("jax_default_matmul_precision", "highest")

# With JAXGNN_TEST_MINUTES no test starts later than that, and files run in an order that changes
# with the seed, so that several runs see them all.
MINUTES = float(os.environ.get("JAXGNN_TEST_MINUTES") or "inf")
STARTED = time.monotonic()

# Names of tests whose cases are errors.
OF_ERRORS = re.compile(r"bad_|errors?(_|$)|raise")

QUICK_COMPILES = os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS", "0") == "1"

# "quick": the same examples in every run. "ci": as many, new ones in every run.
for profile, share in strategies.SHARES.items():
    new_examples = profile == "ci"
    settings.register_profile(
        profile,
        deadline=None,
        derandomize=not new_examples,
        print_blob=new_examples,
        database=None,
        max_examples=int(40 * share),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile(strategies.PROFILE)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """One seed of hypothesis for all workers of a run, chosen before its plugin reads the option.

    `--hypothesis-seed`, else HYPOTHESIS_SEED, else a random one in the profile "ci".
    """
    if hasattr(config, "workerinput"):
        config.option.hypothesis_seed = config.workerinput["hypothesis_seed"]
    elif config.option.hypothesis_seed is None:
        new = str(random.randrange(2**32)) if strategies.PROFILE == "ci" else None
        config.option.hypothesis_seed = os.environ.get("HYPOTHESIS_SEED") or new


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """A worker of pytest-xdist gets the seed of the process that starts it, not its options."""
    node.workerinput["hypothesis_seed"] = node.config.option.hypothesis_seed


def pytest_report_header(config):
    seed, profile = config.option.hypothesis_seed, strategies.PROFILE
    repeat = f"; repeat with HYPOTHESIS_PROFILE={profile} --hypothesis-seed={seed}"
    return [
        f"hypothesis: profile {profile}{repeat if profile == 'ci' else ''}",
        f"XLA: {'most optimizations off' if QUICK_COMPILES else 'optimizations on'}",
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Of a test marked `few(n)`, all cases but n drawn at random are `system`. Not so of errors,
    whose cases take milliseconds each.

    Tests marked `gpu` are skipped, with the reason, where no GPU runs the kernels.
    """
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not OF_ERRORS.search(item.originalname):
            cases[item.path, item.originalname].append(item)
    for (_, name), rest in cases.items():
        rest.sort(key=lambda item: item.name)
        draw = random.Random(f"{name} {config.option.hypothesis_seed}")
        for _ in range(min(rest[0].get_closest_marker("few").args[0], len(rest))):
            rest.pop(draw.randrange(len(rest)))
        for item in rest:
            item.add_marker(pytest.mark.system)
    if math.isfinite(MINUTES):
        draw = random.Random(str(config.option.hypothesis_seed))
        places = collections.defaultdict(draw.random)
        items.sort(key=lambda item: places[item.path])
    if jax.default_backend() == "gpu" and jaxgnn.build_info().cuda:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU with jaxgnn._cuda"))


def pytest_runtest_setup(item):
    if time.monotonic() - STARTED > 60 * MINUTES:
        pytest.skip(f"{MINUTES:g} minutes are over (JAXGNN_TEST_MINUTES)")


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
    """XLA's optimizations, for tests that run a program many times."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", QUICK_COMPILES)
