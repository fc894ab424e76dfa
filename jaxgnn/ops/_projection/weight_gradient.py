r"""The gradient of a projection's weights: $x^\top g$, a sum over many rows for few numbers.

XLA's CPU backend shares a product out by the numbers of its result, and leaves this one to a
thread. On a GPU XLA shares out the rows, of copies of both operands that it pads to a multiple of
its shares. The kernels share out the rows as they are.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch, on_one_device
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import with_vmap_rule
from jaxgnn._core.linear_call import Multilinear

_TARGET = "jaxgnn_weight_gradient"
_ROWS_OF_A_BLOCK, _MOST_BLOCKS = 512, 64
_GPU_ROWS_OF_A_BLOCK = 128
# Of the blocks' sums together, 16 MB in float32.
_MOST_SUMS = 1 << 22
# What the kernels are faster for (benchmarks/experiments/weight_gradient.py).
_LEAST_ROWS = 256
_MOST_NUMBERS = 1 << 15
_LEAST_GPU_ROWS = 1 << 14
_MOST_GPU_TILES = 10
# XLA copies nothing of a multiple of so many rows, but its products of many rows of 16 bits, and
# of float32 rows that are no multiple of 16 bytes, are slow still.
_UNPADDED_ROWS, _MANY_ROWS, _ALIGNED_BYTES = 128, 1 << 16, 16
# Precisions of float32 products for which XLA takes TF32 or less.
_UP_TO_TF32 = ("none", "default", "fastest", "bfloat16", "tensorfloat32")
_GPU_TILE = 128  # numbers of a tile's sides
_GPU_BLOCKS = 264  # in all: two for each multiprocessor of an H200


def product(
    precision: Any, x: Float[Array, "rows in_features"], kernel: Float[Array, "in_features out"]
) -> Float[Array, "rows out"]:
    """$x W$ by XLA."""
    return jax.lax.dot_general(x, kernel, (((1,), (0,)), ((), ())), precision=precision)


def sum_over_rows(
    x: Float[Array, "rows in_features"],
    g: Float[Array, "rows out_features"],
    precision: Any = None,
) -> Float[Array, "in_features out_features"]:
    r"""$x^\top g$, of operands of one dtype, without a derivative.

    The kernels' sums are in the accumulation dtype and do not depend on the number of threads.
    `precision` is that of XLA's product, which runs where it is above a GPU's default (TF32 for
    float32), under `vmap`, where rows are few or features many, and where XLA partitions the rows
    over devices: it would gather the operands of a kernel on each.
    """
    otherwise = functools.partial(by_xla, precision)
    serve: Any = otherwise
    if pays(x, g):
        serve = functools.partial(dispatch, (_TARGET,), by_kernel, otherwise, platforms=("cpu",))
    if pays_on_gpu(x, g, precision):
        serve = functools.partial(dispatch, (_TARGET,), by_gpu_kernel, serve, platforms=("cuda",))
    if serve is otherwise:
        return otherwise(x, g)

    def rule(call: Any, axis_size: int, batched: Any, x: Array, g: Array) -> Array:
        del call, axis_size
        return jax.vmap(otherwise, [0 if moves else None for moves in batched])(x, g)

    return with_vmap_rule(functools.partial(on_one_device, serve, otherwise), rule)(x, g)


def by_kernel(
    x: Float[Array, "rows in_features"], g: Float[Array, "rows out_features"]
) -> Float[Array, "in_features out_features"]:
    """`sum_over_rows` by a CPU's kernel, of at least a row and a feature of each."""
    size = x.shape[1] * g.shape[1]
    return _in_blocks(x, g, _ROWS_OF_A_BLOCK, min(_MOST_BLOCKS, max(_MOST_SUMS // size, 1)))


def by_gpu_kernel(
    x: Float[Array, "rows in_features"],
    g: Float[Array, "rows out_features"],
    *,
    warpgroups: bool = True,
) -> Float[Array, "in_features out_features"]:
    """The same by a GPU's, of rows whose bytes are a multiple of 4.

    With `warpgroups` a Hopper runs its own kernels, else those of all devices.
    """
    # One block more than the GPU holds at a time would take as long again.
    most_blocks = max(_GPU_BLOCKS // _gpu_tiles(x, g), 1)
    return _in_blocks(x, g, _GPU_ROWS_OF_A_BLOCK, most_blocks, warpgroups)


def _in_blocks(
    x: Array, g: Array, least_rows: int, most_blocks: int, warpgroups: bool = True
) -> Array:
    shape = (x.shape[1], g.shape[1])
    blocks = min(-(-x.shape[0] // least_rows), most_blocks)
    scratch = (blocks, shape[0] * shape[1]), accumulation_dtype(x.dtype)
    results = [(shape, x.dtype), scratch]
    return ffi.call(_TARGET, [x, g], results, warpgroups=warpgroups)[0]


def _gpu_tiles(x: Array, g: Array) -> int:
    return -(-x.shape[1] // _GPU_TILE) * -(-g.shape[1] // _GPU_TILE)


def by_xla(
    precision: Any, x: Float[Array, "rows in_features"], g: Float[Array, "rows out_features"]
) -> Float[Array, "in_features out_features"]:
    """`sum_over_rows` as JAX transposes a product."""
    return jax.lax.dot_general(g, x, (((0,), (0,)), ((), ())), precision=precision).T


def pays(x: Float[Array, "rows in_features"], g: Float[Array, "rows out_features"]) -> bool:
    """Whether the kernel is faster on a CPU than XLA's product."""
    numbers = x.shape[1] * g.shape[1]
    return x.shape[0] >= _LEAST_ROWS and 0 < numbers <= _MOST_NUMBERS


def pays_on_gpu(
    x: Float[Array, "rows in_features"], g: Float[Array, "rows out_features"], precision: Any
) -> bool:
    """Whether the kernel is faster on a GPU than XLA's product, and as precise."""
    if precision is None:
        precision = jax.config.jax_default_matmul_precision  # pyright: ignore
    size = x.dtype.itemsize
    if x.dtype == jnp.float64 or any(a.shape[1] * size % 4 for a in (x, g)):
        return False
    precise = size < 4 or str(precision).lower() in _UP_TO_TF32
    rows = x.shape[0]
    slow = rows % _UNPADDED_ROWS != 0 or (size < 4 and rows >= _MANY_ROWS)
    slow = slow or (size == 4 and any(a.shape[1] * size % _ALIGNED_BYTES for a in (x, g)))
    many = rows >= _LEAST_GPU_ROWS and 0 < _gpu_tiles(x, g) <= _MOST_GPU_TILES
    return precise and many and slow


def _function(precision: Any, fixed: None, x: Array, g: Array) -> Array:
    del fixed
    return sum_over_rows(x, g, precision)


# Linear in x and in g. In the place of x or g the transposes get the cotangent.
_weight_gradient = Multilinear(
    _function,
    [
        lambda precision, fixed, ct, g: product(precision, g, ct.T),
        lambda precision, fixed, x, ct: product(precision, x, ct),
    ],
)


def weight_gradient(
    precision: Any, x: Float[Array, "rows in_features"], g: Float[Array, "rows out_features"]
) -> Float[Array, "in_features out_features"]:
    """`sum_over_rows`, differentiable."""
    return _weight_gradient(precision, None, x, g)
