"""From row offsets to the row of each edge."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn import config
from jaxgnn._core import checks, ffi
from jaxgnn._core.arguments import check_integers_fit, unwrap
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.platform import Impl, chosen

_TARGET = "jaxgnn_csr_row_ids"


def csr_row_ids(
    row_offsets: Int[Array, " rows+1"], num_edges: int, *, impl: Impl = None
) -> Int[Array, " num_edges"]:
    r"""The row of each edge: $r_e = \max \{ i : \mathrm{row\_offsets}[i] \le e \}$.

    Args:
        row_offsets: integer offsets of sorted rows, the last one `num_edges`.
        num_edges: the static number of edges.
        impl: `None` (a kernel where there is one), `"kernel"` or `"jax"`.

    Returns:
        int32 rows, ascending.

    Raises:
        TypeError: offsets that are no integers, or `num_edges` no integer known to a trace.
        ValueError: offsets without exactly one axis, or none; `num_edges` below 0; or `impl` is
            unknown.
    """
    impl = chosen(impl)
    num_edges = checks.integer(num_edges, "num_edges", 0, np.iinfo(np.int64).max)
    row_offsets = _checked(row_offsets)
    if num_edges == 0:
        return jnp.zeros(0, jnp.int32)
    if impl == "jax":
        return _reference(num_edges, row_offsets)
    with config.use(impl=impl):
        return _kernel(num_edges, row_offsets)


def _checked(row_offsets: Any) -> Int[Array, " rows+1"]:
    """The offsets in a type that kernels take."""
    check_integers_fit(row_offsets, "row_offsets")
    offsets = checks.as_numbers(unwrap(row_offsets), "row_offsets")
    if not jnp.issubdtype(offsets.dtype, jnp.integer):
        raise TypeError(f"row_offsets: expected integers, got {offsets.dtype}")
    if offsets.ndim != 1 or offsets.size == 0:
        raise ValueError(f"row_offsets: expected the shape (rows + 1,), got {offsets.shape}")
    wide = offsets.dtype in (np.int64, np.uint32, np.uint64)
    return offsets.astype(jax.dtypes.canonicalize_dtype(np.int64 if wide else np.int32))


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
