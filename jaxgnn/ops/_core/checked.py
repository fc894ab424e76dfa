"""`jaxgnn.config.check_graphs`: no kernel reads outside of a graph's arrays.

Transformations of pytrees may alter a graph in any way. What its arrays say is known only when a
program runs: the arrays go through a callback on the host, which raises an error in place of what
would be read. The columns of sparse rows are checked alike.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, UInt

from jaxgnn.graph._build.row_chunks import RowChunks
from jaxgnn.graph._layouts.tile_sizes import STAGE_BATCHES
from jaxgnn.graph._layouts.tiles import Tiles
from jaxgnn.graph._layouts.windows import Windows, masks_within, slots_within


def check_rows(rows: Any, num_columns: int, num_edges: int) -> Any:
    """The `Rows`, if their indices lie within `num_columns` and `num_edges`."""
    offsets, columns, chunks, order, schedule = rows
    return _guarded(
        rows,
        {
            "row offsets": _rise(offsets, num_edges),
            "columns": _within(columns, num_columns),
            "row chunks": _are_chunks(chunks, jnp.diff(offsets)),
            "edge order": _within(order, num_edges),
            "row schedule": _within(schedule, rows.num_rows),
        },
    )


def check_windows(
    windows: Windows, num_receivers: int, num_senders: int, num_edges: int
) -> Windows:
    """The windows, if their indices lie within the nodes, the entries and the edges."""
    window, first, end, partial = windows.parts.T
    entries = windows.senders.shape[0]
    inside = (first >= 0) & (first <= end) & (end <= entries) & (partial < windows.num_partials)
    inside &= window < windows.rows.shape[0]
    return _guarded(
        windows,
        {
            "windows' rows": _within(windows.rows, num_receivers, -1),
            "windows' parts": jnp.all(inside | (window < 0)),
            "windows' senders": _within(windows.senders, num_senders),
            "windows' masks": masks_within(windows),
            "windows' edges": _within(windows.edges, num_edges),
            "windows' slots": slots_within(windows, num_edges),
        },
    )


def check_tiles(tiles: Tiles, num_columns: int) -> Tiles:
    """The tiles, if their indices lie within the columns, the rows, the batches and the edges."""
    first, end, slot, window = tiles.parts.T
    parts, edges = tiles.parts.shape[0], tiles.edges.shape[0]
    inside = (first >= 0) & (first <= end) & (end <= tiles.num_batches)
    inside &= (slot >= 0) & (slot < parts) & (window >= 0)
    # The stages are those of the parts' batches: the kernels count them from there.
    stages = jnp.diff(tiles.stage_offsets)[jnp.clip(slot, 0, parts - 1)] if parts else slot
    inside &= stages == -(-(end - first) // STAGE_BATCHES)
    return _guarded(
        tiles,
        {
            "tiles' rows": _within(tiles.rows, tiles.rows.shape[0]),
            "tiles' columns": _within(tiles.columns, num_columns),
            "tiles' parts": jnp.all(inside),
            "tiles' slot offsets": _rise(tiles.slot_offsets, parts),
            "tiles' rest offsets": _rise(tiles.rest_offsets, tiles.rest_columns.shape[0]),
            "tiles' rest columns": _within(tiles.rest_columns, num_columns),
            "tiles' rest chunks": _are_chunks(tiles.rest_chunks, jnp.diff(tiles.rest_offsets)),
            "tiles' rest edges": _within(tiles.rest_edges, tiles.num_edges),
            "tiles' stage offsets": _rise(tiles.stage_offsets, tiles.edge_counts.shape[0]),
            "tiles' edge offsets": _rise(tiles.edge_offsets, edges),
            "tiles' edges": _within(tiles.edges, tiles.num_edges),
        },
    )


def check_columns(indices: UInt[Array, "*rows k"], width: int, name: str) -> UInt[Array, "*rows k"]:
    """The columns of sparse rows, if they are below the width and ascend, so that none is there
    twice."""
    columns = indices.astype(jnp.int32)  # 256 is no uint8
    inside = _within(columns, width) & jnp.all(columns[..., 1:] > columns[..., :-1])
    error = f"{name}.indices: expected ascending columns below {width} without repetition"
    return _guarded(indices, {"": inside}, f"{error} in each row")


def _guarded(
    tree: Any,
    conditions: Mapping[str, Bool[Array, ""]],
    error: str = "graph: {} out of range, see Graph.validate()",
) -> Any:
    names = tuple(conditions)
    flags = jnp.stack(list(conditions.values()))
    if not isinstance(flags, Tracer):
        _raise_unless(names, error, flags)
        return tree
    holds = jax.pure_callback(
        functools.partial(_raise_unless, names, error),
        jax.ShapeDtypeStruct((), np.bool_),
        flags,
        vmap_method="sequential",
    )
    return jax.tree.map(lambda array: jnp.where(holds, array, jnp.zeros_like(array)), tree)


def _raise_unless(names: tuple[str, ...], error: str, flags: Any) -> np.ndarray:
    wrong = [name for name, flag in zip(names, np.asarray(flags), strict=True) if not flag]
    if wrong:
        text = error.format(", ".join(wrong))
        raise ValueError(f"{text} (found as jaxgnn.config.check_graphs is set)")
    return np.asarray(True)


def _within(values: Array | None, bound: int, least: int = 0) -> Bool[Array, ""]:
    if values is None:
        return jnp.asarray(True)
    return jnp.all((values >= least) & (values < bound))


def _rise(offsets: Array, num_edges: int) -> Bool[Array, ""]:
    return (offsets[0] == 0) & (offsets[-1] == num_edges) & jnp.all(jnp.diff(offsets) >= 0)


def _are_chunks(chunks: RowChunks, lengths: Array) -> Bool[Array, ""]:
    """Each entry is padding or a chunk that its row has."""
    row, chunk = chunks.table.T
    if lengths.size == 0:
        return jnp.all(row < 0)
    counts = -(-lengths // chunks.length)
    known = jnp.clip(row, 0, lengths.size - 1)
    has = (row < lengths.size) & (chunk >= 0) & (chunk.astype(counts.dtype) < counts[known])
    return jnp.all((row < 0) | has)
