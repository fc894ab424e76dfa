"""The stable sort by small integers: the kernel against XLA's sort."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.counting_sort import counting_sort


@functools.partial(jax.jit, static_argnames="num_values")
def sort(keys, num_values):
    return counting_sort(keys, num_values)


# The last ones are shared between threads; `num_values` itself stands for none.
@pytest.mark.parametrize(("entries", "values"), [(0, 3), (50, 9), (20, 0), (400_000, 1000)])
def test_as_by_a_sort(entries, values):
    keys = np.random.default_rng(0).integers(0, values + 1, entries).astype(np.int32)
    offsets, order = sort(keys, values)
    assert offsets.dtype == order.dtype == jnp.int32
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(offsets, np.searchsorted(np.sort(keys), np.arange(values + 1)))


def test_under_vmap_and_by_the_reference():
    keys = jnp.asarray(np.random.default_rng(0).integers(0, 6, (3, 40)), jnp.int32)
    batched = jax.vmap(lambda keys: counting_sort(keys, 5))
    expected = jax.tree.map(lambda *rows: jnp.stack(rows), *(sort(row, 5) for row in keys))
    jax.tree.map(np.testing.assert_array_equal, jax.jit(batched)(keys), expected)
    with config.use(impl="jax"):
        jax.tree.map(np.testing.assert_array_equal, batched(keys), expected)


@pytest.mark.skipif(
    jax.default_backend() != "cpu" or ffi.cpu_module is None, reason="a CPU's kernel"
)
def test_a_cpu_counts():
    text = sort.lower(jnp.zeros(4, jnp.int32), 3).as_text()
    assert "jaxgnn_counting_sort" in text
