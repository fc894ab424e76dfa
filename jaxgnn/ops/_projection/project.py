"""Products of node rows and a matrix, whose weight gradient a kernel computes."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.linear_call import is_zero, linear_call
from jaxgnn.ops._projection.weight_gradient import product, weight_gradient


def project(
    x: Float[Array, "*rows in_features"],
    kernel: Float[Array, "in_features out_features"],
    precision: Any = None,
) -> Float[Array, "*rows out_features"]:
    r"""$x W$, with the gradient $x^\top \bar y$ of $W$ by `weight_gradient`.

    Args:
        x: rows, along any number of axes.
        kernel: $W$, of the same dtype.
        precision: as that of `jax.lax.dot_general`.
    """
    if x.ndim < 2 or x.dtype != kernel.dtype or not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.matmul(x, kernel, precision=precision)
    x, kernel = ffi.unify_varying(x, kernel)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return _project(precision, rows, kernel).reshape(*x.shape[:-1], kernel.shape[1])


def dot_general(
    lhs: Array, rhs: Array, dimension_numbers: Any, precision: Any = None, **options: Any
) -> Array:
    """`jax.lax.dot_general` for `nnx.Linear`: `project` where no further options are given."""
    contracted, batch = dimension_numbers
    is_projection = (
        rhs.ndim == 2
        and (*contracted[0], *contracted[1]) == (lhs.ndim - 1, 0)
        and not (*batch[0], *batch[1])
        and all(value is None for value in options.values())
    )
    if is_projection:
        return project(lhs, rhs, precision)
    return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision=precision, **options)


_project = jax.custom_jvp(product, nondiff_argnums=(0,))


@functools.partial(_project.defjvp, symbolic_zeros=True)
def _jvp(precision: Any, primals: Any, tangents: Any) -> tuple[Array, Array]:
    # The products of the rule are JAX's own, so that policies of `jax.checkpoint` see them.
    x, kernel = primals
    d_x, d_kernel = tangents
    out = product(precision, x, kernel)
    terms = []
    if not is_zero(d_x):
        terms.append(product(precision, d_x, kernel))
    if not is_zero(d_kernel):
        call = functools.partial(product, precision)
        transpose = functools.partial(weight_gradient, precision)
        terms.append(linear_call(call, transpose, x, d_kernel, out))
    return out, functools.reduce(jnp.add, terms) if terms else ffi.zeros_like(out)
