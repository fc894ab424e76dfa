"""Neighbor sampling: the blocks of some seeds, hop by hop, in fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt32

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.platform import Impl, chosen
from jaxgnn._core.row_offsets import offsets_of
from jaxgnn.graph import Blocks, Graph
from jaxgnn.ops._core import checks
from jaxgnn.ops._sampling.custom import OwnMethod, chosen_edges
from jaxgnn.ops._sampling.hops import (
    MOST_PADDING,
    Hop,
    Joined,
    Level,
    blocks_of,
    joined,
    layout_of_tree,
    level_of,
)
from jaxgnn.ops._sampling.kernels import row_bounds, sample_edges
from jaxgnn.ops._sampling.sample import (
    ALL,
    LARGEST_SAMPLE,
    MOST_PLACES,
    Places,
    Sample,
    device_number,
    receivers,
)
from jaxgnn.ops._sampling.tree import HopKeys, hop_keys, is_tree_of_kernel, sample_tree
from jaxgnn.ops._sampling.unique_nodes import number_nodes
from jaxgnn.ops._sampling.weighted import DrawWeights, ready_weights

Method = Literal["uniform", "labor"]
METHODS = ("uniform", "labor")


@jax.named_scope("jaxgnn.sample_neighbors")
def sample_neighbors(
    graph: Graph,
    seeds: Int[ArrayLike, " seeds"],
    num_neighbors: Sequence[int],
    key: Array,
    *,
    replace: bool = False,
    weights: Float[ArrayLike, " num_edges"] | DrawWeights | None = None,
    method: Method | OwnMethod = "uniform",
    deduplicate: bool = False,
    capacity: Sequence[int | None] | None = None,
    axis_name: str | None = None,
    impl: Impl = None,
) -> Blocks:
    r"""The sampled neighborhood of some nodes, a rectangular graph a layer.

    Hop $h$ draws, for each node that hop $h - 1$ added (first the seeds), `num_neighbors[h - 1]`
    of the edges that enter it, all alike, or takes them all if there are no more:

    $$S_h(i) \subseteq N(i), \qquad |S_h(i)| = \min(|N(i)|, k_h).$$

    With `replace` it draws $k_h$ times wherever there is an edge. A node keeps the edges drawn for
    it in all layers, as in PyG: the first layer's graph has the edges of all hops, the last layer's
    those of the first hop.

    With `weights` $w$ each draw takes edge $e$ of those left in the row with probability
    $w_e / \sum_{e'} w_{e'}$. Without replacement this is a race, $k_h$ edges with the smallest
    $-\log(u_e) / w_e$: the probability that an edge is among them is not proportional to its
    weight. An edge of weight 0 is never drawn.

    With `method="labor"` each hop draws one number $r_j$ a sender, and a row takes the $k_h$ edges
    with the smallest: of one row alone all subsets are alike, but rows share senders, so that there
    are fewer distinct nodes. Several edges from one sender have one number, and come together.

    A function as `method` chooses the edges itself: `method(graph, nodes, size, key)` is called
    once a hop with the nodes of its places, `[places]`, -1 for padding, the most edges of a node
    and a key of the hop's own. It returns numbers of the graph's edges, integers
    `[places, size]`, -1 for none anywhere in a row; an edge may be there several times. It has to
    be jittable.

    What is drawn depends on the key and on the place, or with `deduplicate` on the node: not on
    threads, platform or padding (a function answers for its own draws). Nothing has to come back to
    the host: it may be part of a jitted training step, and of a `jax.lax.scan` over batches.

    Args:
        graph: a square graph.
        seeds: nodes, `[num_seeds]`; -1 for padding. Each has a place of its own, repeated or not.
        num_neighbors: the most edges of a node, hop by hop from the seeds, as in PyG (DGL's order
            is reversed). 1 to 4,096 each.
        key: a JAX key.
        replace: draw with replacement.
        weights: of the edges, `[num_edges]`, in the graph's edge order (`Graph.sort_edge_data`),
            finite and at least 0; where they are traced, others count as 0, in float32. Those of
            float64 that float32 cannot hold count by their ratios in a row. They have no gradient.
            Each call makes them ready in O(edges), `draw_weights` once for many calls, as
            `NeighborLoader` does: with replacement it draws by alias tables, a call by prefix sums,
            other edges for the same key.
        method: `"uniform"`, `"labor"`, or a function; for the last two neither `replace` nor
            `weights` is to be had. `"labor"` pays with `deduplicate`; in a tree, places of one node
            take the same edges. Edges that a function returns and that do not enter the row's node
            are an error, or count as -1 where they are traced. Arrays that it needs are arguments
            of the program with `jax.tree_util.Partial(function, name=array)`, constants in a
            closure.
        deduplicate: give each node one place, in the order of first occurrence. By default every
            edge has a place of its own (a tree): there are more rows of features, but the gradient
            needs no sum over them, and nothing has to be searched for.
        capacity: with `deduplicate`, places for the new nodes of each hop; by default for as many
            as there can be. Where they are too few, it is an error, or under `jit` the blocks'
            `overflow` is set.
        axis_name: within `jax.shard_map`, the axis of the mesh over which the seeds are split, each
            device with as many; the graph is on all of them. The edges of a tree are those of one
            device with all seeds: places are numbered over all devices, by one number of each and
            hop. With `deduplicate` each device merges the nodes of its own seeds, and draws what it
            would alone. A function as `method` answers for its own draws.
        impl: as for `sampled_spmm`.

    Returns:
        `Blocks`, whose shapes depend on the numbers of seeds and neighbors, and on `capacity`.

    Raises:
        TypeError: `graph` is no `Graph`, or an argument, or what a function returns, has a wrong
            type.
        ValueError: a rectangular graph, a number out of range, a seed that is no node, a weight
            that is negative or not finite, 2^31 places or more, a method that does not go with
            `replace` or `weights`, what a function returns has another shape or an edge of
            another node, a `capacity` without `deduplicate`, or too small, or an `axis_name` that
            is no axis.

    Source: Hamilton et al., "Inductive representation learning on large graphs" (NeurIPS 2017),
    section 3.1 and appendix A; without replacement by Bentley and Floyd, "A sample of brilliance"
    (CACM 30, 1987), with weights by Efraimidis and Spirakis, "Weighted random sampling with a
    reservoir" (IPL 97, 2006); LABOR-0 with a fixed number of edges: Balin and Çatalyürek,
    "Layer-neighbor sampling" (NeurIPS 2023), appendix A.3. PyG's `NeighborLoader` has the same
    edges a hop; its default is `deduplicate=True`, and with `disjoint=True` a node has one place a
    seed, where a tree has one an edge.
    """
    checks.graph_argument(graph)
    if not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got {graph}")
    checks.boolean(replace, "replace")
    checks.boolean(deduplicate, "deduplicate")
    own = method if callable(method) else None
    if own is None:
        checks.choice(method, "method", METHODS)
    if method != "uniform" and (replace or weights is not None):
        given = "replace=True" if replace else "weights"
        raise ValueError(f"method: expected 'uniform' with {given}, got {method!r}")
    sizes = hop_sizes(num_neighbors)
    limits = hop_capacities(capacity, len(sizes), deduplicate)
    key = checks.key(key, "key")
    nodes = receivers(seeds, graph.num_nodes, "seeds")
    if nodes is None:
        raise TypeError("seeds: expected integers, got None")
    if axis_name is not None:
        device_number(axis_name)
    levels = _level_sizes(graph, nodes.shape[0], sizes, limits, deduplicate)
    with config.use(impl=chosen(impl)):
        drawn_by = ready_weights(graph, weights, replace)
        graph, nodes, key, drawn_by = ffi.unify_varying(graph, nodes, key, drawn_by)
        strategy = "labor" if method == "labor" else "random"
        if drawn_by is not None:
            strategy = "alias" if drawn_by.kind == "alias" else "weighted"
        sample = Sample(strategy, LARGEST_SAMPLE, ALL, replace)
        capacities = tuple(levels) if deduplicate else None
        # One program: a call outside `jax.jit` would compile each of its operations by itself.
        run = _sample if own is not None else _compiled
        blocks = run(sample, graph, nodes, sizes, key, drawn_by, own, capacities, axis_name)
    if deduplicate and not isinstance(blocks.overflow, Tracer) and bool(blocks.overflow):
        raise ValueError(f"capacity: expected room for all new nodes of each hop, got {limits}")
    return blocks


def _sample(
    sample: Sample,
    graph: Graph,
    seeds: Int[Array, " seeds"],
    sizes: tuple[int, ...],
    key: Array,
    weights: DrawWeights | None,
    own: OwnMethod | None,
    capacities: tuple[int, ...] | None,
    axis_name: str | None,
) -> Blocks:
    keys, num_seeds = hop_keys(key, len(sizes)), seeds.shape[0]
    by_kernel = is_tree_of_kernel(sample, graph, num_seeds, sizes) and axis_name is None
    if own is None and capacities is None and by_kernel:

        def hop_by_hop(
            graph: Graph, seeds: Array, keys: HopKeys, weights: DrawWeights | None
        ) -> Joined:
            levels, hops, _ = _hops(sample, graph, seeds, sizes, keys, weights)
            return joined(levels, hops)[1]

        layout = layout_of_tree(num_seeds, sizes)
        arrays = sample_tree(sample, graph, seeds, keys, weights, layout, hop_by_hop)
        return blocks_of(layout, arrays, None, jnp.zeros((), bool), num_seeds)
    chosen_by = None if own is None else (own, key)
    levels, hops, overflow = _hops(
        sample, graph, seeds, sizes, keys, weights, chosen_by, capacities, axis_name
    )
    layout, arrays = joined(levels, hops)
    columns = None if capacities is None else jnp.concatenate([hop.columns for hop in hops])
    return blocks_of(layout, arrays, columns, overflow, num_seeds)


_compiled = jax.jit(_sample, static_argnames=("sample", "sizes", "own", "capacities", "axis_name"))


def _hops(
    sample: Sample,
    graph: Graph,
    seeds: Int[Array, " seeds"],
    sizes: tuple[int, ...],
    keys: HopKeys,
    weights: DrawWeights | None = None,
    chosen_by: tuple[OwnMethod, Array] | None = None,
    capacities: tuple[int, ...] | None = None,
    axis_name: str | None = None,
) -> tuple[list[Level], list[Hop], Bool[Array, ""]]:
    """The levels and the hops, one after the other, and whether a hop had too many new nodes.

    `chosen_by`: a method of the user's and the key of all hops. `axis_name`: of the devices that
    have the other seeds.
    """
    levels = [level_of(seeds, 0)]
    hops: list[Hop] = []
    overflow = jnp.zeros((), bool)
    table = None
    count: Any = seeds.shape[0]  # of the places that the level has, without padding
    for h, size in enumerate(sizes):
        level = levels[-1]
        ids = None if capacities is None else level.nodes.astype(jnp.uint32)
        if ids is None and axis_name is not None:
            ids = _numbers_of_all(level.count, count, axis_name)
        table_of = None if weights is None else weights.table
        places = Places(graph, level.nodes, keys[h], ids, table_of)
        sample = sample._replace(size=size)
        most = 0 if graph.num_edges == 0 else (level.count - level.padding) * size
        if most == 0:
            offsets = jnp.zeros(level.count + 1, jnp.int32)
            edges, senders = jnp.zeros(0, graph.row_offsets.dtype), jnp.zeros(0, jnp.int32)
        elif chosen_by is not None:
            method, key = chosen_by
            hop_key = jax.random.fold_in(key, h)
            offsets, edges, senders = chosen_edges(method, places, hop_key, size, most)
        else:
            _, degrees = row_bounds(places)
            if weights is not None:
                positive = weights.counts[jnp.maximum(level.nodes, 0)]
                degrees = jnp.where(degrees > 0, positive, 0)
            taken = (
                jnp.where(degrees > 0, size, 0) if sample.replace else jnp.minimum(degrees, size)
            )
            offsets = offsets_of(taken.astype(jnp.int32))
            edges, senders = sample_edges(sample, places, offsets, most)
            assert edges is not None and senders is not None
        count = offsets[-1]
        used = jnp.arange(most, dtype=jnp.int32) < count
        first = level.first + level.count
        nodes = jnp.where(used, senders, -1)
        columns = first + jnp.arange(most, dtype=jnp.int32)
        if capacities is not None:
            table, columns, nodes, over = number_nodes(
                graph.num_nodes, table, levels, nodes, first, capacities[h]
            )
            overflow = overflow | over
        hops.append(Hop(offsets, columns, jnp.where(used, edges, -1), size))
        levels.append(level_of(nodes, first))
    return levels, hops, overflow


def _numbers_of_all(
    places: int, count: Int[Array, ""] | int, axis_name: str
) -> UInt32[Array, " places"]:
    """The numbers of a device's places among those of all devices, which follow one another."""
    counts = jax.lax.all_gather(jnp.asarray(count, jnp.uint32), axis_name)
    before = jnp.arange(counts.shape[0], dtype=jnp.int32) < jax.lax.axis_index(axis_name)
    first = jnp.sum(jnp.where(before, counts, 0), dtype=jnp.uint32)
    return first + jnp.arange(places, dtype=jnp.uint32)


