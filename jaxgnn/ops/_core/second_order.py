"""Derivatives of gradients that kernels compute: those of the reference's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def of_gradients(value: Callable[[Any], Any], values: Any, cotangent: Any, cotangents: Any) -> Any:
    r"""The derivative of $(x, dy) \mapsto \langle dy, \partial y(x) / \partial x \rangle$.

    Args:
        value: $y(x)$, differentiable as often as is asked for.
        values: $x$, a pytree.
        cotangent: $dy$.
        cotangents: those of the gradients, shaped like `values`.

    Returns:
        The cotangents of `values` and of `cotangent`.
    """

    def gradients(values: Any, cotangent: Any) -> Any:
        return jax.vjp(value, values)[1](cotangent)[0]

    return jax.vjp(gradients, values, cotangent)[1](cotangents)
