r"""Linear maps with a known transpose, which differentiate forward and backward to every order.

`linear_call(function, transpose, residuals, operands, like)` is `function(residuals, operands)`,
linear in the operands. Unlike `jax.custom_derivatives.linear_call` it also has derivatives by the
residuals, and a `vmap` rule, and traces `function` only where it is computed: reverse mode asks
for the transpose alone.

`Multilinear(function, transposes)` makes a differentiable operation out of a map that is linear in
each operand:

$$d f(a, b) = f(da, b) + f(a, db)$$

where each term is a linear call, whose transpose a kernel computes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, mlir
from jaxtyping import Array

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.custom_jvp import custom_jvp
from jaxgnn._core.primitive import make_primitive


def linear_call(
    function: Callable[[Any, Any], Any],
    transpose: Callable[[Any, Any], Any],
    residuals: Any,
    operands: Any,
    like: Any,
) -> Any:
    """`function(residuals, operands)`, linear in `operands`.

    Args:
        function: differentiable by the residuals, if these are differentiated.
        transpose: of the residuals and the results' cotangents, those of the operands; the same.
        residuals: a pytree without derivatives of its own in this call.
        operands: a pytree of floating arrays.
        like: a pytree of arrays of the results' types.
    """
    flat_residuals, residual_tree = jax.tree.flatten(residuals)
    flat_operands, operand_tree = jax.tree.flatten(operands)
    results, result_tree = jax.tree.flatten(like)
    out = _primitive().bind(
        *flat_residuals,
        *flat_operands,
        function=_flatten(function, residual_tree, operand_tree),
        transpose=_flatten(transpose, residual_tree, result_tree),
        num_residuals=len(flat_residuals),
        types=tuple(map(_type_of, results)),
    )
    return jax.tree.unflatten(result_tree, out)


def is_zero(tangent: Any) -> bool:
    """Whether a tangent, that a rule with `symbolic_zeros` got, is known to be 0."""
    return all(isinstance(leaf, SymbolicZero) for leaf in jax.tree.leaves(tangent))


def instantiate(tangent: Any, primal: Array) -> Array:
    """The tangent, as an array of zeros if it is a symbolic one."""
    if not isinstance(tangent, SymbolicZero):
        return tangent
    return ffi.zeros_like(primal)


class Multilinear:
    """The differentiable `operation(static, fixed, *operands)`, linear in each operand.

    Args:
        function: of what is static (hashable), what has no derivative, and the operands, any of
            which may be `None`; has no derivative itself.
        transposes: for each operand, of the same arguments with the results' cotangent in the
            place of that operand, the operand's cotangent. They are made of such operations.
    """

    def __init__(
        self, function: Callable[..., Array], transposes: Sequence[Callable[..., Array]]
    ) -> None:
        self._call = custom_jvp(function, nondiff_argnums=(0,), multilinear=True)
        self._call.defjvp(self._jvp, symbolic_zeros=True)
        self._transposes = transposes

    def __call__(self, static: Any, fixed: Any, *operands: Any) -> Array:
        return self._call(static, fixed, *operands)

    def linear(self, which: int, static: Any, fixed: Any, *operands: Any, like: Array) -> Array:
        """The same, transposable by operand number `which`: for tangents in derivative rules.

        Args:
            like: an array of the result's type.
        """

        def with_operand(call: Callable[..., Array]) -> Callable[[Any, Any], Array]:
            def run(residuals: Any, operand: Any) -> Array:
                fixed, others = residuals
                return call(static, fixed, *others[:which], operand, *others[which:])

            return run

        others = (*operands[:which], *operands[which + 1 :])
        function, transpose = with_operand(self), with_operand(self._transposes[which])
        return linear_call(function, transpose, (fixed, others), operands[which], like)

    def _jvp(self, static: Any, primals: Any, tangents: Any) -> tuple[Array, Array]:
        fixed, *operands = primals
        out = self(static, fixed, *operands)
        terms = [
            self.linear(
                which, static, fixed, *operands[:which], tangent, *operands[which + 1 :], like=out
            )
            for which, tangent in enumerate(tangents[1:])
            if not is_zero(tangent)
        ]
        if not terms:
            return out, ffi.zeros_like(out)
        return out, functools.reduce(jnp.add, terms)


def _type_of(array: Any) -> Any:
    """The type without what is known of the value alone."""
    return jax.typeof(array).update(weak_type=False)


def _flatten(function: Callable[[Any, Any], Any], residual_tree: Any, operand_tree: Any) -> Any:
    """`function` of lists of leaves, which returns one."""

    def flat(residuals: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        out = function(
            jax.tree.unflatten(residual_tree, residuals), jax.tree.unflatten(operand_tree, operands)
        )
        return jax.tree.leaves(out)

    return config.pinned(flat)


def _run(*args: Any, function: Any, num_residuals: int, **_: Any) -> list[Any]:
    return function(tuple(args[:num_residuals]), tuple(args[num_residuals:]))


def _jvp(primals: Any, tangents: Any, *, function: Any, num_residuals: int, **params: Any) -> Any:
    bind = functools.partial(
        _primitive().bind, function=function, num_residuals=num_residuals, **params
    )
    residuals, operands = primals[:num_residuals], tuple(primals[num_residuals:])
    d_residuals, d_operands = tangents[:num_residuals], tangents[num_residuals:]
    out = bind(*primals)
    terms = []
    if any(type(t) is not ad.Zero for t in d_operands):
        terms.append(bind(*residuals, *map(ad.instantiate_zeros, d_operands)))
    moving = [i for i, t in enumerate(d_residuals) if type(t) is not ad.Zero]
    if moving:

        def of_residuals(*values: Any) -> list[Any]:
            all_residuals = list(residuals)
            for i, value in zip(moving, values, strict=True):
                all_residuals[i] = value
            return function(tuple(all_residuals), operands)

        values = tuple(residuals[i] for i in moving)
        terms.append(jax.jvp(of_residuals, values, tuple(d_residuals[i] for i in moving))[1])
    if not terms:
        return out, [ad.Zero(jax.typeof(o).to_tangent_aval()) for o in out]
    return out, [functools.reduce(jnp.add, parts) for parts in zip(*terms, strict=True)]


def _transpose(
    cotangents: Any, *args: Any, function: Any, transpose: Any, num_residuals: int, types: Any
) -> list[Any]:
    residuals, operands = args[:num_residuals], args[num_residuals:]
    unknown = [ad.is_undefined_primal(operand) for operand in operands]
    cotangents = map(ad.instantiate_zeros, cotangents)
    out = _primitive().bind(
        *residuals,
        *cotangents,
        function=transpose,
        transpose=function,
        num_residuals=num_residuals,
        types=tuple(
            operand.aval if moves else _type_of(operand)
            for operand, moves in zip(operands, unknown, strict=True)
        ),
    )
    return [None] * num_residuals + [o if u else None for o, u in zip(out, unknown, strict=True)]


def _batch(
    args: Any, axes: Any, *, function: Any, transpose: Any, num_residuals: int, types: Any
) -> Any:
    size = next(a.shape[axis] for a, axis in zip(args, axes, strict=True) if axis is not None)
    residual_axes = tuple(axes[:num_residuals])
    operands = []
    for operand, axis in zip(args[num_residuals:], axes[num_residuals:], strict=True):
        # One for each example: the transpose's results differ by example.
        if axis is None:
            operands.append(jnp.broadcast_to(operand, (size, *operand.shape)))
        else:
            operands.append(jnp.moveaxis(operand, axis, 0))
    out = _primitive().bind(
        *args[:num_residuals],
        *operands,
        function=jax.vmap(function, in_axes=(residual_axes, 0), axis_size=size),
        transpose=jax.vmap(transpose, in_axes=(residual_axes, 0), axis_size=size),
        num_residuals=num_residuals,
        types=tuple(t.update(shape=(size, *t.shape)) for t in types),
    )
    return out, [0] * len(out)


@functools.cache
def _primitive() -> Any:
    primitive = make_primitive("jaxgnn_linear_call", _run, _batch)
    ad.primitive_jvps[primitive] = _jvp
    ad.primitive_transposes[primitive] = _transpose
    mlir.register_lowering(primitive, mlir.lower_fun(_run, multiple_results=True))
    return primitive
