"""Calls of the CPU's kernels of normalization."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxgnn._core.dispatch import dispatch, on_one_device
from jaxgnn._core.folding import with_vmap_rule

_ROWS_OF_A_BLOCK, _MOST_BLOCKS = 512, 64


def on_cpu(target: str, kernel: Any, otherwise: Any, *operands: Array) -> Any:
    """The kernel on one CPU; what XLA partitions over devices, and examples of `vmap`, by JAX."""
    serve = functools.partial(dispatch, (target,), kernel, otherwise, platforms=("cpu",))

    def rule(call: Any, axis_size: int, batched: Any, *operands: Array) -> Any:
        del call, axis_size
        return jax.vmap(otherwise, [0 if moves else None for moves in batched])(*operands)

    return with_vmap_rule(functools.partial(on_one_device, serve, otherwise), rule)(*operands)


def two_sums(rows: int, width: int, dtype: DTypeLike) -> list[tuple[tuple[int, ...], DTypeLike]]:
    """The results of a kernel with two sums over the rows: the sums, and those of each block of
    rows, which are added in order."""
    blocks = min(-(-rows // _ROWS_OF_A_BLOCK), _MOST_BLOCKS)
    return [((2, width), dtype), ((blocks, 2 * width), dtype)]
