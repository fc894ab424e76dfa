"""The GPU's kernel of the gradient of a projection's weights: where it runs, and what it gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn._core import platform
from jaxgnn.ops._projection import weight_gradient
from jaxgnn.ops._projection.project import project
from tests.support.arrays import normal

pytestmark = pytest.mark.usefixtures("strict")

ROWS = weight_gradient._LEAST_GPU_ROWS + 1  # no multiple of 128
# Of the sum of magnitudes. float32 is rounded to TF32, 16-bit results once.
EPSILON = {"float32": 2**-10, "bfloat16": 2**-8, "float16": 2**-11}


@pytest.fixture(params=[True, False], ids=["warpgroups", "any_device"])
def by_kernel(request):
    """By Hopper's kernels, on such a device, and by those of all devices."""
    return jax.jit(functools.partial(weight_gradient.by_gpu_kernel, warpgroups=request.param))


# Tiles whole and not, copies of 16, 8 and 4 bytes, stages whole and not.
SHAPES = [
    *((5003, 256, 128), (700, 602, 256), (1037, 130, 42), (33, 4, 6), (1, 128, 2)),
    *((5, 8, 300), (2080, 72, 100), (4097, 40, 260), (9000, 128, 64), (3000, 64, 256)),
]
ODD = [(5003, 256, 41), (3000, 129, 301), (2000, 65, 131)]  # of float32 alone


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "rows", "in_features", "out_features"),
    [(dtype, *shape) for dtype in EPSILON for shape in SHAPES + ODD * (dtype == "float32")],
)
def test_sanitized_sums(by_kernel, dtype, rows, in_features, out_features):
    x, g = normal(rows, in_features, dtype=dtype), normal(rows, out_features, seed=1, dtype=dtype)
    wide = [np.asarray(a, np.float64) for a in (x, g)]
    scale = np.abs(wide[0]).T @ np.abs(wide[1])
    found = by_kernel(x, g)
    assert found.dtype == x.dtype
    error = np.abs(np.asarray(found, np.float64) - wide[0].T @ wide[1])
    assert (error <= EPSILON[dtype] * (scale + 1e-6)).all()
    np.testing.assert_array_equal(found, by_kernel(x, g))


@pytest.mark.gpu
def test_what_is_not_finite_stays_where_it_is(by_kernel):
    x, g = np.ones((3000, 10), np.float32), np.ones((3000, 38), np.float32)
    x[7, 9], g[2800, 36] = np.inf, np.nan
    expected = np.full((10, 38), 3000.0)
    expected[9], expected[:, 36] = np.inf, np.nan
    found = by_kernel(x, g)
    np.testing.assert_array_equal(found, expected)


def calls(monkeypatch, rows, in_features, out_features, dtype="float32", precision="default"):
    """How many of the kernel a GPU's program has, of a projection's gradient."""
    monkeypatch.setattr(platform, "serves", lambda name, *_: name == "cuda")

    def loss(x, kernel):
        return jnp.sum(project(x, kernel, precision).astype(jnp.float32) ** 2)

    x = jax.ShapeDtypeStruct((rows, in_features), dtype)
    kernel = jax.ShapeDtypeStruct((in_features, out_features), dtype)
    traced = jax.jit(jax.grad(loss, 1)).trace(x, kernel)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    return text.count("@jaxgnn_weight_gradient(")


def test_where_it_runs(monkeypatch):
    count = functools.partial(calls, monkeypatch)
    assert count(ROWS, 602, 256) == count(ROWS, 256, 41) == 1
    assert count(ROWS - 2, 256, 256) == 0
    assert count(ROWS, 0, 256) == 0
    assert count(ROWS, 2048, 2048) == 0
    assert count(ROWS, 64, 64, "bfloat16") == count(ROWS, 64, 64, "float16") == 1
    assert count(ROWS, 64, 41, "bfloat16") == 0, "rows of an odd number of 16-bit values"
    assert count(10 * 128 * 128, 256, 256) == count(ROWS - 1 + 128, 64, 64, "bfloat16") == 0
    assert count(10 * 128 * 128, 256, 256, "bfloat16") == 1
    assert count(10 * 128 * 128, 602, 256) == count(10 * 128 * 128, 256, 41) == 1


def test_float32_keeps_the_precision_that_was_asked_for(monkeypatch):
    count = functools.partial(calls, monkeypatch, ROWS, 64, 64)
    assert count(precision="highest") == count(precision=jax.lax.Precision.HIGHEST) == 0
    assert count(precision="high") == 0
    assert count("bfloat16", "highest") == 1
    for default, expected in (("highest", 0), ("default", 1), (None, 1), ("float32", 0)):
        with jax.default_matmul_precision(default):
            assert count(precision=None) == expected


def test_float64_is_xla_s(monkeypatch):
    with jax.enable_x64():
        assert calls(monkeypatch, ROWS, 64, 64, "float64") == 0
