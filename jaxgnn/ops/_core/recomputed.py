"""How fused operations are differentiated: by kernels that recompute the edges' values.

Reverse mode runs the kernels' gradients. Forward mode, derivatives of the gradients, and platforms
without these kernels, run the reference, which holds O(E) intermediates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn._core import ffi
from jaxgnn._core.custom_jvp import custom_jvp
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.linear_call import instantiate, is_zero, linear_call


def recomputed(
    targets: tuple[str, ...],
    forward: Callable[[Any, Any], tuple[Array, Any]],
    gradients: Callable[..., Any],
    reference: Callable[[Any, Any], Array],
    platforms: tuple[str, ...] = ("cpu", "cuda"),
) -> Callable[[Any, Any], tuple[Array, Any]]:
    """The differentiable `operation(static, operands)`, which returns what `forward` does.

    Operands are a pytree; only its floating leaves have derivatives.

    Args:
        targets: the FFI targets of the two that follow.
        forward: of what is static (hashable) and the operands, the result, and residuals for
            `gradients` alone, whose own derivatives are taken for 0.
        gradients: of what is static, the operands, the result, the residuals and the result's
            cotangent, a pytree whose leaves are the cotangents of the operands' floating leaves.
        reference: the result out of operations that have derivatives.
        platforms: those that the kernels are written for.
    """

    @functools.partial(custom_jvp, nondiff_argnums=(0,))
    def operation(static, operands):
        kernel = functools.partial(forward, static)

        def otherwise(operands):
            residuals = jax.eval_shape(kernel, operands)[1]
            absent = jax.tree.map(lambda r: ffi.zeros(r.shape, r.dtype, operands), residuals)
            return reference(static, operands), absent

        return dispatch(targets, kernel, otherwise, operands, platforms=platforms)

    def operation_jvp(static, primals, tangents):
        (operands,) = primals
        out, residuals = operation(static, operands)
        d_residuals = jax.tree.map(ffi.zeros_like, residuals)
        if is_zero(tangents):
            return (out, residuals), (ffi.zeros_like(out), d_residuals)

        def pushforward(saved, d_values):
            operands, _, _ = saved
            value = functools.partial(_with_values, reference, static, operands)
            return jax.jvp(value, (floating(operands),), (d_values,))[1]

        def pullback(saved, cotangent):
            return operation_gradients(static, saved, cotangent)

        d_out = linear_call(
            pushforward,
            pullback,
            (operands, *jax.lax.stop_gradient((out, residuals))),
            _floating_tangents(operands, tangents[0]),
            out,
        )
        return (out, residuals), (d_out, d_residuals)

    operation.defjvp(operation_jvp, symbolic_zeros=True)

    @functools.partial(custom_jvp, nondiff_argnums=(0,))
    def operation_gradients(static, saved, cotangent):
        def kernel(saved, cotangent):
            return jax.tree.leaves(gradients(static, *saved, cotangent))

        def otherwise(saved, cotangent):
            operands, *_ = saved
            value = functools.partial(_with_values, reference, static, operands)
            return jax.vjp(value, floating(operands))[1](cotangent)[0]

        return dispatch(targets, kernel, otherwise, saved, cotangent, platforms=platforms)

    def operation_gradients_jvp(static, primals, tangents):
        # The result and the residuals are functions of the operands: the derivative by these is
        # the whole one.
        (operands, *_), cotangent = primals

        def of_reference(values, cotangent):
            value = functools.partial(_with_values, reference, static, operands)
            return jax.vjp(value, values)[1](cotangent)[0]

        (d_operands, *_), d_cotangent = tangents
        moving = (_floating_tangents(operands, d_operands), instantiate(d_cotangent, cotangent))
        d_gradients = jax.jvp(of_reference, (floating(operands), cotangent), moving)[1]
        return operation_gradients(static, *primals), d_gradients

    operation_gradients.defjvp(operation_gradients_jvp, symbolic_zeros=True)
    return operation


def floating(operands: Any) -> list[Array]:
    """The leaves that have derivatives."""
    return [leaf for leaf in jax.tree.leaves(operands) if _is_floating(leaf)]


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _with_values(function: Any, static: Any, operands: Any, values: list[Array]) -> Array:
    """`function(static, operands)` with other values of the floating leaves."""
    leaves, tree = jax.tree.flatten(operands)
    rest = iter(values)
    leaves = [next(rest) if _is_floating(leaf) else leaf for leaf in leaves]
    return function(static, jax.tree.unflatten(tree, leaves))


def _floating_tangents(operands: Any, tangents: Any) -> list[Array]:
    leaves = jax.tree.leaves(operands)
    return [
        instantiate(tangent, leaf)
        for leaf, tangent in zip(leaves, jax.tree.leaves(tangents), strict=True)
        if _is_floating(leaf)
    ]
