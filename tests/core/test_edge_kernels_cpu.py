"""The CPU targets over edge values, whose heads share vectors, against NumPy in float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from tests.core.test_kernels_cpu import (
    DTYPES,
    Case,
    close,
    edge_softmax,
    extremum,
    products,
    reduced,
    spmm,
    x64,
)

pytestmark = [
    pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built"),
    pytest.mark.few(1),
    pytest.mark.usefixtures(x64.__name__),
]

# Around vectors of 2 to 16 lanes: heads that divide them, that do not, and more than there are.
HEADS = [1, 2, 3, 4, 5, 6, 8, 11, 15, 16, 17, 33]


def softmax_of_rows(case, scores):
    """In float64; 0 where all of a row's scores are -inf."""
    largest = reduced(case, scores, "max")
    largest[np.isneginf(largest)] = 0
    powers = np.exp(scores - largest[case.row])
    total = reduced(case, powers, "sum")
    total[total == 0] = 1
    return powers / total[case.row]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("heads", HEADS)
def test_edge_softmax(dtype, heads):
    """A hub whole and in chunks, with padding; masked scores, and rows of nothing else."""
    case = Case(heads, offsets="int64" if heads > 4 else "int32")
    scores = case.rng.normal(0, 3, (case.edges, heads)).astype(dtype)
    scores[case.rng.random(scores.shape) < 0.3] = -np.inf
    scores[case.row == 5] = -np.inf
    scores[case.row == 0, 0] = -np.inf
    expected = softmax_of_rows(case, scores.astype(np.float64))
    for length, padding in ((2048, 0), (16, 3), (7, 0)):
        actual = edge_softmax(case, scores, length, padding)
        np.testing.assert_allclose(actual, expected, rtol=2e-6 if dtype == "float32" else 1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("heads", [1, 3, 17])
def test_edge_softmax_keeps_what_is_not_finite_in_its_row_and_head(heads, bad):
    case = Case(2)
    scores = case.rng.normal(size=(case.edges, heads)).astype(np.float32)
    for row in (0, 20):
        scores[np.flatnonzero(case.row == row)[1], heads - 1] = bad
    expected = np.zeros(scores.shape, bool)
    expected[np.isin(case.row, [0, 20]), heads - 1] = True
    for length in (2048, 16):
        np.testing.assert_array_equal(np.isnan(edge_softmax(case, scores, length)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_edge_reduction(dtype, heads):
    case = Case(heads)
    x = case.features(case.edges, heads, dtype)
    per_edge = products(case, x, None, indices=False)
    counts = np.maximum(np.bincount(case.row, minlength=case.rows), 1)[:, None]
    scale = reduced(case, np.abs(per_edge), "sum")
    for length in (2048, 16):
        for reduce, divisor in (("sum", 1), ("mean", counts)):
            actual = spmm(case, x, None, reduce, length=length, padding=2, indices=False)
            close(actual, reduced(case, per_edge, "sum") / divisor, scale / divisor, dtype)
        for reduce in ("max", "min"):
            actual = spmm(case, x, None, reduce, length=length, indices=False)
            np.testing.assert_array_equal(
                actual.astype(np.float64), reduced(case, per_edge, reduce)
            )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_the_bits_of_a_column_do_not_depend_on_the_width(reduce, dtype):
    """Graphs that are sharded by features promise it."""
    case = Case(3)
    x = case.rng.normal(size=(case.columns, 40)).astype(jnp.dtype(dtype))
    weights = case.rng.normal(size=(case.edges, 1)).astype(accumulation_dtype(dtype))
    for length in (2048, 16):
        for given in (None, weights):
            wide = spmm(case, x, given, reduce, length=length)
            for width in (1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 33):
                narrow = spmm(case, x[:, :width], given, reduce, length=length)
                assert narrow.tobytes() == wide[:, :width].tobytes(), width


@pytest.mark.parametrize("transpose", [False, True])
def test_the_bits_of_a_derivative_do_not_depend_on_the_width(transpose):
    case = Case(3)
    own, other = (case.features(rows, 40, "float32") for rows in (case.rows, case.columns))
    x, y = (own, other) if transpose else (other, own)
    values = case.rng.normal(size=(case.columns, 40)).astype(np.float32)
    weights, scale = case.weights(1, "float32"), case.weights(1, "float32")
    for length in (2048, 16):
        for given in ((None, None), (weights, scale)):

            def columns(width, given=given, length=length):
                a, b, c = (array[:, :width] for array in (x, y, values))
                return extremum(case, transpose, a, b, given[0], c, given[1], length)

            wide = columns(40)
            assert np.any(wide)
            for width in (1, 2, 3, 4, 5, 7, 8, 11, 16):
                assert columns(width).tobytes() == wide[:, :width].tobytes(), width


@pytest.mark.parametrize("rows", [0, 6])
def test_edge_softmax_of_nothing(rows):
    case = Case(0, rows=max(rows, 1), edges=0)
    case.offsets = case.offsets[: rows + 1]
    assert edge_softmax(case, np.zeros((0, 3), np.float32), 16).shape == (0, 3)
