"""Activations as the models compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.custom_jvp import custom_jvp


@custom_jvp
def relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`jax.nn.relu`, whose derivative looks at the result and not at `x`.

    The result is kept for the next layer in any case: `x` need not be, and XLA can compute the
    maximum where a GEMM writes its output.
    """
    return jnp.maximum(x, 0)


@relu.defjvp
def _relu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    out = relu(primals[0])
    # Not `out > 0`, of which XLA makes a comparison of x.
    return out, jnp.where(out == 0, jnp.zeros_like(tangents[0]), tangents[0])


def activate(activation: Callable[[Array], Array], x: Any) -> Any:
    """`activation(x)`."""
    return relu(x) if activation is jax.nn.relu else activation(x)
