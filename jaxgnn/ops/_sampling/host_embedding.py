"""`sage_embedding` of features in host memory: a CPU draws and reduces, the device multiplies."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, UInt32

from jaxgnn.graph import Graph
from jaxgnn.ops._sampling.embedding_batch import (
    Plan,
    Rows,
    Weights,
    draw_batch,
    embed_drawn,
    hop_keys,
)
from jaxgnn.ops._sampling.gather import gather_nodes
from jaxgnn.ops._sampling.host_rows import HostMatrix, cpu_device
from jaxgnn.ops._sampling.neighbors import Operands, operands
from jaxgnn.ops._sampling.sage_layer import LayerInputs


class _Read(NamedTuple):
    """What a batch moves to the device: rows of its sources and children, none of leaves.

    Attributes:
        there: of each child, and of each source, whether there is one.
        weights: of the edges to the children, or `None`.
        rows: of the children, and of the sources.
        around: what they drew, reduced.
    """

    there: tuple[Array, Array]
    weights: Float[Array, "batch num_children"] | None
    rows: tuple[Array, Array]
    around: tuple[Array, Array]


def embed_from_host(
    plan: Plan,
    graph: Graph,
    features: HostMatrix,
    matrices: Weights,
    weights: Float[Array, " num_edges"] | None,
    key: Array,
    nodes: Int[Array, " sources"],
    batch_size: int,
) -> Float[Array, "sources width"]:
    """The embedding of the sources, batch after batch; a CPU draws what a GPU would.

    Raises:
        TypeError: an operand but the matrices is traced.
        RuntimeError: JAX has no CPU backend.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((graph, weights, key, nodes))):
        raise TypeError(
            "features: expected an array where other arguments are traced, got HostFeatures"
        )
    cpu, device = cpu_device(), _device(matrices)
    given, x = operands(jax.device_put(graph, cpu), jax.device_put(weights, cpu)), features.on_cpu()
    key = jax.device_put(key, cpu)
    count = -(-nodes.shape[0] // batch_size)
    padded = np.full(count * batch_size, -1, np.int32)
    padded[: nodes.shape[0]] = nodes

    def read(number: int) -> _Read:
        first = number * batch_size
        batch = padded[first : first + batch_size]
        return _read(plan, given, x, *jax.device_put((key, np.uint32(first), batch), cpu))

    out, following = [], read(0)
    for number in range(count):
        current = following
        if number + 1 < count:
            # The CPU is at the next batch while the device has this one.
            following = read(number + 1)
        out.append(_layers(plan, matrices, jax.device_put(current, device)))
    return jnp.concatenate(out)[: nodes.shape[0]]


def _device(matrices: Weights) -> Any:
    """Where the matrices lie; where they are traced, the default device."""
    for matrix in matrices:
        if not isinstance(matrix, Tracer):
            return next(iter(matrix.devices()))
    return next(iter(jnp.zeros(()).devices()))


@functools.partial(jax.jit, static_argnums=0)
def _read(
    plan: Plan,
    given: Operands,
    x: Float[Array, "num_nodes width"],
    key: Array,
    first: UInt32[Array, ""],
    nodes: Int[Array, " batch"],
) -> _Read:
    drawn = draw_batch(plan, given, x, hop_keys(key), first, nodes)
    both = drawn.children, nodes
    return _Read(
        (both[0] >= 0, both[1] >= 0),
        drawn.weights,
        (gather_nodes(both[0], x), gather_nodes(both[1], x)),
        (drawn.around_children, drawn.around_sources),
    )


@functools.partial(jax.jit, static_argnums=0)
def _layers(plan: Plan, matrices: Weights, read: _Read) -> Float[Array, "batch width"]:
    found = []
    for there, rows, around in zip(read.there, read.rows, read.around, strict=True):
        numbers = jnp.where(there, jnp.arange(there.shape[0], dtype=jnp.int32), -1)
        inputs = LayerInputs(numbers, rows, around, matrices.Wf1, matrices.Wa1)
        found.append(Rows(inputs, rows))
    return embed_drawn(plan, matrices, found[0], found[1], read.weights)
