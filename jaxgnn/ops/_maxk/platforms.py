"""Which platforms have a kernel."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from jaxgnn._core.dispatch import dispatch


def on_platforms(target: str, kernel: Any, otherwise: Any, dtype: Any) -> Any:
    """A kernel or its reference; the CPU alone has kernels for float64."""
    platforms = ("cpu",) if dtype == jnp.float64 else ("cpu", "cuda")
    return functools.partial(dispatch, (target,), kernel, otherwise, platforms=platforms)
