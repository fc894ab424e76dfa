"""What `ShardedGraph.explain` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxgnn.distributed._sharded_graph import ShardedGraph


def explain(sharded: ShardedGraph, features: int, itemsize: int, k: int | None) -> str:
    """The layout, bytes and predicted times of one aggregation."""
    nodes = max(sharded.num_nodes, 1)
    rows = 1 if sharded.rows is None else sharded.mesh.shape[sharded.rows]
    columns = 1 if sharded.features is None else sharded.mesh.shape[sharded.features]
    ideal = 2 * nodes * (columns - 1) / (columns * sharded.parts) + sharded.halo / sharded.parts
    steps, formulas = [], []
    if sharded.features is not None:
        formulas.append("2 N F (P - 1) / P^2" if rows == 1 else "2 N F (C - 1) / (C P)")
        steps.append("all_to_all from rows to columns, and back")
    if sharded.rows is not None:
        formulas.append(f"h N F / P, h = {sharded.halo / nodes:.3f}")
        all_rows = sharded.sends is None and sharded.pair_rows > 0
        steps.append(f"{'all rows of each part' if all_rows else 'halo rows'} by one all_to_all")
    size = (
        itemsize if sharded.exchange_dtype is None else jnp.dtype(sharded.exchange_dtype).itemsize
    )
    width = -(-features // columns) * columns
    (own,) = (cost for cost in sharded.costs if cost.layout == sharded.layout)
    sent = own.sent * width / features
    times = ", ".join(
        f"{cost.layout} {1e3 * cost.seconds(itemsize * features, size * features):.3g} ms "
        f"({cost.gathered:,.0f} rows gathered, {cost.sent:,.0f} sent)"
        for cost in sharded.costs
    )
    sparse = ""
    if k is not None:
        forward, back = (
            own.sent * k * (size + (1 if features <= 256 else 2)),
            own.sent * k * size,
        )
        share = (forward + back) / (2 * max(own.sent, 1) * size * features)
        sparse = (
            f"\nsparse rows of {k} entries: {forward:,.0f} bytes, their gradients {back:,.0f}; "
            f"together {share:.3f} of the dense rows' both ways"
        )
    what = "the graph is" if sharded.rows is None else "a part of the graph is"
    return (
        f"layout {sharded.layout} over {sharded.parts} devices ({', '.join(sharded.node_axes)}): "
        f"{'; '.join(steps)}; {what} on every device\n"
        f"sent a device and aggregation of {features} features: "
        f"{sent * size * features:,.0f} bytes; "
        f"{' + '.join(formulas)} gives {ideal * size * features:,.0f}\n"
        f"padding: {sharded.num_senders / nodes:.3f} places a node; "
        f"{sent / ideal if ideal else 1:.3f} values sent for each needed\n"
        f"predicted: {times}{_choice(sharded)}{_overlap(sharded)}{sparse}"
    )


def _choice(sharded: ShardedGraph) -> str:
    """Why it is this layout, where none was named."""
    if len(sharded.costs) == 1:
        return ""
    size = 4 if sharded.exchange_dtype is None else 2
    fastest = min(sharded.costs, key=lambda cost: cost.seconds(4, size))
    if fastest.layout == sharded.layout:
        return f"; {sharded.layout} is taken, as it is faster"
    return (
        f"; {sharded.layout} is taken for the partition or the overlap that was given: "
        f"{fastest.layout} is faster"
    )


def _overlap(sharded: ShardedGraph) -> str:
    """Whether edges are aggregated while the halo travels, and what that is predicted to win."""
    edges, size = sharded.edges, 4 if sharded.exchange_dtype is None else 2
    if sharded.rows is None or edges is None:
        return ""
    ratio, seconds = edges.gain(sharded.mesh.shape[sharded.rows], size)
    held = "off: a part's edges are in one graph"
    if sharded.kinds is not None:
        alone = "alone" if sharded.graph is None else "and all of them in one, too"
        held = f"on: a part's edges are in two graphs, {alone}"
    return (
        f"\noverlap {held}; of the largest part {edges.owned:,} edges start in it and "
        f"{edges.halo:,} in the halo; predicted {ratio:.2f} times as fast, "
        f"{1e3 * seconds:.3g} ms saved of 256 float32 features"
    )
