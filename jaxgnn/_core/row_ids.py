"""From row offsets to the row of each edge."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.platform import Impl, chosen

_TARGET = "jaxgnn_expand_rows"


def csr_row_ids(
    row_offsets: Int[Array, " rows+1"], num_edges: int, *, impl: Impl = None
) -> Int[Array, " num_edges"]:
    r"""The row of each edge: $r_e = \max \{ i : \mathrm{row\_offsets}[i] \le e \}$.

    Args:
        row_offsets: offsets of sorted rows, the last one `num_edges`.
        num_edges: the static number of edges.
        impl: `None` (a kernel where there is one), `"kernel"` or `"jax"`.

    Returns:
        int32 rows, ascending.
    """
    impl = chosen(impl)
    if num_edges == 0:
        return jnp.zeros(0, jnp.int32)
    if impl == "jax":
        return _reference(num_edges, row_offsets)
    with config.use(impl=impl):
        return _kernel(num_edges, row_offsets)


def _reference(num_edges: int, row_offsets: Array) -> Array:
    rows = jnp.arange(row_offsets.shape[0] - 1, dtype=jnp.int32)
    return jnp.repeat(rows, jnp.diff(row_offsets), total_repeat_length=num_edges)


@functools.partial(jax.jit, static_argnums=0)
def _kernel(num_edges: int, row_offsets: Array) -> Array:
    @jax.custom_batching.sequential_vmap
    def row_ids(offsets):
        return dispatch(
            (_TARGET,),
            lambda offsets: ffi.call(_TARGET, [offsets], [((num_edges,), np.int32)])[0],
            functools.partial(_reference, num_edges),
            offsets,
        )

    return row_ids(row_offsets)
