"""Kernels whose derivatives are those of another computation of the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxgnn._core.custom_jvp import custom_jvp


def with_derivative_of(
    reference: Callable[..., Any], kernel: Callable[..., Any]
) -> Callable[..., Any]:
    """`kernel(*operands)`, differentiated as `reference(*operands)`, to any order and both modes.

    For kernels that keep nothing for a derivative: it computes anew what it needs. Operands are
    pytrees of arrays, all that either function reads.
    """
    call = custom_jvp(kernel)

    @call.defjvp
    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return call(*primals), jax.jvp(reference, primals, tangents)[1]

    return call
