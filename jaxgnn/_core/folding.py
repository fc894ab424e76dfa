"""How a batch of `vmap` folds into one call on a wider array.

Kernels take arrays of fixed rank, features `[nodes, heads, width]` and edge values
`[edges, heads]`: a batch multiplies the width or the heads.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from jaxgnn._core import ffi


def foldable(kernel: Any, *, edges_out: bool = False) -> Any:
    """Gives `kernel(rows, features, edges)` its `vmap` rule: the batch becomes width or heads.

    Unbatched edge values hold for every example, so the batch widens the features; batched ones
    differ by example, as they differ by head, so it multiplies the heads. Batched graphs (of one
    shape) run one after the other.
    """

    def rule(call, axis_size, in_batched, rows, features, edges):
        rows_batched, features_batched, edges_batched = in_batched
        if any(jax.tree.leaves(rows_batched)):
            return one_by_one(call, in_batched, (rows, features, edges))

        axis = 1 if edges_out or any(edges_batched) else 2

        wide = [
            fold(f, b, axis_size, axis) for f, b in zip(features, features_batched, strict=True)
        ]
        if axis == 1:
            edges = [fold(e, b, axis_size, 1) for e, b in zip(edges, edges_batched, strict=True)]
        out = call(rows, wide, edges)
        return jax.tree.map(lambda a: unfold(a, axis_size, axis), out)

    return with_vmap_rule(kernel, rule)


def foldable_heads(kernel: Any) -> Any:
    """The same for `kernel(rows, arrays)`, all of whose arrays and results have their heads at
    axis 1 and treat each for itself: the batch multiplies the heads."""

    def rule(call, axis_size, in_batched, rows, arrays):
        rows_batched, arrays_batched = in_batched
        if any(jax.tree.leaves(rows_batched)):
            return one_by_one(call, in_batched, (rows, arrays))
        wide = jax.tree.map(lambda a, b: fold(a, b, axis_size, 1), arrays, arrays_batched)
        return jax.tree.map(lambda a: unfold(a, axis_size, 1), call(rows, wide))

    return with_vmap_rule(kernel, rule)


def with_vmap_rule(kernel: Any, rule: Any) -> Any:
    """Gives `kernel` its `vmap` rule, `rule(call, axis_size, in_batched, *operands)`.

    The rule calls `call`, which is what is returned here, and its results are all batched. It is
    not called for an empty batch: rules divide by the batch size.
    """
    call = custom_vmap(kernel)

    def of_any_size(axis_size, in_batched, *operands):
        if axis_size == 0:
            out = _no_examples(call, in_batched, operands)
        else:
            out = rule(call, axis_size, in_batched, *operands)
        return out, jax.tree.map(lambda _: True, out)

    call.def_vmap(of_any_size)
    return call


def sequential(kernel: Any) -> Any:
    """Gives `kernel` the rule of one example after the other."""

    def rule(call, axis_size, in_batched, *operands):
        del axis_size
        return one_by_one(call, in_batched, operands)

    return with_vmap_rule(kernel, rule)


def _no_examples(call: Any, in_batched: Any, operands: Any) -> Any:
    """The results of `call` for a batch of none."""

    def one(array: Array, batched: bool) -> Any:
        return jax.ShapeDtypeStruct(array.shape[1:] if batched else array.shape, array.dtype)

    results = jax.eval_shape(call, *jax.tree.map(one, operands, tuple(in_batched)))
    return jax.tree.map(lambda r: ffi.zeros((0, *r.shape), r.dtype, operands), results)


def fold(array: Array, batched: bool, size: int, axis: int) -> Array:
    """Multiplies an axis by the batch, before it; what is not batched holds for every example."""
    if not batched:
        array = jnp.broadcast_to(array, (size, *array.shape))
    shape = array.shape[1:]
    array = jnp.moveaxis(array, 0, axis)
    return array.reshape(*shape[:axis], size * shape[axis], *shape[axis + 1 :])


def unfold(array: Array, size: int, axis: int) -> Array:
    """The inverse, the batch at the first axis."""
    shape = array.shape
    split = array.reshape(*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :])
    return jnp.moveaxis(split, axis, 0)


def one_by_one(call: Any, in_batched: Any, operands: Any) -> Any:
    """`call` on one example after the other; operands that are not batched hold for all."""
    leaves, treedef = jax.tree.flatten(operands)
    batched = jax.tree.leaves(in_batched)
    moving = [leaf for leaf, b in zip(leaves, batched, strict=True) if b]

    def one(moving):
        moving = iter(moving)
        mixed = [next(moving) if b else leaf for leaf, b in zip(leaves, batched, strict=True)]
        return call(*jax.tree.unflatten(treedef, mixed))

    return jax.lax.map(one, moving)
