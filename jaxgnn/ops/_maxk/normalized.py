r"""The selection from normalized rows: no normalized row is stored, forward or backward.

The kept values are $h = m (s \, n(x) + b)$ at the selected positions, with the normalized row
$n(x)$, the scale $s$, the bias $b$ and dropout's mask $m$. Forward a kernel reads $x$ once. Its
transpose reads $x$ again, for $n(x)$, and writes the gradient of $x$: with $t_c = s_c m_c g_c$ at
the kept positions, 0 elsewhere, and means over the row,

$$\bar x = \frac{t - \mathrm{mean}(t) - n(x) \, \mathrm{mean}(t \, n(x))}{\sqrt{\mathrm{var}(x) +
\varepsilon}}$$

All derivatives, to any order, are those of `_kept` in JAX, of which the kernels compute two.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt, UInt32

from jaxgnn._core import ffi
from jaxgnn._core.custom_jvp import custom_jvp
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import with_vmap_rule
from jaxgnn._core.linear_call import instantiate, is_zero, linear_call
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._maxk import reference, rules, selection_kernels

_TARGET = "jaxgnn_maxk_normalized_gradient"
# Each block of rows has its own sums for the scale and the bias.
_ROWS_OF_A_BLOCK, _MOST_BLOCKS = 512, 64
_ROWS_OF_A_GPU_BLOCK, _MOST_GPU_BLOCKS = 16, 1056  # eight for each multiprocessor of an H200


class Selection(NamedTuple):
    """What is static."""

    k: int
    drop_below: int
    epsilon: float


def select(
    static: Selection,
    x: Float[Array, "rows width"],
    scale: Float[Array, " width"],
    bias: Float[Array, " width"],
    philox_key: UInt32[Array, " 2"] | None,
) -> tuple[Float[Array, "rows k"], UInt[Array, "rows k"]]:
    """`rules.select` of the normalized rows times `scale` (in the accumulation dtype)."""
    operands = jax.lax.stop_gradient((x, scale, bias))
    values, indices = selection_kernels.select_normalized(
        static.k, static.drop_below, static.epsilon, *operands, philox_key
    )
    return _selected(static, (values, indices, philox_key), x, scale, bias), indices


@functools.partial(custom_jvp, nondiff_argnums=(0,))
def _selected(static, selected, x, scale, bias):
    """The selected values, as a function of the rows, the scale and the bias."""
    return selected[0]


def _selected_jvp(static, primals, tangents):
    (_, indices, philox_key), *operands = primals
    values: Array = _selected(static, *primals)  # with the derivative of the outer level
    moving = tangents[1:]
    if is_zero(moving):
        return values, ffi.zeros_like(values)
    fixed = (indices, philox_key)
    moving = tuple(instantiate(t, o) for t, o in zip(moving, operands, strict=True))

    def function(residuals, tangents):
        fixed, operands = residuals
        return jax.jvp(functools.partial(_kept, static, fixed), operands, tangents)[1]

    def transpose(residuals, gradient):
        fixed, (x, scale, _) = residuals
        return _gradients(static, fixed, x, scale, gradient)

    residuals = fixed, tuple(operands)
    return values, linear_call(function, transpose, residuals, moving, like=values)


_selected.defjvp(_selected_jvp, symbolic_zeros=True)


def _kept(static, fixed, x, scale, bias):
    """The values at fixed positions, in JAX."""
    indices, philox_key = fixed
    z = reference.normalize(static.epsilon, x, scale) + bias[None, :]
    values = rules.gather(x.shape[1], indices, z)
    if philox_key is not None:
        values = values * dropout_mask.keep_factors_at(
            philox_key, indices, static.drop_below, values.dtype
        )
    return values.astype(x.dtype)


@functools.partial(custom_jvp, nondiff_argnums=(0,))
def _gradients(static, fixed, x, scale, gradient):
    """The gradients of the rows, the scale and the bias, by that of the selected values."""
    indices, philox_key = fixed
    keys = jnp.zeros((0, 2), jnp.uint32) if philox_key is None else philox_key[None, :]
    rows, width = x.shape
    accumulator = accumulation_dtype(x.dtype)

    def kernel(blocks, x, scale, keys, gradient, indices):
        dx, sums, _ = ffi.call(
            _TARGET,
            [x, scale[None, :], keys, gradient, indices],
            [(x.shape, x.dtype), ((2, width), accumulator), ((blocks, 2 * width), accumulator)],
            drop_below=static.drop_below,
            epsilon=static.epsilon,
        )
        return dx, sums[0], sums[1]

    def otherwise(x, scale, keys, gradient, indices):
        fixed = indices, None if keys.shape[0] == 0 else keys[0]
        return _gradients_in_jax(static, fixed, x, scale, gradient)

    def rule(call, axis_size, batched, *operands):
        del call, axis_size
        return jax.vmap(otherwise, [0 if moves else None for moves in batched])(*operands)

    blocks = min(-(-rows // _ROWS_OF_A_BLOCK), _MOST_BLOCKS)
    gpu_blocks = min(-(-rows // _ROWS_OF_A_GPU_BLOCK), _MOST_GPU_BLOCKS)
    on_cpu, on_gpu = (functools.partial(kernel, number) for number in (blocks, gpu_blocks))
    choose: Any = functools.partial(dispatch, (_TARGET,), on_cpu, otherwise, platforms=("cpu",))
    if x.dtype != jnp.float64:
        choose = functools.partial(dispatch, (_TARGET,), on_gpu, choose, platforms=("cuda",))
    return with_vmap_rule(choose, rule)(x, scale, keys, gradient, indices)


def _gradients_in_jax(static, fixed, x, scale, gradient):
    bias = ffi.zeros_like(scale)
    return jax.vjp(functools.partial(_kept, static, fixed), x, scale, bias)[1](gradient)


@functools.partial(_gradients.defjvp, symbolic_zeros=True)
def _gradients_jvp(static, primals, tangents):
    fixed, *operands = primals
    out = _gradients(static, *primals)
    if is_zero(tangents[1:]):
        return out, tuple(map(ffi.zeros_like, out))
    moving = [instantiate(t, o) for t, o in zip(tangents[1:], operands, strict=True)]
    _, tangent = jax.jvp(functools.partial(_gradients_in_jax, static, fixed), operands, moving)
    return out, tangent
