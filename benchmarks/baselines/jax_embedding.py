"""The embedding of two sampled hops in plain JAX: gathered rows and their means, in batches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

# Bytes of the leaves' rows of a batch, should XLA store them.
_BYTES = {"cpu": 1 << 26, "gpu": 1 << 31}

Rows = tuple[Int[Array, " nodes+1"], Int[Array, " edges"]]
"""The offsets and the senders of the rows."""


def embed(
    children: int, device: str, x: Array, rows: Rows, params: Any, key: Array, sources: Array
) -> Array:
    """The embedding; as many leaves as children. Draws are those of the fastest generator."""
    x, sources = jax.lax.optimization_barrier((x, sources))
    size = _batch_size(children, device, sources.shape[0])
    count = -(-sources.shape[0] // size)
    padded = jnp.pad(sources, (0, count * size - sources.shape[0]))
    numbers = jnp.arange(count)

    def batch(operands: tuple[Array, Array]) -> Array:
        number, nodes = operands
        drawn, leaves = _draw_both(children, rows, key, number, nodes)

        def mean(nodes: Array) -> Array:
            return x[nodes].astype(jnp.float32).mean(axis=1).astype(x.dtype)

        of_children = _layer(x[drawn.reshape(-1)], mean(leaves), params, 1)
        of_sources = _layer(x[nodes], mean(drawn), params, 1)
        around = of_children.reshape(*drawn.shape, -1).astype(jnp.float32).mean(axis=1)
        return _layer(of_sources, around.astype(x.dtype), params, 2)

    out = jax.lax.map(batch, (numbers, padded.reshape(count, size)))
    return out.reshape(count * size, -1)[: sources.shape[0]]


def first_draws(
    children: int, device: str, rows: Rows, key: Array, sources: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The children of the first sources `[sources, C]`, their leaves `[sources C, C]`."""
    size = _batch_size(children, device, sources.size)
    draw = jax.jit(_draw_both, static_argnums=0)
    drawn, leaves = [], []
    for number in range(-(-min(1000, sources.size) // size)):
        nodes = sources[number * size : (number + 1) * size]
        nodes = np.pad(nodes, (0, size - nodes.size))
        found = draw(children, rows, key, jnp.int32(number), jnp.asarray(nodes))
        drawn.append(np.asarray(found[0]))
        leaves.append(np.asarray(found[1]))
    return np.concatenate(drawn), np.concatenate(leaves)


def _batch_size(children: int, device: str, sources: int) -> int:
    return max(1, min(_BYTES[device] // (children * children * 256), 65_536, sources))


def _draw_both(
    children: int, rows: Rows, key: Array, number: Array, nodes: Array
) -> tuple[Array, Array]:
    words = jax.random.bits(jax.random.fold_in(key, number), (4,))
    fast = jax.random.wrap_key_data(words, impl="rbg")
    first, second = jax.random.split(fast)
    drawn = _draw(first, rows, nodes, children)
    return drawn, _draw(second, rows, drawn.reshape(-1), children)


def _draw(key: Array, rows: Rows, nodes: Array, size: int) -> Array:
    """Neighbors with replacement; a node without any draws itself."""
    offsets, senders = rows
    begins = offsets[nodes][:, None]
    degrees = offsets[nodes + 1][:, None] - begins
    uniform = jax.random.uniform(key, (nodes.shape[0], size))
    places = jnp.minimum((uniform * degrees).astype(jnp.int32), degrees - 1)
    return jnp.where(degrees > 0, senders[begins + places], nodes[:, None])


def _layer(itself: Array, around: Array, params: Any, number: int) -> Array:
    wide = jnp.float32
    parts = [
        jnp.matmul(itself, params[f"Wf{number}"], preferred_element_type=wide),
        jnp.matmul(around, params[f"Wa{number}"], preferred_element_type=wide),
    ]
    h = jax.nn.relu(jnp.concatenate(parts, axis=1))
    length = jnp.sqrt((h * h).sum(axis=1, keepdims=True))
    return (h / jnp.where(length > 0, length, 1)).astype(itself.dtype)
