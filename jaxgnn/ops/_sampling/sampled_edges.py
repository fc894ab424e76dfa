"""The list of the sampled edges."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Int

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import Graph
from jaxgnn.ops._sampling.rows import sampled_rows
from jaxgnn.ops._sampling.sample import (
    MOST_PLACES,
    NO_LIMIT,
    Places,
    Sample,
    Strategy,
    arguments,
    largest_share,
)


@jax.named_scope("jaxgnn.sampled_edges")
def sampled_edges(
    graph: Graph,
    *,
    sample_size: int | None = None,
    sample_rate: float | None = None,
    strategy: Strategy = "stride",
    key: Array | None = None,
    replace: bool = False,
    rows: Int[ArrayLike, " rows"] | None = None,
    axis_name: str | None = None,
    impl: Impl = None,
) -> tuple[Int[Array, "rows size"], Int[Array, " rows"]]:
    """The edges that `sampled_spmm` sums with the same arguments, in the order in which it does.

    Args:
        graph: the graph.
        sample_size, sample_rate, strategy, key, replace, rows, axis_name, impl: as those of
            `sampled_spmm`.

    Returns:
        `[rows, size]`, places in the graph's edge order, -1 where a row takes fewer than `size`
        edges; and `[rows]`, how many each row takes. `size` is `sample_size`, else what the rate
        takes of the largest in-degree, with `"dropedge"` that degree. It is not known under `jit`.

    Raises:
        TypeError: `graph` is no `Graph`, or an argument has a wrong type.
        ValueError: an argument is out of range, a key is missing or useless, or `size` is not
            known under `jit`.
    """
    sample, places = arguments(
        graph, sample_size, sample_rate, strategy, key, replace, rows, axis_name
    )
    return list_edges(sample, places, impl)


def list_edges(
    sample: Sample, places: Places, impl: Impl = None
) -> tuple[Int[Array, "places size"], Int[Array, " places"]]:
    """`sampled_edges` of checked arguments, where places may draw by ids."""
    graph = places.graph
    limited = sample.size != NO_LIMIT
    width = sample.size if limited else largest_share(graph, sample.rate, sample.strategy)
    if places.count * width > MOST_PLACES:
        raise ValueError(
            f"{'sample_size' if limited else 'sample_rate'}: expected fewer than 2^31 entries, got "
            f"{places.count} rows of {width}"
        )
    dtype = graph.row_offsets.dtype
    if places.count == 0 or graph.num_edges == 0:
        empty = ffi.zeros((places.count, width), dtype, places) - jnp.ones((), dtype)
        return empty, ffi.zeros((places.count,), np.int32, places)
    with config.use(impl=chosen(impl)):
        return _list_edges(sample, ffi.unify_varying(places)[0], width)


# One program: a call outside `jax.jit` would compile each of its operations by itself.
@functools.partial(jax.jit, static_argnames=("sample", "width"))
def _list_edges(
    sample: Sample, places: Places, width: int
) -> tuple[Int[Array, "places size"], Int[Array, " places"]]:
    listed = sampled_rows(sample, places)
    assert listed.order is not None
    counts = jnp.diff(listed.offsets)
    number = jnp.arange(width, dtype=jnp.int32)[None]
    edges = listed.order.at[listed.offsets[:-1, None] + number].get(mode="clip")
    return jnp.where(number < counts[:, None], edges, -jnp.ones((), edges.dtype)), counts
