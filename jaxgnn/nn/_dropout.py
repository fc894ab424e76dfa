"""Dropout inside a module: applied to values, or passed to an operation that applies it."""

from __future__ import annotations

from typing import Any

from flax import nnx

from jaxgnn._core import checks


def dropout_module(rate: float, name: str, rngs: nnx.Rngs | None) -> nnx.Dropout:
    """Dropout that holds no random state where it drops nothing.

    Raises:
        TypeError: the rate is no number.
        ValueError: the rate is out of range, or there is one and no `rngs`.
    """
    rate = checks.number(rate, name, 0, 1)
    if rate > 0 and rngs is None:
        raise ValueError(f"rngs: expected nnx.Rngs with {name}={rate}, got None")
    return nnx.Dropout(rate, rngs=rngs if rate > 0 else None)


def dropout_options(dropout: nnx.Dropout) -> dict[str, Any]:
    """The arguments of an operation that applies dropout: the rate, 0 after `eval()`, and a key."""
    stream = None if dropout.deterministic else dropout.rngs
    if stream is None:
        return {"dropout_rate": 0.0, "dropout_rng": None}
    return {"dropout_rate": dropout.rate, "dropout_rng": stream()}
