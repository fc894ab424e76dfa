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


def divide_rows(
    degrees: Int[Array, " nodes"], x: Float[Array, "nodes *features"]
) -> Float[Array, "nodes *features"]:
    """Each row divided by its degree, at least 1, in the accumulation dtype, rounded once."""
    dtype = accumulation_dtype(x.dtype)
    divisors = jnp.maximum(degrees, 1).astype(dtype).reshape(-1, *(1,) * (x.ndim - 1))
    return (x.astype(dtype) / divisors).astype(x.dtype)