def hop_sizes(values: Any) -> tuple[int, ...]:
    """The most edges of a node in each hop, checked: a sequence or an array of integers."""
    listed = _listed(values)
    if not listed:
        raise TypeError(
            f"num_neighbors: expected a number for each hop, such as [15, 10], got {values!r}"
        )
    return tuple(
        checks.integer(value, f"num_neighbors[{i}]", 1, LARGEST_SAMPLE)
        for i, value in enumerate(listed)
    )


def hop_capacities(capacity: Any, hops: int, deduplicate: bool) -> tuple[int | None, ...]:
    """The places for the new nodes of each hop, checked, `None` where they are not limited."""
    if capacity is None:
        return (None,) * hops
    if not deduplicate:
        raise ValueError(f"capacity: expected None without deduplicate, got {capacity!r}")
    listed = _listed(capacity)
    if listed is None or len(listed) != hops:
        raise ValueError(f"capacity: expected one for each of {hops} hops, got {capacity!r}")
    return tuple(
        None if value is None else checks.integer(value, f"capacity[{i}]", 0, MOST_PLACES)
        for i, value in enumerate(listed)
    )


def _listed(values: Any) -> list[Any] | None:
    if isinstance(values, np.ndarray | jax.Array) and not isinstance(values, Tracer):
        values = np.asarray(values).tolist()
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    return list(values) if is_list else None


def _level_sizes(
    graph: Graph,
    num_seeds: int,
    sizes: tuple[int, ...],
    limits: tuple[int | None, ...],
    deduplicate: bool,
) -> list[int]:
    """The most new nodes of each hop, that is, its places without the padding's."""
    counts, before, total = [], num_seeds, num_seeds + MOST_PADDING
    for h, (size, limit) in enumerate(zip(sizes, limits, strict=True)):
        most = before * size if graph.num_edges > 0 else 0
        total += most + MOST_PADDING
        if total > MOST_PLACES:
            raise ValueError(
                f"num_neighbors: expected fewer than 2^31 places in all, got {num_seeds} seeds "
                f"and {sizes[: h + 1]}"
            )
        if deduplicate:
            most = min(most, graph.num_nodes, MOST_PLACES if limit is None else limit)
        counts.append(most)
        before = most
    return counts
