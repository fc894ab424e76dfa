"""Where rows of given lengths begin."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._core.row_offsets import offsets_of


def test_offsets_are_the_sums_of_the_lengths_before():
    rng = np.random.default_rng(0)
    # Fewer than a block's rows, whole blocks and parts of one, and more blocks than it has threads.
    for rows in (0, 1, 2047, 2048, 2049, 6145, 600_001):
        counts = rng.integers(0, 5, rows, np.int32)
        expected = np.concatenate([[0], np.cumsum(counts)])
        np.testing.assert_array_equal(offsets_of(jnp.asarray(counts)), expected)
    counts = jnp.asarray(rng.integers(0, 2, (2, 5000)) > 0)
    expected = np.concatenate([np.zeros((2, 1)), np.cumsum(counts, axis=1)], axis=1)
    np.testing.assert_array_equal(jax.jit(jax.vmap(offsets_of))(counts), expected)
