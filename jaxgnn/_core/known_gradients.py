"""Functions of JAX of which kernels compute the value and the gradients, differentiable to every
order: what kernels do not compute are the function's own derivatives.

Not linear ones, which `linear_call.Multilinear` is for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from jaxgnn._core import ffi
from jaxgnn._core.custom_jvp import custom_jvp
from jaxgnn._core.linear_call import instantiate, is_zero, linear_call


class KnownGradients:
    """The differentiable `operation(static, known, fixed, *operands)`.

    Args:
        function: `function(static, fixed, *operands)`, in JAX; `static` is hashable, and `fixed`
            has no derivative.
        value: the same of `(static, known, fixed, *operands)`, by a kernel; what is `known`, such
            as a value that another kernel wrote, is not kept for the backward pass.
        gradients: of `(static, fixed, cotangent, *operands)` the operands' gradients, by a kernel.
    """

    def __init__(
        self,
        function: Callable[..., Array],
        value: Callable[..., Array],
        gradients: Callable[..., Any],
    ) -> None:
        self._function = function
        self._call = custom_jvp(value, nondiff_argnums=(0,))
        self._call.defjvp(self._jvp, symbolic_zeros=True)
        self._gradients = custom_jvp(gradients, nondiff_argnums=(0,))
        self._gradients.defjvp(self._gradients_jvp, symbolic_zeros=True)

    def __call__(self, static: Any, known: Any, fixed: Any, *operands: Array) -> Array:
        return self._call(static, known, fixed, *operands)

    def _jvp(self, static: Any, primals: Any, tangents: Any) -> tuple[Array, Array]:
        _, fixed, *operands = primals
        out: Array = self(static, *primals)  # with the derivative of the outer level
        if is_zero(tangents[2:]):
            return out, ffi.zeros_like(out)
        moving = tuple(instantiate(t, o) for t, o in zip(tangents[2:], operands, strict=True))

        def function(residuals: Any, tangents: Any) -> Array:
            fixed, operands = residuals
            return jax.jvp(functools.partial(self._function, static, fixed), operands, tangents)[1]

        def transpose(residuals: Any, cotangent: Array) -> Any:
            fixed, operands = residuals
            return self._gradients(static, fixed, cotangent, *operands)

        return out, linear_call(function, transpose, (fixed, tuple(operands)), moving, like=out)

    def _gradients_jvp(self, static: Any, primals: Any, tangents: Any) -> tuple[Any, Any]:
        fixed, *operands = primals
        out = self._gradients(static, *primals)
        if is_zero(tangents[1:]):
            return out, jax.tree.map(ffi.zeros_like, out)
        moving = [instantiate(t, o) for t, o in zip(tangents[1:], operands, strict=True)]
        by_jax = functools.partial(gradients_by_jax, self._function, static, fixed)
        return out, jax.jvp(by_jax, operands, moving)[1]


def gradients_by_jax(
    function: Callable[..., Array], static: Any, fixed: Any, cotangent: Array, *operands: Array
) -> Any:
    """`gradients` where there is no kernel."""
    return jax.vjp(functools.partial(function, static, fixed), *operands)[1](cotangent)
