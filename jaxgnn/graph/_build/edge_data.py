"""Edge data between the user's order and the graph's, and the builder that keeps the way back.

A graph that merges no edges has one edge at most for each of the user's, which `edge_permutation`
names: a gather sorts, a scatter brings back. Where edges merge, `edge_positions` has the position
of each of the user's edges, and of its reverse: a scatter reduces, a gather brings back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from jaxgnn._core.arguments import check_fill_value, check_fits
from jaxgnn._core.checks import choice, host_array
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph._build import csr as _csr
from jaxgnn.graph._build import edge_list
from jaxgnn.graph._build.ordered_sum import sum_in_order, take_in_order

if TYPE_CHECKING:
    from jaxgnn.graph._graph import Graph

Reduce = Literal["sum", "mean", "max", "min"]
REDUCTIONS = ("sum", "mean", "max", "min")
_NUMBERS = (bool, int, float, np.generic)


def build(
    senders: Any, receivers: Any, *, undirected: bool, deduplicate: bool, self_loops: str, **counts
) -> _csr.HostCSR:
    """Arrays of `Graph.from_edges` with `edge_data`: `_csr.build`'s, with positions if edges merge.

    The edges are sorted twice: all of them, to see which are equal, and those that remain.
    """
    options = {"undirected": undirected, "deduplicate": deduplicate, "self_loops": self_loops}
    if not undirected and not deduplicate:
        return _csr.build(senders, receivers, **options, **counts)
    edges = edge_list.check_edges(senders, receivers, undirected, self_loops, **counts)
    if self_loops == "add":
        option = "undirected=True" if undirected else "deduplicate=True"
        raise ValueError(
            f"self_loops='add': expected 'add_remaining' with edge_data and {option}, which leaves "
            "one edge at most between two nodes"
        )
    if self_loops == "remove":
        kept = np.flatnonzero(edges.senders != edges.receivers)
        ends = edges.senders[kept], edges.receivers[kept]
    else:
        kept = np.arange(edges.senders.size)
        ends = edges.senders, edges.receivers
    if undirected:
        ends = np.concatenate(ends), np.concatenate(ends[::-1])
    full = _csr.build(*ends, **edges.counts)
    order = full.edge_permutation
    assert order is not None
    rows = _csr.row_ids(full.row_offsets)
    first = _csr.first_of_equal(full.senders, rows)
    starts = np.flatnonzero(first)
    loops = self_loops if self_loops.startswith("add") else "keep"
    merged = _csr.build(full.senders[starts], rows[starts], self_loops=loops, **edges.counts)
    source = merged.edge_permutation  # which of the different edges; -1: an added self-loop
    assert source is not None
    position = np.empty(starts.size, source.dtype)
    position[source[source >= 0]] = np.flatnonzero(source >= 0)
    of_sorted = position[np.cumsum(first) - 1] if starts.size else position
    positions = np.full((1 + undirected, edges.senders.size), -1, source.dtype)
    placed = np.empty(order.size, source.dtype)
    placed[order] = of_sorted
    positions[:, kept] = placed.reshape(1 + undirected, kept.size)
    users = np.full(source.size, -1, source.dtype)
    users[source >= 0] = kept[order[starts] % max(kept.size, 1)][source[source >= 0]]
    return merged._replace(
        edge_permutation=users,
        edge_positions=positions,
        num_input_edges=edges.senders.size,
        merges_edges=True,
    )


def build_both_ways(senders: np.ndarray, receivers: np.ndarray, *, num_nodes: int) -> _csr.HostCSR:
    """Arrays of a multigraph whose edges go both ways (self-loops once), with positions."""
    size = senders.size
    reverse = np.flatnonzero(senders != receivers)
    csr = _csr.build(
        np.concatenate([senders, receivers[reverse]]),
        np.concatenate([receivers, senders[reverse]]),
        num_nodes=num_nodes,
    )
    order = csr.edge_permutation
    assert order is not None
    placed = np.empty_like(order)
    placed[order] = np.arange(order.size, dtype=order.dtype)
    positions = np.full((2, size), -1, order.dtype)
    positions[0], positions[1, reverse] = placed[:size], placed[size:]
    return csr._replace(
        edge_permutation=np.concatenate([np.arange(size), reverse]).astype(order.dtype)[order],
        edge_positions=positions,
        num_input_edges=size,
        merges_edges=True,
    )


# Pytrees of arrays.


def map_arrays(function: Callable[[Any], Array], data: Any) -> Any:
    """`function` of each array of a pytree, where lists of numbers are arrays too.

    Nested lists are one array; a tuple of lists is a pytree of several.
    """

    def is_array(node: Any) -> bool:
        if not isinstance(node, list | tuple):
            return hasattr(node, "__jax_array__")  # Flax's variables are pytrees, too
        leaves = node if isinstance(node, tuple) else jax.tree.leaves(node)
        return bool(leaves) and all(isinstance(leaf, _NUMBERS) for leaf in leaves)

    return jax.tree.map(function, data, is_leaf=is_array)


# Both ways.


def check_defaults(reduce: Any, fill_value: Any) -> None:
    """Raises where either says what becomes of data, which are not there."""
    for name, value, default in (("reduce", reduce, "sum"), ("fill_value", fill_value, 1)):
        if not isinstance(value, str | int | float) or value != default:
            raise ValueError(f"{name}: expected edge_data with it, got {name}={value!r} alone")


def sort(graph: Graph, data: Any, fill_value: float, reduce: Reduce, name: str = "data") -> Array:
    """One array over the user's edges in the graph's edge order. Errors call it `name`."""
    choice(reduce, "reduce", REDUCTIONS)
    if graph.edge_permutation is None:
        raise ValueError("sort_edge_data: this graph's edge_permutation was dropped")
    _check_positions(graph, "sort_edge_data")
    data = _rows(data, name)
    size = graph.num_input_edges
    if size is None:
        _check_largest(graph, data, name)
    elif data.shape[0] != size:
        hint = ""
        if data.shape[0] == graph.num_edges:
            hint = (
                f"; data of the graph's {graph.num_edges} edges is in its order already, "
                "where operations take it"
            )
        raise ValueError(
            f"{name}: expected {size} rows, one for each edge of the list that the graph was built "
            f"from, got {data.shape[0]}{hint}"
        )
    if graph.edge_positions is not None:
        return _merge(graph, data, fill_value, reduce, name)
    check_fill_value(fill_value, data.dtype)
    if data.shape[0] == 0:
        return jnp.full((graph.num_edges, *data.shape[1:]), fill_value, data.dtype)
    return _taken(graph.edge_permutation, data, fill_value)


def _taken(places: Int[Array, " rows"], values: Array, fill_value: float) -> Array:
    """The rows of `values` at the places, and `fill_value` where one is negative."""
    # An array already: jit would make a Python number one of 32 bits, which rounds, or overflows.
    return _take(places, values, jnp.asarray(fill_value, values.dtype))


@jax.jit
def _take(places: Int[Array, " rows"], values: Array, fill: Array) -> Array:
    return _chosen(places >= 0, values[jnp.maximum(places, 0)], fill)


def unsort(graph: Graph, values: Any, fill_value: float) -> Array:
    """One array over the graph's edges in the user's edge order."""
    if graph.edge_permutation is None:
        raise ValueError("unsort_edge_data: this graph's edge_permutation was dropped")
    _check_positions(graph, "unsort_edge_data")
    values = _rows(values, "values")
    if values.shape[0] != graph.num_edges:
        raise ValueError(
            f"values: expected {graph.num_edges} rows, one for each edge of the graph, "
            f"got {values.shape[0]}"
        )
    size = graph.num_input_edges
    if size is None:
        raise ValueError(
            "unsort_edge_data: this graph does not know how many edges it was built from; "
            "edges of a batch are masked by GraphBatch.edge_mask"
        )
    check_fill_value(fill_value, values.dtype)
    if graph.num_edges == 0:
        return jnp.full((size, *values.shape[1:]), fill_value, values.dtype)
    if graph.edge_positions is not None:
        positions = graph.edge_positions[0]
        if not jnp.issubdtype(values.dtype, jnp.floating):
            return _taken(positions, values, fill_value)
        places = jnp.where(positions < 0, graph.num_edges, positions)
        return _filled(positions >= 0, take_in_order(values, places), fill_value)
    places = jnp.where(graph.edge_permutation < 0, size, graph.edge_permutation)
    out = jnp.full((size, *values.shape[1:]), fill_value, values.dtype)
    return out.at[places].set(values, mode="drop")


def _merge(graph: Graph, data: Array, fill_value: float, reduce: Reduce, name: str) -> Array:
    """The reduction of the data of the user's edges at each position.

    Integer sums that 32 bits do not hold are an error, but under `jit`, where they wrap.
    """
    assert graph.edge_positions is not None
    if jnp.issubdtype(data.dtype, jnp.complexfloating):
        raise TypeError(f"{name}: expected real numbers where edges were merged, got {data.dtype}")
    merged, counts = _merged(graph.edge_positions, data, graph.num_edges, reduce)
    if reduce == "sum" and merged.dtype.itemsize == 4 and not isinstance(data, Tracer):
        _check_sums(graph.edge_positions, data, merged, name)
    check_fill_value(fill_value, merged.dtype)
    return _filled(counts > 0, merged, fill_value)


@functools.partial(jax.jit, static_argnames=("size", "reduce"))
def _merged(
    positions: Int[Array, "lists edges"], data: Array, size: int, reduce: Reduce
) -> tuple[Array, Int[Array, " size"]]:
    index = jnp.where(positions < 0, size, positions).reshape(-1)
    return merge_rows(jnp.concatenate([data] * positions.shape[0]), index, size, reduce)


def _check_sums(positions: Array, data: Array, sums: Array, name: str) -> None:
    """Raises if integers of 32 bits do not hold the sums: they are then a multiple of 2^32 off."""
    if jnp.issubdtype(sums.dtype, jnp.integer):
        near, _ = _merged(positions, data.astype(jnp.float32), sums.shape[0], "sum")
        wrong = jnp.abs(near - sums.astype(jnp.float32)) > 2.0**31
        if wrong.any():
            raise ValueError(
                f"{name}: expected sums of merged edges within {sums.dtype}, got about "
                f"{near[wrong][0]:.4g}"
            )


@functools.partial(jax.jit, static_argnames=("size", "reduce"))
def merge_rows(
    rows: Array, index: Any, size: int, reduce: Reduce
) -> tuple[Array, Int[Array, " size"]]:
    """The reduction of the rows of each index below `size`, and how many they are.

    Means of integers are float32; other results of booleans and narrow integers int32. Sums of
    floats are in the order of the rows.
    """
    dtype = rows.dtype
    if jnp.issubdtype(dtype, jnp.floating):
        wide = accumulation_dtype(dtype)
    elif reduce == "mean":
        dtype = wide = jnp.dtype(jnp.float32)
    else:
        narrow = dtype == jnp.bool_ or dtype.itemsize < 4
        dtype = wide = jnp.dtype(jnp.int32) if narrow else dtype
    rows = rows.astype(wide)
    counts = jnp.zeros(size, jnp.int32).at[index].add(jnp.int32(1), mode="drop")
    if reduce in ("sum", "mean"):
        out = _sum_rows(rows, index, size)
    else:
        segments = jax.ops.segment_max if reduce == "max" else jax.ops.segment_min
        out = segments(rows, index, size, mode="drop")
    if reduce == "mean":
        divisor = jnp.maximum(counts, 1).astype(wide)
        out = out / divisor.reshape(size, *(1,) * (rows.ndim - 1))
    return out.astype(dtype), counts


def _sum_rows(rows: Array, index: Any, size: int) -> Array:
    if jnp.issubdtype(rows.dtype, jnp.floating):
        return sum_in_order(rows, index, size)
    return jnp.zeros((size, *rows.shape[1:]), rows.dtype).at[index].add(rows, mode="drop")


def _filled(kept: Array, values: Array, fill_value: float) -> Array:
    """`values`, and `fill_value` in the rows that are not `kept`."""
    return _chosen(kept, values, jnp.asarray(fill_value, values.dtype))


@jax.jit
def _chosen(kept: Array, values: Array, fill: Array) -> Array:
    return jnp.where(kept.reshape(kept.shape + (1,) * (values.ndim - 1)), values, fill)


def _rows(values: Any, name: str) -> Array:
    if isinstance(values, list | tuple):
        values = host_array(values, name)
    check_fits(values, name)
    try:
        array = jnp.asarray(values)
    except (TypeError, ValueError) as error:  # strings
        raise type(error)(f"{name}: expected an array of numbers: {error}") from error
    if array.ndim == 0:
        raise ValueError(f"{name}: expected an array over the edges, got a scalar")
    return array


def _check_positions(graph: Graph, method: str) -> None:
    if graph.merges_edges and graph.edge_positions is None:
        raise ValueError(
            f"{method}: edges of this graph were merged, and it does not know which; give the data "
            "as edge_data to Graph.from_edges ({} if there is none yet), or as weights to the "
            "transform"
        )


def _check_largest(graph: Graph, data: Array, name: str) -> None:
    """Raises if an edge comes from behind the data, as far as that is known: of a padded batch the
    static counts are those of the padding, too."""
    permutation = graph.edge_permutation
    if isinstance(permutation, Tracer) or not graph.num_edges:
        return
    assert permutation is not None
    with jax.ensure_compile_time_eval():  # in a function that closes over the graph
        largest = int(permutation.max())
    if largest >= data.shape[0]:
        raise ValueError(
            f"{name}: expected at least {largest + 1} rows (the user's edges), got {data.shape[0]}"
        )
