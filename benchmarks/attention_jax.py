"""Attention in JAX as the suite `attention` times it: jaxgnn's operation and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from benchmarks import attention_oracle, oracle, plan
from benchmarks.families import Candidate
from benchmarks.family_jax import compiled
from benchmarks.graphs import StoredGraph
from benchmarks.plan import Measurement
from jaxgnn import Graph, gat_attention
from jaxgnn._core.platform import kernels_available
from jaxgnn.ops._attention.gat_kernels import TARGETS

_SEED = 21


class AttentionCandidates:
    """The candidates of one graph."""

    def __init__(self, graph: Graph, stored: StoredGraph) -> None:
        self._graph = graph
        self._stored = stored

    def candidate(self, m: Measurement, x: Array, dense: np.ndarray) -> Candidate:
        """Prepares the forward pass of the features, or the backward pass of a cotangent.

        `x` is `dense` on the device.
        """
        rng = np.random.default_rng(_SEED)
        nodes, width = dense.shape
        scores = [
            rng.standard_normal((nodes, plan.ATTENTION_HEADS)).astype(np.float32) for _ in range(2)
        ]
        operands = [*map(jax.device_put, scores), self._graph]
        if m.direction == "forward":
            candidate = compiled(_forward, x, *operands)
            reference = attention_oracle.Oracle(self._stored, dense, *scores)
            candidate.error = lambda result: reference.forward_error(np.asarray(result))
        else:
            features = rng.random((nodes, width), np.float32) - np.float32(0.5)
            features = oracle.round_to(features, m.dtype)
            pullback = jax.jit(_pullback)(jax.device_put(features), *operands)
            candidate = compiled(_pull, x, pullback)
            reference = attention_oracle.Oracle(self._stored, features, *scores)

            def error(result: tuple[Array, Array, Array]) -> float:
                features, source, target = map(np.asarray, result)
                return reference.backward_error(dense, features, source, target)

            candidate.error = error
        candidate.facts = {
            "kernel": kernels_available(*TARGETS),
            "heads": plan.ATTENTION_HEADS,
        }
        return candidate


def _forward(
    v: Float[Array, "nodes width"], source: Array, target: Array, graph: Graph
) -> Float[Array, "nodes width"]:
    heads = source.shape[1]
    out = gat_attention(graph, v.reshape(v.shape[0], heads, -1), source, target)
    return out.reshape(v.shape)


def _pullback(v: Array, source: Array, target: Array, graph: Graph) -> Callable[[Array], Any]:
    """From the result's cotangent to those of the operands, with the forward pass behind it."""

    def forward(v: Array, source: Array, target: Array) -> Array:
        return _forward(v, source, target, graph)

    return jax.vjp(forward, v, source, target)[1]


def _pull(cotangent: Array, pullback: Callable[[Array], Any]) -> tuple[Array, Array, Array]:
    return pullback(cotangent)
