"""Dropout's mask: the kernel against JAX bit for bit, and the statistics of what is drawn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import maxk
from jaxgnn._core.platform import kernels_available
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._dropout import mask
from tests.support.processes import run_python

pytestmark = pytest.mark.usefixtures("strict")

KEY = jax.random.key(7)
SHAPES = [(1, 1), (7, 3), (3, 31), (5, 32), (4, 33), (2, 64), (65, 200), (1, 5000), (3000, 16)]
needs_kernel = pytest.mark.skipif(
    not kernels_available(mask.TARGET), reason="needs the kernel of this platform"
)


def arguments(rate, key=KEY):
    drop_below, words = dropout_mask.arguments(rate, key)
    return drop_below, words


def drawn(rows, width, rate, key=KEY):
    """The mask by the kernel, or by JAX where there is none."""
    drop_below, words = arguments(rate, key)
    kept = mask.packed_by_kernel if kernels_available(mask.TARGET) else mask.packed_by_jax
    return np.asarray(mask.unpacked(kept(drop_below, rows, width, words), width))


@pytest.mark.few(9)
@needs_kernel
@pytest.mark.parametrize("rate", [2**-32, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_draws_what_jax_draws(shape, rate):
    drop_below, words = arguments(rate)
    ours = mask.packed_by_kernel(drop_below, *shape, words)
    np.testing.assert_array_equal(ours, mask.packed_by_jax(drop_below, *shape, words))
    kept = mask.kept_by_jax(drop_below, *shape, words)
    np.testing.assert_array_equal(mask.unpacked(ours, shape[1]), kept)


@needs_kernel
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of the CPU's instruction sets")
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_every_instruction_set_draws_the_same(isa):
    code = (
        "import jax, numpy as np; from jaxgnn.ops._dropout import mask\n"
        "words = jax.numpy.asarray([5, 9], 'uint32')\n"
        "print(np.asarray(mask.packed_by_kernel(1 << 30, 9, 75, words)).tolist())"
    )
    out = run_python("-c", code, JAXGNN_CPU_ISA=isa).stdout
    words = jnp.asarray([5, 9], jnp.uint32)
    assert out.strip() == str(np.asarray(mask.packed_by_jax(1 << 30, 9, 75, words)).tolist())


@pytest.mark.parametrize("shape", [(9, 7), (33, 64), (1, 300)], ids=str)
def test_maxk_keeps_the_same(shape):
    x = jnp.ones(shape)
    kept = maxk(x, shape[1], dropout_rate=0.4, dropout_rng=KEY).to_dense() > 0
    np.testing.assert_array_equal(kept, drawn(*shape, 0.4))


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8])
def test_values_are_dropped_with_the_rate_s_probability(rate):
    """Of all, of each column, of each bit of a word, and of each row: sums of independent draws,
    within 5 standard deviations, and their squares together as chi-squared."""
    rows, width = 4096, 96
    kept = drawn(rows, width, rate).astype(np.float64)
    deviation = np.sqrt(rate * (1 - rate))
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation / np.sqrt(kept.size)
    bits = kept.reshape(rows, -1, 32).sum((0, 1)), rows * width / 32
    for sums, count in [(kept.sum(0), rows), (kept.sum(1), width), bits]:
        z = (sums - count * (1 - rate)) / (deviation * np.sqrt(count))
        assert np.abs(z).max() < 5.5
        chi_squared, freedom = np.sum(z**2), len(z)
        assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("other", ["row", "word", "column", "key", "bit of the key"])
def test_masks_are_independent(other):
    """The correlation with the mask of another row, word, column and key is that of chance."""
    rows, width, rate = 2048, 128, 0.3
    kept = drawn(rows, width, rate)
    shifted = {
        "row": lambda: np.roll(kept, 1, 0),
        "word": lambda: np.roll(kept, 32, 1),
        "column": lambda: np.roll(kept, 1, 1),
        "key": lambda: drawn(rows, width, rate, jax.random.split(KEY)[0]),
        "bit of the key": lambda: drawn(rows, width, rate, jax.random.key(6)),
    }[other]()
    centered = (kept - (1 - rate)) * (shifted - (1 - rate))
    assert abs(centered.mean()) < 5 * rate * (1 - rate) / np.sqrt(kept.size)


def test_rows_of_several_keys_under_vmap():
    keys = jax.random.split(KEY, 6).reshape(2, 3)
    drop_below, _ = arguments(0.5)
    words = jax.vmap(jax.vmap(jax.random.key_data))(keys)
    for by in (mask.packed_by_kernel, mask.packed_by_jax):
        if by is mask.packed_by_kernel and not kernels_available(mask.TARGET):
            continue
        draw = functools.partial(by, drop_below, 5, 40)
        together = jax.jit(jax.vmap(jax.vmap(draw)))(words)
        assert together.shape == (2, 3, 5, 2)
        for i in range(2):
            for j in range(3):
                np.testing.assert_array_equal(
                    together[i, j], mask.packed_by_jax(drop_below, 5, 40, words[i, j])
                )


@needs_kernel
def test_masks_without_values():
    drop_below, words = arguments(0.5)
    for shape in [(0, 5), (5, 0), (0, 0)]:
        assert mask.packed_by_kernel(drop_below, *shape, words).shape == (
            shape[0],
            -(-shape[1] // 32),
        )
