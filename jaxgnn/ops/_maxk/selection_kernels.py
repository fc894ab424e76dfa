"""Compressed balanced sparse rows of dense ones, and the reverse, without derivatives.

`vmap` is one call on more rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt, UInt32

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import with_vmap_rule
from jaxgnn.ops._core.sparse_rows import index_dtype, visible
from jaxgnn.ops._maxk import reference
from jaxgnn.ops._maxk.platforms import on_platforms


def select(
    k: int, x: Float[Array, "rows width"]
) -> tuple[Float[Array, "rows k"], UInt[Array, "rows k"]]:
    """Values and positions of the `k` largest entries of each row."""

    def kernel(x: Array) -> tuple[Array, ...]:
        shape = (x.shape[0], k)
        results = [(shape, x.dtype), (shape, index_dtype(x.shape[1]))]
        return tuple(ffi.call("jaxgnn_maxk", [x], results))

    otherwise = functools.partial(reference.select, k)
    return _by_rows(on_platforms("jaxgnn_maxk", kernel, otherwise, x.dtype))(x)


def select_transformed(
    k: int,
    drop_below: int,
    x: Float[Array, "rows width"],
    bias: Float[Array, " width"] | None,
    philox_key: UInt32[Array, " 2"] | None,
) -> tuple[Float[Array, "rows k"], UInt[Array, "rows k"]]:
    """The same after a bias, in the accumulation dtype, and dropout by the key of `philox_key`."""

    def of_example(x: Array, bias: Array | None, philox_key: Array | None) -> tuple[Array, ...]:
        return reference.select(k, reference.transform(drop_below, x, bias, philox_key))

    parameters = [_row(bias, x.shape[1], accumulation_dtype(x.dtype)), _key_row(philox_key)]
    attributes = {"drop_below": drop_below}
    return _with_parameters("jaxgnn_maxk_transformed", k, x, parameters, of_example, attributes)


def select_normalized(
    k: int,
    drop_below: int,
    epsilon: float,
    x: Float[Array, "rows width"],
    scale: Float[Array, " width"],
    bias: Float[Array, " width"],
    philox_key: UInt32[Array, " 2"] | None,
) -> tuple[Float[Array, "rows k"], UInt[Array, "rows k"]]:
    """The same of rows that are normalized and multiplied by `scale` before."""

    def of_example(
        x: Array, scale: Array, bias: Array, philox_key: Array | None
    ) -> tuple[Array, ...]:
        z = reference.transform(drop_below, x, bias, philox_key, (epsilon, scale))
        return reference.select(k, z)

    parameters = [scale[None, :], bias[None, :], _key_row(philox_key)]
    attributes = {"drop_below": drop_below, "epsilon": epsilon}
    return _with_parameters("jaxgnn_maxk_normalized", k, x, parameters, of_example, attributes)


def _row(vector: Array | None, width: int, dtype: Any) -> Array:
    return jnp.zeros((0, width), dtype) if vector is None else vector[None, :]


def _key_row(philox_key: UInt32[Array, " 2"] | None) -> UInt32[Array, "keys 2"]:
    return _row(philox_key, 2, jnp.uint32)


def _with_parameters(
    target: str,
    k: int,
    x: Float[Array, "rows width"],
    parameters: Sequence[Array],
    of_example: Any,
    attributes: dict[str, Any],
) -> Any:
    """Calls a selection whose parameters are one row for all examples of a `vmap`, or one for each,
    or none."""
    rows, width = x.shape

    def kernel(x: Array, *parameters: Array) -> tuple[Array, ...]:
        shape = (x.shape[0], k)
        results = [(shape, x.dtype), (shape, index_dtype(width))]
        out = ffi.call(target, [x, *parameters], results, rows_per_example=rows, **attributes)
        return tuple(out)

    def rule(call, axis_size, batched, x, *parameters):
        """More rows, which the kernel counts anew in each example."""
        examples = x.shape[-2] // rows

        def of_each(operand: Array, moves: bool) -> Array:
            if not moves and operand.shape[0] <= 1:
                return operand
            if not moves:
                operand = operand[None]
            shape = (axis_size, examples, operand.shape[-1])
            return jnp.broadcast_to(operand, shape).reshape(-1, operand.shape[-1])

        moves_x, *moves = batched
        if not moves_x:
            x = jnp.broadcast_to(x, (axis_size, *x.shape))
        outs = call(x.reshape(-1, width), *map(of_each, parameters, moves))
        return tuple(out.reshape(axis_size, -1, out.shape[-1]) for out in outs)

    def otherwise(x: Array, *parameters: Array) -> tuple[Array, ...]:
        examples = x.shape[0] // rows
        axes = [None if a.shape[0] == 0 else 0 for a in parameters]
        given = [
            None if a.shape[0] == 0 else jnp.broadcast_to(a, (examples, a.shape[1]))
            for a in parameters
        ]
        out = jax.vmap(of_example, in_axes=(0, *axes))(x.reshape(examples, rows, width), *given)
        return tuple(array.reshape(-1, k) for array in out)

    choose = on_platforms(target, kernel, otherwise, x.dtype)
    return with_vmap_rule(choose, rule)(x, *parameters)


def scatter(
    width: int, values: Float[Array, "rows k"], indices: UInt[Array, "rows k"]
) -> Float[Array, "rows width"]:
    """The values at their positions in rows of zeros."""
    return scattered(width, *visible(width, values, indices))


def scattered(
    width: int, values: Float[Array, "rows k"], indices: UInt[Array, "rows k"]
) -> Float[Array, "rows width"]:
    """The same of positions within the width."""

    def kernel(values: Array, indices: Array) -> tuple[Array, ...]:
        results = [((values.shape[0], width), values.dtype)]
        return tuple(ffi.call("jaxgnn_cbsr_scatter", [values, indices], results))

    def otherwise(values: Array, indices: Array) -> tuple[Array, ...]:
        return (reference.scatter(width, values, indices),)

    choose = on_platforms("jaxgnn_cbsr_scatter", kernel, otherwise, values.dtype)
    return _by_rows(choose)(values, indices)[0]


def _by_rows(kernel: Any) -> Any:
    """Gives a kernel from rows to a tuple of rows its `vmap` rule: more rows."""

    def rule(call, axis_size, batched, *operands):
        wide = []
        for operand, moves in zip(operands, batched, strict=True):
            if not moves:
                operand = jnp.broadcast_to(operand, (axis_size, *operand.shape))
            wide.append(operand.reshape(-1, operand.shape[-1]))
        outs = call(*wide)
        return tuple(out.reshape(axis_size, -1, out.shape[-1]) for out in outs)

    return with_vmap_rule(kernel, rule)
