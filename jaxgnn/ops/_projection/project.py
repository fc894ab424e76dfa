"""Projections of node rows: the weight gradient by a kernel, the bias gradient in float32."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
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


def add_bias(
    rows: Float[Array, "*rows features"], bias: Float[Array, " features"]
) -> Float[Array, "*rows features"]:
    """The rows and the bias added in the dtype of the rows.

    The bias's gradient is summed in the accumulation dtype and rounded once, to the bias's dtype:
    JAX would sum the gradients of 16-bit rows in 16 bits.
    """
    rows, bias = ffi.unify_varying(rows, bias.astype(accumulation_dtype(rows.dtype)))
    row = bias.reshape((1,) * (rows.ndim - 1) + bias.shape)
    return rows + jnp.broadcast_to(row, rows.shape).astype(rows.dtype)


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
