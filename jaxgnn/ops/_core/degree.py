"""Means: division by the number of edges at one end."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph

End = Literal["receivers", "senders"]


def divide_by_degree(
    graph: Graph, end: End | None, x: Float[Array, "nodes *features"]
) -> Float[Array, "nodes *features"]:
    """$D^{-1} x$ in the accumulation dtype, rounded once; $x$ lies at `end`. `None`: $x$ itself.

    A node without edges is divided by 1.
    """
    if end is None:
        return x
    return divide_rows(graph.out_degrees if end == "senders" else graph.in_degrees, x)


def widened(x: Float[Array, "nodes *features"]) -> Float[Array, "nodes *features"]:
    """What is divided before it is summed: float16 in float32, for a small number divided by a
    large degree is 0 in float16, and many of them may not be."""
    return x.astype(jnp.float32) if x.dtype == jnp.float16 else x


def divide_rows(
    degrees: Int[Array, " nodes"], x: Float[Array, "nodes *features"]
) -> Float[Array, "nodes *features"]:
    """Each row divided by its degree, at least 1, in the accumulation dtype, rounded once."""
    dtype = accumulation_dtype(x.dtype)
    divisors = jnp.maximum(degrees, 1).astype(dtype).reshape(-1, *(1,) * (x.ndim - 1))
    return (x.astype(dtype) / divisors).astype(x.dtype)
