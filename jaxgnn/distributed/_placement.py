"""Arrays on the devices of a mesh, of this process or of several."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Shaped


def place(x: Any, sharding: NamedSharding) -> Array:
    """An array with this sharding.

    Args:
        x: the same in all processes; traced inside `jit`. It may already be on all devices.
        sharding: over devices of this process or of several.
    """
    if isinstance(x, Tracer):
        return jax.lax.with_sharding_constraint(x, sharding)
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return x if x.sharding == sharding else _resharding(sharding)(x)
    # `device_put` would compare the values of all processes first.
    x = x if is_key(x) else np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def place_parts(
    own: Shaped[np.ndarray, "own *rest"],
    parts: Sequence[int],
    count: int,
    sharding: NamedSharding,
    *,
    flat: bool = False,
) -> Array:
    """The stacked arrays of all parts, of which a process has its own alone.

    Args:
        own: those of `parts`.
        parts: of `own_parts`.
        count: of all parts.
        sharding: over the first axis.
        flat: join the first two axes, `[count * n, *rest]` for n rows a part.

    Returns:
        `[count, *rest]`.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(own.reshape(-1, *own.shape[2:]) if flat else own, sharding)
    row_of = {part: row for row, part in enumerate(parts)}
    rows = own.shape[1] if flat else 1
    shape = (count * rows, *own.shape[2:]) if flat else (count, *own.shape[1:])

    def shard_of(index: Any) -> np.ndarray:
        first, stop, _ = index[0].indices(shape[0])
        chosen = own[[row_of[part] for part in range(first // rows, -(-stop // rows))]]
        offset = first % rows  # not 0 where several devices share a part's rows
        return chosen.reshape(-1, *shape[1:])[offset : offset + stop - first]

    return jax.make_array_from_callback(shape, sharding, shard_of)


def own_parts(sharding: NamedSharding, count: int) -> list[int]:
    """The parts, one an index of an axis of the mesh, that devices of this process hold."""
    indices = sharding.addressable_devices_indices_map((count,)).values()
    firsts = {index[0].indices(count)[0] for index in indices if index is not None}
    return sorted(firsts)


def take(x: Any, places: Int[Array, " places"], fill: Any) -> Any:
    """Rows of `x`, `fill` where a place is negative; on the host if they are known there.

    Of places that several processes hold, a process takes its own rows alone: the result lies as
    they do. Of random keys padding has those of zeros.
    """
    if is_key(x):
        rows = take(jax.random.key_data(x), places, 0)
        return jax.random.wrap_key_data(rows, impl=jax.random.key_impl(x))
    if isinstance(x, Tracer) or isinstance(places, Tracer):
        return _take_traced(x, places, fill)
    x = to_host(x)
    known = isinstance(places, np.ndarray)  # of a graph brought to the host
    if known or places.is_fully_addressable or places.is_fully_replicated:
        return take_known(x, np.asarray(places), fill)
    return jax.make_array_from_single_device_arrays(
        (places.shape[0], *x.shape[1:]),
        places.sharding,
        [
            jax.device_put(take_known(x, np.asarray(own.data), fill), own.device)
            for own in places.addressable_shards
        ],
    )


def to_host(x: Any) -> np.ndarray:
    """All values, in every process. What several processes hold, all of them must ask for."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable and not x.is_fully_replicated:
        assert isinstance(x.sharding, NamedSharding)
        x = _resharding(NamedSharding(x.sharding.mesh, PartitionSpec()))(x)
    return np.asarray(x)


def rows_for_all(
    x: Shaped[Array, "places *rest"],
    rows: Int[Array, " rows"],
    replicated: NamedSharding,
) -> Shaped[Array, "rows *rest"]:
    """Rows of an array over several processes, on every device."""
    return _rows(replicated)(x, rows)


def _take_traced(x: Any, places: Any, fill: Any) -> Array:
    places, x = jnp.asarray(places), jnp.asarray(x)
    mask = (places >= 0).reshape(-1, *[1] * (x.ndim - 1))
    if x.shape[0] == 0:
        return jnp.full((places.shape[0], *x.shape[1:]), fill, x.dtype)
    return jnp.where(mask, x[jnp.maximum(places, 0)], jnp.asarray(fill, x.dtype))


def take_known(x: np.ndarray, row: np.ndarray, fill: Any) -> np.ndarray:
    """`take` on the host."""
    out = np.full((row.size, *x.shape[1:]), fill, x.dtype)
    out[row >= 0] = x[row[row >= 0]]
    return out


@functools.cache
def _resharding(sharding: NamedSharding) -> Any:
    return jax.jit(lambda x: x, out_shardings=sharding)


@functools.cache
def _rows(sharding: NamedSharding) -> Any:
    return jax.jit(lambda x, rows: x[rows], out_shardings=sharding)


def is_key(x: Any) -> bool:
    """Whether it is an array of JAX's typed random keys."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
