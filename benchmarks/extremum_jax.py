"""The maximum over neighbours and its gradient: jaxgnn's, and what plain JAX has in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from benchmarks import oracle, plan
from benchmarks.families import Candidate
from benchmarks.family_jax import compiled
from benchmarks.plan import Measurement
from jaxgnn import Graph, spmm

# Features on which a result is compared with plain JAX's, whose messages would not fit else.
_CHECKED = 4


def candidate(
    m: Measurement, graph: Graph, receivers: Int[Array, " num_edges"], dense: Float[Array, "_ _"]
) -> Candidate:
    """The maximum of `dense`; backward its gradient, given `|dense|`, at those rows in reverse.

    The gradient needs the maximum, so that backward is both passes. Its terms are of one sign, so
    that their sums are as accurate as they are themselves.
    """
    plain = (graph.senders, receivers)
    operands: tuple[Any, ...] = plain if m.impl == plan.MAX_SORTED else (graph,)
    function = gather_segment_max(graph.num_receivers) if m.impl == plan.MAX_SORTED else _ours
    reference = gather_segment_max(graph.num_receivers)
    if m.direction == "backward":
        function, reference = _both_passes(function), _gradient(graph.num_receivers, m.dtype)
        dense = jnp.abs(dense)

    def error(result: Array) -> float:
        few = dense[:, :_CHECKED].astype(jnp.float32)
        expected = jax.jit(reference)(few, *plain)
        got = result[:, :_CHECKED].astype(jnp.float32)
        return oracle.row_error(np.asarray(got), np.asarray(expected, np.float64))

    return dataclasses.replace(compiled(function, dense, *operands), error=error)


def _ours(x, graph):
    return spmm(graph, x, reduce="max", impl="kernel")


def gather_segment_max(num_receivers: int) -> Callable:
    def function(x, senders, receivers):
        out = jax.ops.segment_max(x[senders], receivers, num_receivers, indices_are_sorted=True)
        return jnp.where(out == -jnp.inf, 0, out)

    return function


def _both_passes(function: Callable) -> Callable:
    def gradient(cotangent, *operands):
        at = cotangent[::-1]
        return jax.vjp(lambda x: function(x, *operands), at)[1](cotangent)[0]

    return gradient


def _gradient(num_receivers: int, dtype: str) -> Callable:
    """In float32, but for the ties and the shares of each, which `spmm` rounds to the dtype."""
    maximum = gather_segment_max(num_receivers)

    precision = jnp.finfo(dtype)

    def rounded(values):  # XLA may leave out a conversion there and back, but not this
        return jax.lax.reduce_precision(values, precision.nexp, precision.nmant)

    def gradient(cotangent, senders, receivers):
        x = cotangent[::-1]
        attained = (x[senders] == maximum(x, senders, receivers)[receivers]).astype(x.dtype)
        ties = jax.ops.segment_sum(attained, receivers, num_receivers, indices_are_sorted=True)
        shares = rounded(cotangent / jnp.maximum(rounded(ties), 1))
        return jax.ops.segment_sum(attained * shares[receivers], senders, x.shape[0])

    return gradient
