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
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import with_vmap_rule
from jaxgnn._core.known_gradients import KnownGradients, gradients_by_jax
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._core.normalize import normalize
from jaxgnn.ops._maxk import rules, selection_kernels

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
    return _selected(static, values, (indices, philox_key), x, scale, bias), indices


def _kept(static, fixed, x, scale, bias):
    """The values at fixed positions, in JAX."""
    indices, philox_key = fixed
    z = normalize(static.epsilon, x, scale) + bias[None, :]
    values = rules.gather(x.shape[1], indices, z)
    if philox_key is not None:
        values = values * dropout_mask.keep_factors_at(
            philox_key, indices, static.drop_below, values.dtype
        )
    return values.astype(x.dtype)


def _gradients(static, fixed, gradient, x, scale, bias):
    """The gradients of the rows, the scale and the bias, by that of the selected values."""
    indices, philox_key = fixed
    keys = jnp.zeros((0, 2), jnp.uint32) if philox_key is None else philox_key[None, :]
    rows, width = x.shape
    accumulator = accumulation_dtype(x.dtype)

    def kernel(blocks, indices, keys, gradient, x, scale, bias):
        del bias
        dx, sums, _ = ffi.call(
            _TARGET,
            [x, scale[None, :], keys, gradient, indices],
            [(x.shape, x.dtype), ((2, width), accumulator), ((blocks, 2 * width), accumulator)],
            drop_below=static.drop_below,
            epsilon=static.epsilon,
        )
        return dx, sums[0], sums[1]

    def otherwise(indices, keys, *operands):
        fixed = indices, None if keys.shape[0] == 0 else keys[0]
        return gradients_by_jax(_kept, static, fixed, *operands)

    def rule(call, axis_size, batched, *operands):
        del call, axis_size
        return jax.vmap(otherwise, [0 if moves else None for moves in batched])(*operands)

    blocks = min(-(-rows // _ROWS_OF_A_BLOCK), _MOST_BLOCKS)
    gpu_blocks = min(-(-rows // _ROWS_OF_A_GPU_BLOCK), _MOST_GPU_BLOCKS)
    on_cpu, on_gpu = (functools.partial(kernel, number) for number in (blocks, gpu_blocks))
    choose: Any = functools.partial(dispatch, (_TARGET,), on_cpu, otherwise, platforms=("cpu",))
    if x.dtype != jnp.float64:
        choose = functools.partial(dispatch, (_TARGET,), on_gpu, choose, platforms=("cuda",))
    return with_vmap_rule(choose, rule)(indices, keys, gradient, x, scale, bias)


_selected = KnownGradients(_kept, lambda static, values, *_: values, _gradients)
"""The selected values, which are known, as a function of the rows, the scale and the bias."""
