"""The MaxK nonlinearity, and the compressed balanced sparse rows that it leaves."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.arguments import unwrap
from jaxgnn._core.custom_jvp import custom_jvp
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.ops._core import checks, dropout_mask
from jaxgnn.ops._core.sparse_rows import (
    MAX_WIDTH,
    SparseRows,
    index_dtype,
    scatter,
    sparse_rows_argument,
)
from jaxgnn.ops._maxk import normalized, reference, rules

_MAX_PACKED = 1024  # a word has 10 bits for the column


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["values", "indices"],
    meta_fields=["width", "packed", "sharding"],
)
@dataclasses.dataclass(frozen=True)
class CBSR(SparseRows):
    """Compressed balanced sparse rows: the same number of entries, `k`, in every row of a matrix.

    `maxk` makes them. Leading axes beyond one are allowed, except in `maxk_spmm`;
    `gat_attention` takes two, nodes and heads.

    Attributes:
        values: the entries.
        indices: their columns, distinct and ascending in each row, below `width`; uint8 for
            widths up to 256, else uint16. What operations make of a column that a row has twice is
            undefined: some add its entries, others keep one. They check the columns only where
            `jaxgnn.config.check_graphs` is set.
        width: the number of columns, static.
        packed: a promise that float32 values have at most 15 bits of mantissa, 13 in rows wider
            than 256, static; see `maxk`.
        sharding: how the rows of a sharded graph's nodes are split over devices, static; `None`
            for rows on one device.

    Source: MaxK-GNN (Peng et al., ASPLOS 2024, section 3.2).
    """

    values: Float[Array, "*rows k"]
    indices: UInt[Array, "*rows k"]
    width: int
    packed: bool = False
    sharding: NamedSharding | None = None

    def astype(self, dtype: DTypeLike) -> CBSR:
        """The same entries with values of `dtype`; `packed` only where that rounds none again."""
        same = jnp.dtype(dtype) == self.dtype
        return dataclasses.replace(
            self, values=self.values.astype(dtype), packed=self.packed and same
        )

    @jax.named_scope("jaxgnn.cbsr_to_dense")
    def to_dense(self, *, impl: Impl = None) -> Float[Array, "*rows width"]:
        """The dense matrix, 0 where there is no entry; its derivative gathers the entries.

        Raises:
            TypeError: the values are not floating, or the indices not of the width's type.
            ValueError: the two differ in shape, there are more entries than columns, or `impl` is
                unknown.
        """
        if self.sharding is not None:
            # Under plain jit XLA would gather all rows before the custom call.
            mesh, spec = self.sharding.mesh, self.sharding.spec
            to_dense = functools.partial(CBSR.to_dense, impl=impl)
            on_devices = jax.shard_map(to_dense, mesh=mesh, in_specs=spec, out_specs=spec)
            return on_devices(dataclasses.replace(self, sharding=None))
        cbsr = sparse_rows_argument(self, "self")
        if self.values.size == 0:
            return jnp.zeros(self.shape, self.dtype)
        dense: Array
        values = cbsr.values.reshape(self.num_rows, self.k)
        indices = cbsr.indices.reshape(self.num_rows, self.k)
        impl = chosen(impl)
        if impl == "jax":
            dense = scatter(self.width, values, indices)
        else:
            values, indices = ffi.unify_varying(values, indices)
            with config.use(impl=impl):
                dense = rules.scatter(self.width, indices, values)
        return dense.reshape(self.shape)


@jax.named_scope("jaxgnn.maxk")
def maxk(
    x: Float[Array, "*rows width"],
    k: int,
    *,
    norm_epsilon: float | None = None,
    norm_scale: Float[Array, " width"] | None = None,
    bias: Float[Array, " width"] | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    active: Int[Array, ""] | int | None = None,
    packed: bool = False,
    impl: Impl = None,
) -> CBSR:
    r"""Keeps the `k` largest entries of each row, after layer normalization, a bias and dropout if
    they are given.

    $$h_{ic} = z_{ic} \text{ if } z_{ic} \text{ is among the } k \text{ largest of } z_i,
    \text{ else } 0, \qquad z_{ic} = m_{ic} (s_c \, n(x_i)_c + b_c), \qquad
    n(x_i) = \frac{x_i - \mathrm{mean}(x_i)}{\sqrt{\mathrm{var}(x_i) + \varepsilon}}$$

    with $\varepsilon$ = `norm_epsilon` (without it, $s \, n(x)$ is $x$), $s$ = `norm_scale`, 1
    without, $b$ = `bias`, 0 without, and $m$ dropout's mask with its scale $1 / (1 - p)$, 1
    without.

    Of equal entries the one with the lower column is kept; -0 equals +0; NaN counts as the
    largest, so that it stays visible. The derivative passes the kept positions and no other: there
    the gradient of $s \, n(x) + b$ is $m$ times that of $h$, and that of $b$ the sum of it over the
    rows.

    Normalization, bias and dropout are fused, which saves their passes over $x$: $z$ and $m$ are
    never stored, and the backward pass recomputes $m$ at the kept positions, and $n$ from $x$. $z$
    is computed in float32 (float64 for float64) and rounded once to the dtype of $x$, before the
    selection. Dropped entries are +0, whatever they were, and may be among the $k$ largest.

    The mask is a function of the key, the row and the column alone (Philox4x32-10), so that all
    implementations agree: $m_{ic} = 0$ where word $c \bmod 4$ of the block of the counter
    $(i, \lfloor c / 4 \rfloor)$ is below $2^{32} p$. Rows are numbered over all leading axes; under
    `vmap` in each example anew, and under `shard_map` on each device, where a key of each device's
    own (`jax.random.fold_in` of `jax.lax.axis_index`) keeps their masks apart.

    Args:
        x: rows of at most 4,096 columns, and any number of leading axes.
        k: entries to keep, from 1 to the width.
        norm_epsilon: normalize each row (`nnx.LayerNorm`), with this added to its variance.
        norm_scale: multiplies each normalized row, `[width]`, of any floating dtype.
        bias: added to each row, `[width]`, of any floating dtype.
        dropout_rate: share of the entries dropped, at least 0 and below 1.
        dropout_rng: a JAX key, for a `dropout_rate` above 0.
        active: for a schedule without compiling again at every step: of the `k` entries only the
            `active` largest keep their values, by the same rule; the others become 0. An integer
            scalar from 1 to `k`, which may be traced (then it is clipped to that range).
        packed: round values of float32 to 15 of their 23 bits of mantissa (to nearest, a relative
            error of at most 2^-16), of rows wider than 256 to 13 (2^-14), so that a value and its
            column fit in 4 bytes, of which `maxk_spmm` over `Graph.with_windows` then reads fewer
            on a GPU. The derivative is as without rounding. 16-bit values fit as they are.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.
            Rows of float64 run in JAX on a GPU.

    Returns:
        `CBSR` with values `[..., k]` in the dtype of `x`.

    Raises:
        TypeError: `x`, `norm_scale` or `bias` is not floating, `k` or `active` is no integer,
            `norm_epsilon` no number, or the rate or the key is none.
        ValueError: `k`, `active`, `norm_epsilon` or the rate is out of range, the key is missing,
            the scale or the bias has another shape, a scale is given without `norm_epsilon`, a row
            is wider than 4,096, or `packed` rows are of float64 or wider than 1,024.

    Source: MaxK-GNN (Peng et al., ASPLOS 2024, section 3.1). Layer normalization: Ba et al.
    (2016). The generator: Salmon et al. (SC 2011).
    """
    x = checks.floating(x, "x")
    if x.ndim == 0:
        raise ValueError("x: expected rows of shape (..., width), got a scalar")
    leading, width = x.shape[:-1], x.shape[-1]
    if width > MAX_WIDTH:
        raise ValueError(f"x: expected rows of at most {MAX_WIDTH} entries, got {width}")
    if width == 0:
        raise ValueError(f"x: expected rows of at least one entry, got the shape {x.shape}")
    k = checks.integer(k, "k", 1, width)
    packed = checks.boolean(packed, "packed")
    if packed and (x.dtype == jnp.float64 or width > _MAX_PACKED):
        raise ValueError(
            f"packed: expected rows of at most {_MAX_PACKED} entries of 32 or 16 bits, "
            f"got {width} of {x.dtype}"
        )
    accumulator = accumulation_dtype(x.dtype)
    bias = _row_argument(bias, "bias", width, accumulator)
    scale = _row_argument(norm_scale, "norm_scale", width, accumulator)
    epsilon = 0.0
    if norm_epsilon is not None:
        # Below float32's largest number: it is added in the accumulation dtype.
        epsilon = checks.number(norm_epsilon, "norm_epsilon", 0, 1e38)
        scale = jnp.ones(width, accumulator) if scale is None else scale
        bias = jnp.zeros(width, accumulator) if bias is None else bias
    elif scale is not None:
        raise ValueError("norm_scale: expected None without norm_epsilon, got an array")
    drop_below, philox_key = dropout_mask.arguments(dropout_rate, dropout_rng)
    rows = x.reshape(math.prod(leading), width)
    impl = chosen(impl)
    selected: tuple[Array, Array]
    if x.size == 0:
        selected = jnp.zeros((0, k), x.dtype), jnp.zeros((0, k), index_dtype(width))
    elif impl == "jax":
        if bias is not None or philox_key is not None:  # else NaN would lose their payload
            normalization = None if scale is None else (epsilon, scale)
            rows = reference.transform(drop_below, rows, bias, philox_key, normalization)
        selected = reference.select(k, rows)
    else:
        rows, scale, bias, philox_key = ffi.unify_varying(rows, scale, bias, philox_key)
        with config.use(impl=impl):
            if scale is None or bias is None:
                selected = rules.select(k, drop_below, rows, bias, philox_key)
            else:
                static = normalized.Selection(k, drop_below, epsilon)
                selected = normalized.select(static, rows, scale, bias, philox_key)
    values, indices = selected
    if active is not None:
        values = _keep_active(values, _active_argument(active, k))
    if packed and values.dtype == jnp.float32:
        values = _rounded(15 if width <= 256 else 13, values)
    return CBSR(values.reshape(*leading, k), indices.reshape(*leading, k), width, packed)


def _row_argument(value: Any, name: str, width: int, dtype: DTypeLike) -> Array | None:
    if value is None:
        return None
    value = checks.floating(value, name)
    if value.shape != (width,):
        raise ValueError(f"{name}: expected the shape ({width},), got {value.shape}")
    return value.astype(dtype)


@functools.partial(custom_jvp, nondiff_argnums=(0,))
def _rounded(bits: int, values: Float[Array, "rows k"]) -> Float[Array, "rows k"]:
    """So many bits of mantissa, of finite values the nearest finite one; the derivative passes
    through."""
    most = np.float32((2 - 2.0**-bits) * 2.0**127)
    finite = jnp.where(jnp.isinf(values), values, jnp.clip(values, -most, most))
    return jax.lax.reduce_precision(finite, exponent_bits=8, mantissa_bits=bits)


@_rounded.defjvp
def _rounded_jvp(bits, primals, tangents):
    return _rounded(bits, *primals), tangents[0]


def _active_argument(active: Any, k: int) -> Int[Array, ""]:
    active = unwrap(active)
    if not isinstance(active, Tracer):
        return jnp.asarray(checks.integer(active, "active", 1, k), jnp.int32)
    if active.ndim != 0 or not jnp.issubdtype(active.dtype, jnp.integer):
        raise TypeError(f"active: expected an integer scalar, got {active.dtype}{active.shape}")
    return jnp.clip(active.astype(jnp.int32), 1, k)


def _keep_active(values: Float[Array, "rows k"], active: Int[Array, ""]) -> Array:
    """Zero for all but the `active` largest entries of each row, lower columns first at ties."""
    keys = reference.sort_keys(values)
    descending = jnp.flip(jnp.sort(keys, axis=-1), axis=-1)
    threshold = jax.lax.dynamic_index_in_dim(descending, active - 1, axis=-1)
    above, equal = keys > threshold, keys == threshold
    # As many of the equal ones, from the left, as there is room for.
    room = active - jnp.sum(above, axis=-1, keepdims=True, dtype=jnp.int32)
    kept = above | (equal & (jnp.cumsum(equal, axis=-1, dtype=jnp.int32) <= room))
    return jnp.where(kept, values, jnp.zeros_like(values))
