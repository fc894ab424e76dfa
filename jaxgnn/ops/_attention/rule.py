"""How attention is differentiated: kernels forward and backward, its composition from then on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from jaxgnn.ops._core import second_order


def attention_rule(
    forward: Callable[..., tuple[Array, Array]],
    gradients: Callable[[Any, Any, Array, Array, Array], Any],
    composition: Callable[[Any, Any], Array],
) -> Callable[[Any, Any], tuple[Array, Array]]:
    """The differentiable map of what is static and of the operands.

    Its second result is a residual: whatever its cotangent is, it is taken for 0. Operands are a
    named tuple, whose `graph` and `words` have no derivative.

    Args:
        forward: of what is static and each operand, the averages `[num_receivers, heads, width]`,
            and `[num_receivers, heads]`, the logarithm of the sum of each row's exponentials.
        gradients: of what is static, the operands, both results and the cotangent, shaped as the
            operands. Their own derivative is that of the composition's gradients.
        composition: the averages out of operations that have derivatives themselves.
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def attend(how, operands):
        return forward(how, *operands)

    def attend_fwd(how, operands):
        results: tuple[Array, Array] = attend(how, operands)
        out, log_sum = results
        # Functions of the operands, through which `attend_gradients` has its whole derivative.
        residuals = operands, jax.lax.stop_gradient(out), jax.lax.stop_gradient(log_sum)
        return (out, log_sum), residuals

    def attend_bwd(how, residuals, cotangents):
        return (attend_gradients(how, *residuals, cotangents[0]),)

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def attend_gradients(how, operands, out, log_sum, cotangent):
        return gradients(how, operands, out, log_sum, cotangent)

    def attend_gradients_fwd(how, operands, out, log_sum, cotangent):
        return attend_gradients(how, operands, out, log_sum, cotangent), (operands, cotangent)

    def attend_gradients_bwd(how, residuals, cotangents):
        operands, cotangent = residuals

        def value(values):
            return composition(how, values._replace(graph=operands.graph, words=operands.words))

        values = operands._replace(graph=None, words=None)
        dvalues, dcotangent = second_order.of_gradients(value, values, cotangent, cotangents)
        return dvalues, None, None, dcotangent

    attend.defvjp(attend_fwd, attend_bwd)
    attend_gradients.defvjp(attend_gradients_fwd, attend_gradients_bwd)
    return attend  # type: ignore[return-value]
