"""Each point's nearest points, by blocks of distances."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._core import ffi

# Points on either side of a block: 16 MiB of distances in float32.
_BLOCK = 2048


def nearest(
    points: Float[Array, "num_points dimensions"],
    batch: Int[Array, " num_points"] | None,
    k: int,
    loop: bool,
) -> tuple[Int[Array, "num_points k"], Bool[Array, "num_points k"]]:
    """The `k` nearest points of each, nearest first, and whether they exist.

    Candidates are the points of the same number in `batch`; without `loop`, other ones. Of
    equally far ones the lower index comes first. Indices are always in range, whatever the
    points are: kernels trust them.
    """
    size, dimensions = points.shape
    if size == 0 or k == 0:
        return jnp.zeros((size, k), jnp.int32), jnp.ones((size, k), bool)
    block = min(size, _BLOCK)
    blocks = -(-size // block)
    added = blocks * block - size
    padded = jnp.pad(points, ((0, added), (0, 0))).reshape(blocks, block, dimensions)
    numbers = jnp.arange(blocks * block, dtype=jnp.int32).reshape(blocks, block)
    clouds = numbers * 0 if batch is None else jnp.pad(batch, (0, added), mode="edge")
    clouds = clouds.reshape(blocks, block)
    padded, clouds, numbers = ffi.unify_varying(padded, clouds, numbers)
    start = jnp.full_like(padded[0, 0, 0], jnp.inf), jnp.zeros_like(numbers[0, 0])

    def row_block(rows: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        x, cloud, number = rows

        def merge(best: tuple[Array, Array], columns: tuple[Array, Array, Array]) -> tuple:
            y, other, place = columns
            candidate = place[None, :] < size
            if batch is not None:
                candidate &= cloud[:, None] == other[None, :]
            if not loop:
                candidate &= number[:, None] != place[None, :]
            square = _squared_distances(x, y)
            square = jnp.where(candidate, square, jnp.full_like(square, jnp.inf))
            # The best so far have lower indices and stand first: `top_k` prefers them at ties.
            distance = jnp.concatenate([best[0], square], axis=1)
            negative, chosen = jax.lax.top_k(-distance, k)
            before = jnp.take_along_axis(best[1], jnp.minimum(chosen, k - 1), axis=1)
            return -negative, jnp.where(chosen < k, before, place[0] + chosen - k)

        def step(best: tuple[Array, Array], columns: tuple[Array, Array, Array]) -> tuple:
            if batch is None:
                return merge(best, columns), None
            other = columns[1]
            meet = (cloud.min() <= other.max()) & (other.min() <= cloud.max())
            return jax.lax.cond(meet, lambda: merge(best, columns), lambda: best), None

        best = jnp.broadcast_to(start[0], (block, k)), jnp.broadcast_to(start[1], (block, k))
        return jax.lax.scan(step, best, (padded, clouds, numbers))[0]

    distance, index = jax.lax.map(row_block, (padded, clouds, numbers))
    distance, index = (value.reshape(-1, k)[:size] for value in (distance, index))
    return jnp.minimum(index, size - 1), jnp.isfinite(distance)


def _squared_distances(
    x: Float[Array, "rows dimensions"], y: Float[Array, "columns dimensions"]
) -> Float[Array, "rows columns"]:
    """Sums of squared differences: no cancellation, so that equal points are at distance 0."""
    difference = x[:, None, :] - y[None, :, :]
    return jnp.sum(difference * difference, axis=-1)
