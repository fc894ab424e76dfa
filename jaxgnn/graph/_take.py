"""Rows by number, where a negative number is padding."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped


def take_rows(
    values: Shaped[Array, "count *rest"], rows: Int[Array, " rows"]
) -> Shaped[Array, "rows *rest"]:
    """`values[rows]`, 0 for padding."""
    values = jnp.asarray(values)
    return values.at[padding_outside(rows, values.shape[0])].get(mode="fill", fill_value=0)


def padding_outside(rows: Int[Array, " rows"], count: int) -> Int[Array, " rows"]:
    """Padding out of range: -1 would be the last of `count`."""
    return jnp.where(rows < 0, count, rows)
