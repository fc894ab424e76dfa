"""The CPU targets through `jax.ffi`, against NumPy in float64: below the public operations."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph._build import row_chunks
from jaxgnn.ops._aggregation.reference import TIES_UNIT, reduce_rows, ties_dtype
from jaxgnn.ops._core.rows import Rows
from tests.support.paths import ROOT
from tests.support.processes import run_python

pytestmark = [
    pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built"),
    pytest.mark.few(1),
]

DTYPES = ["float32", "bfloat16", "float16", "float64"]
# Relative to the sum of the magnitudes; the result is rounded to its dtype once.
EPSILON = {"float32": 2e-6, "bfloat16": 2**-8, "float16": 2**-10, "float64": 1e-14}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def on_cpu(target, operands, results, **attributes):
    with jax.default_device(jax.devices("cpu")[0]):
        operands = jax.device_put(list(operands))  # which compiles nothing, unlike jnp.asarray
        return [np.asarray(o) for o in ffi.call(target, operands, results, **attributes)]


class Case:
    """A random rectangular CSR with empty rows, a hub and duplicates, and rows of features."""

    def __init__(self, seed, rows=37, columns=29, edges=400, offsets="int32", indices="int32"):
        rng = np.random.default_rng(seed)
        receivers = np.sort(rng.integers(0, rows, edges) * rng.integers(0, 2, edges))
        self.row = receivers
        self.column = rng.integers(0, columns, edges)
        counts = np.bincount(receivers, minlength=rows)
        self.rows, self.columns, self.edges, self.rng = rows, columns, edges, rng
        self.offsets = np.concatenate([[0], np.cumsum(counts)]).astype(offsets)
        self.indices = self.column.astype(indices)

    def features(self, rows, width, dtype):
        # Few distinct values, so that extrema are met several times.
        x = self.rng.integers(-8, 9, (rows, width)) / 4
        return x.astype(jnp.dtype(dtype))

    def weights(self, heads, dtype):
        weights = self.rng.integers(-4, 5, (self.edges, heads)) / 3
        return np.asarray(weights, accumulation_dtype(dtype))

    def chunks(self, length, padding=0):
        table = row_chunks.chunk_rows(self.offsets.astype(np.int64), length).table
        return np.concatenate([table, np.full((padding, 2), -1, np.int32)])


def absent(dtype):
    return np.zeros((0, 0), accumulation_dtype(dtype))


def spmm(case, x, weights, reduce, *, length=2048, padding=0, indices=True, ties=False, limit=0):
    chunks = np.zeros((0, 2), np.int32) if limit else case.chunks(length, padding)
    row = ((case.rows, x.shape[1]), x.dtype)
    count = 2 if ties else 1
    *out, _ = on_cpu(
        "jaxgnn_spmm_ties" if ties else "jaxgnn_spmm",
        [
            case.offsets,
            case.indices if indices else case.indices[:0],
            chunks,
            np.zeros(0, np.int32),
            x,
            absent(x.dtype) if weights is None else weights,
        ],
        [
            row,
            *[(row[0], ties_dtype(x.dtype))] * (count - 1),
            ((count * len(chunks), x.shape[1]), accumulation_dtype(x.dtype)),
        ],
        reduce=["sum", "mean", "max", "min"].index(reduce),
        chunk_length=length,
        **({} if ties else {"narrow_slices": 0, "row_limit": limit, "longest_row": 0}),
    )
    return out if ties else out[0]


def products(case, x, weights, indices=True):
    """Per edge, in float64: the weighted rows of x."""
    x64 = np.asarray(x, np.float64)[case.column if indices else np.arange(case.edges)]
    if weights is None:
        return x64
    return np.repeat(weights.astype(np.float64), x.shape[1] // weights.shape[1], axis=1) * x64


def rounded_products(case, x, weights, indices=True):
    """The same, computed in the accumulation dtype and rounded to x's, as extrema compare them."""
    sums = accumulation_dtype(x.dtype)
    rows = np.asarray(x)[case.column if indices else np.arange(case.edges)].astype(sums)
    if weights is not None:
        rows = np.repeat(weights, x.shape[1] // weights.shape[1], axis=1) * rows
    return rows.astype(x.dtype)


def reduced(case, per_edge, reduce):
    out = np.zeros((case.rows, per_edge.shape[1]))
    for row in range(case.rows):
        own = per_edge[case.row == row]
        if len(own):
            out[row] = getattr(np, reduce)(own, axis=0)
    return out


def close(actual, expected, scale, dtype):
    actual = np.asarray(actual, np.float64)
    np.testing.assert_array_less(np.abs(actual - expected), EPSILON[str(dtype)] * scale + 1e-30)


SHAPES = [
    # width, heads (0: no weights): narrow, overlapping and full vectors, several slices, heads of
    # one feature, of some vectors, of no whole vector, and of vectors too short to be worth it
    (1, 0), (3, 1), (7, 7), (15, 5), (20, 5), (33, 1), (64, 8), (129, 1), (160, 5), (208, 4),
    (257, 0), (640, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "heads"), SHAPES)
def test_spmm_sums(dtype, width, heads):
    case = Case(width, offsets="int64" if heads else "int32", indices="int64" if heads else "int32")
    x = case.features(case.columns, width, dtype)
    weights = case.weights(heads, dtype) if heads else None
    per_edge = products(case, x, weights)
    scale = reduced(case, np.abs(per_edge), "sum")
    whole = spmm(case, x, weights, "sum")
    close(whole, reduced(case, per_edge, "sum"), scale, dtype)
    # The hub in parts, with padding entries after them.
    split = spmm(case, x, weights, "mean", length=16, padding=3)
    counts = np.maximum(np.bincount(case.row, minlength=case.rows), 1)[:, None]
    close(split, reduced(case, per_edge, "sum") / counts, scale / counts, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("width", "heads"), [*SHAPES[::2], (1, 1), (2, 0), (3, 1), (6, 1), (11, 0)]
)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_spmm_extrema_are_exact(dtype, width, heads, reduce):
    case = Case(width)
    x = case.features(case.columns, width, dtype)
    weights = case.weights(heads, dtype) if heads else None
    per_edge = rounded_products(case, x, weights).astype(np.float64)
    expected = reduced(case, per_edge, reduce)
    for length in (2048, 16):
        actual = spmm(case, x, weights, reduce, length=length)
        np.testing.assert_array_equal(actual.astype(np.float64), expected)
        again, ties = spmm(case, x, weights, reduce, length=length, padding=2, ties=True)
        np.testing.assert_array_equal(again, actual)
        attained = per_edge == expected[case.row]
        counts = ties.astype(np.float64) * TIES_UNIT
        np.testing.assert_array_equal(counts, reduced(case, attained, "sum"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("indices", [True, False])
@pytest.mark.parametrize("limit", [1, 9, 1000])
def test_first_edges_of_rows(dtype, reduce, indices, limit):
    """Also by the reference, which lists them."""
    offsets = "int32" if indices else "int64"
    case = Case(limit, offsets=offsets, indices=offsets)
    first = np.arange(case.edges) - case.offsets[case.row] < limit
    assert first.all() == (limit == 1000)
    counts = np.bincount(case.row[first], minlength=case.rows)[:, None]
    rows = Rows(case.offsets, case.indices if indices else None, row_chunks.no_chunks(), None)
    # Narrow rows, and wide ones; with weights the edges' own.
    for width, heads in ((3, 0), (3, 1), (40, 2)):
        x = case.features(case.columns if indices else case.edges, width, dtype)
        weights = case.weights(heads, dtype) if heads else None
        per_edge = products(case, x, weights, indices)
        expected, scale = np.zeros((2, case.rows, width))
        for row in np.unique(case.row):
            own = per_edge[first & (case.row == row)]
            expected[row] = getattr(np, reduce)(own, axis=0)
            scale[row] = np.abs(own).sum(0)
        if reduce == "mean":
            scale = scale / np.maximum(counts, 1)
        close(spmm(case, x, weights, reduce, indices=indices, limit=limit), expected, scale, dtype)
        x = x.reshape(len(x), max(heads, 1), -1)
        listed = reduce_rows(rows, x, weights, reduce, limit).reshape(expected.shape)
        close(listed, expected, scale, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_identity_indices_and_nan(dtype, reduce):
    case = Case(0)
    x = case.features(case.edges, 21, dtype)
    x[case.edges // 2, 3] = np.nan
    per_edge = products(case, x, None, indices=False)
    expected = reduced(case, per_edge, reduce)
    scale = reduced(case, np.abs(np.nan_to_num(per_edge)), "sum")
    for length in (2048, 16):
        actual = spmm(case, x, None, reduce, length=length, indices=False).astype(np.float64)
        bad = np.isnan(expected)
        assert bad.sum() == 1
        np.testing.assert_array_equal(np.isnan(actual), bad)
        close(np.nan_to_num(actual), np.nan_to_num(expected), scale, dtype)


def extremum(case, transpose, x, y, weights, values, scale, length):
    chunks = case.chunks(length)
    none = absent(x.dtype)
    out, _ = on_cpu(
        "jaxgnn_spmm_extremum",
        [
            case.offsets,
            case.indices,
            chunks,
            x,
            y,
            none if weights is None else weights,
            values,
            none if scale is None else scale,
        ],
        [
            ((case.rows, x.shape[1]), x.dtype),
            ((len(chunks), x.shape[1]), accumulation_dtype(x.dtype)),
        ],
        transpose=int(transpose),
        chunk_length=length,
    )
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("width", "heads"), [
        (1, 0), (1, 1), (2, 0), (3, 1), (4, 1), (6, 0), (7, 1), (11, 1), (12, 3), (24, 24),
        (64, 8), (150, 0),
    ])  # fmt: skip
def test_spmm_extremum(dtype, transpose, width, heads):
    case = Case(width)
    own = case.features(case.rows, width, dtype)
    other = case.features(case.columns, width, dtype)
    x, y = (own, other) if transpose else (other, own)
    weights = case.weights(heads, dtype) if heads else None
    sums = accumulation_dtype(dtype)
    senders, receivers = (case.row, case.column) if transpose else (case.column, case.row)
    product = np.asarray(x)[senders].astype(sums)
    if heads:
        product = np.repeat(weights, width // heads, axis=1) * product
    met = product.astype(x.dtype) == np.asarray(y)[receivers]
    assert 0 < met.sum() < met.size
    values = case.features(case.columns, width, dtype)
    scale = case.weights(heads, dtype) if heads else None
    terms = met * np.asarray(values, np.float64)[case.column]
    if heads:
        terms = terms * np.repeat(scale, width // heads, axis=1).astype(np.float64)
    for length in (2048, 16):
        actual = extremum(case, transpose, x, y, weights, values, scale, length)
        scale_of = reduced(case, np.abs(terms), "sum")
        close(actual, reduced(case, terms, "sum"), scale_of, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("width", "heads"), [(1, 1), (5, 5), (24, 3), (63, 1), (64, 8), (127, 1), (300, 4)]
)
def test_sddmm(dtype, width, heads):
    case = Case(width)
    a, b = case.features(case.rows, width, dtype), case.features(case.columns, width, dtype)
    terms = np.asarray(a, np.float64)[case.row] * np.asarray(b, np.float64)[case.column]
    graph = [case.offsets, case.indices, case.chunks(16)]
    sums = accumulation_dtype(dtype)
    result = [((case.edges, heads), sums)]
    attributes = {"heads": heads, "chunk_length": 16}
    (actual,) = on_cpu("jaxgnn_sddmm", [*graph, a, b], result, **attributes)

    def per_head(array):
        return array.reshape(case.edges, heads, width // heads).sum(-1)

    close(actual, per_head(terms), per_head(np.abs(terms)), str(sums))

    x, y = case.features(case.columns, width, dtype), case.features(case.rows, width, dtype)
    for weights in (None, case.weights(heads, dtype)):
        met = rounded_products(case, x, weights) == np.asarray(y)[case.row]
        assert met.any()
        operands = [*graph, a, b, x, y, absent(dtype) if weights is None else weights]
        (actual,) = on_cpu("jaxgnn_sddmm_extremum", operands, result, **attributes)
        close(actual, per_head(terms * met), per_head(np.abs(terms)), str(sums))


def weight_gradient(x, g, blocks=5):
    shape = (x.shape[1], g.shape[1])
    results = [(shape, x.dtype), ((blocks, shape[0] * shape[1]), accumulation_dtype(x.dtype))]
    return on_cpu("jaxgnn_weight_gradient", [x, g], results, warpgroups=True)[0]


# Around the tiles: 8, 6 or 2 features by two vectors of 16 to 2, and rows taken 128 at a time.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "in_width", "out_width"),
    [(700, 9, 33), (300, 3, 47), (270, 33, 17), (257, 40, 1), (64, 5, 5), (1, 17, 64), (3, 1, 2)],
)
def test_weight_gradient(dtype, rows, in_width, out_width):
    rng = np.random.default_rng(0)
    x, g = (rng.normal(size=(rows, w)).astype(jnp.dtype(dtype)) for w in (in_width, out_width))
    expected = np.asarray(x, np.float64).T @ np.asarray(g, np.float64)
    scale = np.abs(np.asarray(x, np.float64)).T @ np.abs(np.asarray(g, np.float64))
    for blocks in (1, 5):
        error = np.abs(np.asarray(weight_gradient(x, g, blocks), np.float64) - expected)
        assert (error <= EPSILON[dtype] * (scale + 1)).all()


def test_weight_gradient_keeps_what_is_not_finite_where_it_is():
    """The tiles at the ends are padded with zeros, and what these make of it is left out."""
    x, g = np.ones((300, 11), np.float32), np.ones((300, 37), np.float32)
    x[7, 9], g[280, 36] = np.inf, np.nan
    expected = np.full((11, 37), 300.0)
    expected[9], expected[:, 36] = np.inf, np.nan
    np.testing.assert_array_equal(weight_gradient(x, g), expected)


@pytest.mark.parametrize("offsets", ["int32", "int64"])
def test_expand_rows(offsets):
    case = Case(0, rows=501, edges=30_000, offsets=offsets)
    (actual,) = on_cpu("jaxgnn_csr_row_ids", [case.offsets], [((case.edges,), np.int32)])
    np.testing.assert_array_equal(actual, case.row)


@pytest.mark.parametrize(("rows", "edges", "width"), [(0, 0, 5), (6, 0, 5), (6, 40, 0), (0, 0, 0)])
def test_empty(rows, edges, width):
    case = Case(0, rows=max(rows, 1), edges=edges)
    case.rows, case.offsets = rows, case.offsets[: rows + 1]
    x, y = case.features(29, width, "float32"), case.features(rows, width, "float32")
    np.testing.assert_array_equal(spmm(case, x, None, "max"), np.zeros((rows, width)))
    actual = extremum(case, False, x, y, None, x, None, 16)
    np.testing.assert_array_equal(actual, np.zeros((rows, width)))
    operands = [case.offsets, case.indices, case.chunks(16), y, x]
    (actual,) = on_cpu(
        "jaxgnn_sddmm", operands, [((edges, 1), np.float32)], heads=1, chunk_length=16
    )
    np.testing.assert_array_equal(actual, np.zeros((edges, 1)))
    (actual,) = on_cpu("jaxgnn_csr_row_ids", [case.offsets], [((edges,), np.int32)])
    np.testing.assert_array_equal(actual, case.row)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", [16, 8, 4, 1])
def test_every_half_precision_value_survives(dtype, width):
    """All 65,536 bit patterns are read and written back: subnormals, infinities and NaN too."""
    bits = np.arange(65536, dtype=np.uint16)
    exponent = 0x7F80 if dtype == "bfloat16" else 0x7C00
    nan = (bits & 0x7FFF) > exponent
    case = Case(0)
    case.rows = case.edges = 65536 // width
    case.offsets = np.arange(case.rows + 1, dtype=np.int32)
    case.indices = np.arange(case.rows, dtype=np.int32)
    x = jnp.asarray(bits.view(jnp.dtype(dtype)).reshape(-1, width))
    out = spmm(case, x, None, "sum").reshape(-1).view(np.uint16)
    np.testing.assert_array_equal((out & 0x7FFF) > exponent, nan)
    checked = ~nan
    if dtype == "bfloat16":  # its subnormals are float32's, which XLA flushes to zero
        checked &= (bits & exponent) != 0
    else:
        checked &= bits != 0x8000  # a sum starts from +0, so that -0 becomes +0
    np.testing.assert_array_equal(out[checked], bits[checked])


def test_rounding_is_to_nearest_even():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4096).astype(np.float32) * np.exp2(rng.integers(-24, 17, 4096))
    case = Case(0, rows=1, edges=1)
    case.offsets, case.indices = np.array([0, 1], np.int32), np.zeros(1, np.int32)
    for dtype in ("float16", "bfloat16"):
        wide = np.ones((1, 4096), jnp.dtype(dtype))
        case.rows = case.edges = 1
        weights = x.astype(np.float32)[None]  # one head a feature: the product is the weight
        out = spmm(case, jnp.asarray(wide), weights, "sum")
        with np.errstate(over="ignore"):  # the largest are infinite in float16
            expected = x.astype(np.float32).astype(wide.dtype)
        np.testing.assert_array_equal(out[0], expected)


def test_bad_shapes_are_refused():
    case = Case(0)
    x = case.features(case.columns, 8, "float32")
    with pytest.raises(Exception, match="weights must be"):
        spmm(case, x, case.weights(1, "float32")[:-1], "sum")
    with pytest.raises(Exception, match="heads must divide"):
        spmm(case, x, case.weights(3, "float32"), "sum")


def edge_softmax(case, scores, length, padding=0):
    chunks = case.chunks(length, padding)
    results = [(scores.shape, scores.dtype), ((len(chunks), 2 * scores.shape[1]), scores.dtype)]
    operands = [case.offsets, case.indices[:0], chunks, scores]
    return on_cpu("jaxgnn_edge_softmax", operands, results, chunk_length=length)[0]


def digest() -> str:
    """Every target's result on a graph large enough for several work items, bit for bit."""
    import hashlib

    case = Case(1, rows=3000, columns=2500, edges=60_000)
    hashed = hashlib.sha256()
    for dtype in ("float32", "bfloat16"):
        x = case.features(case.columns, 48, dtype) / 3
        y = case.features(case.rows, 48, dtype) / 3
        for weights in (None, case.weights(1, dtype), case.weights(6, dtype)):
            for reduce in ("sum", "max"):
                hashed.update(spmm(case, x, weights, reduce, length=256).tobytes())
            out, ties = spmm(case, x, weights, "min", length=256, ties=True)
            hashed.update(out.tobytes() + ties.tobytes())
        hashed.update(extremum(case, False, x, y, None, x, None, 256).tobytes())
        operands = [case.offsets, case.indices, case.chunks(256), y, x]
        result = [((case.edges, 1), np.float32)]
        (dots,) = on_cpu("jaxgnn_sddmm", operands, result, heads=1, chunk_length=256)
        hashed.update(dots.tobytes())
        hashed.update(weight_gradient(y[:2500], x).tobytes())
    scores = case.rng.normal(size=(case.edges, 3)).astype(np.float32)
    hashed.update(edge_softmax(case, scores, 256).tobytes())
    hashed.update(spmm(case, scores, None, "sum", length=256, indices=False).tobytes())
    return hashed.hexdigest()


def in_child(code: str, **environment: str) -> str:
    return run_python("-c", code, directory=ROOT, JAX_PLATFORMS="cpu", **environment).stdout.strip()


DIGEST = """
import os, sys
if "ONE_CORE" in os.environ: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.path.append(os.getcwd())
import jax
jax.config.update("jax_enable_x64", True)
from tests.core.test_kernels_cpu import digest
print(digest())
"""


def test_results_do_not_depend_on_threads():
    first = digest()
    assert digest() == first
    if hasattr(os, "sched_setaffinity"):
        assert in_child(DIGEST, ONE_CORE="1") == first


@pytest.mark.system
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_other_instruction_sets(isa):
    """The numeric tests again, in a process that is told to use less than it could."""
    code = f"""
import pytest, sys
which = "spmm or sddmm or weight_gradient or survives or nearest or edge or expand or bits"
files = [{os.path.abspath(__file__)!r}, "tests/core/test_edge_kernels_cpu.py"]
options = ["-q", "-x", "-n0", "-p", "no:cacheprovider", *files]
status = pytest.main([*options, "-k", which])
from jaxgnn._core import ffi
print(ffi.cpu_module.isa())
sys.exit(status)
"""
    *_, counts, name = in_child(code, JAXGNN_CPU_ISA=isa).splitlines()
    if name != isa:
        pytest.skip(f"this processor runs {name!r} only")
    assert "passed" in counts
