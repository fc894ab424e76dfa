"""The product over tiles in NumPy, from the layout as the tensor cores read it."""

import itertools

import numpy as np


def masks_of(tiles) -> np.ndarray:
    """The masks `[batches, 64, 16]`, register by register as `cuda/tiles/batches.cuh` unpacks them.

    Register r of a lane holds rows g + 8 (i & 1) and columns 2 t + 8 (i >> 1) and the next of the
    A operand of `mma.m16n8k16` number m, where r = 4 m + i, g = lane // 4 and t = lane % 4.
    """
    words = np.asarray(tiles.masks)
    out = np.zeros((len(words), 64, 16))
    for lane in range(32):
        for r in range(16):
            word = words[:, lane]
            register = (word >> np.uint32(1) if r == 0 else word << np.uint32(r - 1)) & 0x40004000
            m, i = divmod(r, 4)
            row, k = 16 * m + lane // 4 + 8 * (i & 1), 2 * (lane % 4) + 8 * (i >> 1)
            for half in range(2):  # 16-bit floats, 0 or 2
                value = (register >> np.uint32(16 * half)) & 0xFFFF
                assert np.isin(value, (0, 0x4000)).all()
                out[:, row, k + half] = value != 0
    return out


def place_of_edges(tiles):
    """Batch, row and entry of `tiles.edges`, walked as `cuda/tiles/staged.cuh` does: a warp for
    each row group of a part, stage by stage, row by row."""
    counts = np.asarray(tiles.edge_counts, np.int64)
    entries = np.asarray(tiles.edge_entries, np.int64)
    out = np.full((3, entries.size), -1)
    for first, end, slot, _ in np.asarray(tiles.parts):
        stages = range(tiles.stage_offsets[slot], tiles.stage_offsets[slot + 1])
        assert len(stages) == -(-(end - first) // 4)
        for warp in range(8):
            begin, last = np.asarray(tiles.edge_offsets)[8 * slot + warp :][:2]
            per_row = counts[stages.start : stages.stop, 8 * warp : 8 * warp + 8]
            assert per_row.sum() == last - begin
            stage, i = (np.repeat(n.ravel(), per_row.ravel()) for n in np.indices(per_row.shape))
            entry = entries[begin:last]
            batch = first + 4 * stage + entry // 16
            assert (batch < end).all()
            out[:, begin:last] = batch, warp + 8 * i, entry % 16
    return out


def spmm(tiles, offsets, x, weights=None):
    """Tiles, other edges and their sum, float64 `[rows, features]`.

    Args:
        tiles: of one direction.
        offsets: the direction's row offsets.
        x: features.
        weights: in the edge order of the direction.
    """
    x = np.asarray(x, np.float64)
    rows = np.asarray(tiles.rows)
    batches, num_rows = tiles.num_batches, rows.size
    matrices = masks_of(tiles)
    batch, row, entry = place_of_edges(tiles)
    edges, rest_edges = np.asarray(tiles.edges), np.asarray(tiles.rest_edges)
    counted = np.zeros_like(matrices)
    np.add.at(counted, (batch, row, entry), 1)
    np.testing.assert_array_equal(counted, matrices)  # each edge of a mask once
    edge_row = np.repeat(np.arange(num_rows), np.diff(np.asarray(offsets)))
    window = np.zeros(batches, int)
    for first, end, _, own in np.asarray(tiles.parts):
        window[first:end] = own
    np.testing.assert_array_equal(rows[window[batch] * 64 + row], edge_row[edges])
    rest_row = np.repeat(rows, np.diff(np.asarray(tiles.rest_offsets)))
    np.testing.assert_array_equal(rest_row, edge_row[rest_edges])
    every = np.sort(np.concatenate([edges, rest_edges]))
    np.testing.assert_array_equal(every, np.arange(edge_row.size))
    rest = np.ones(len(tiles.rest_columns))
    if weights is not None:
        weights = np.asarray(weights, np.float64)
        matrices[batch, row, entry] = weights[edges]
        rest = weights[rest_edges]

    by_batch = matrices @ x[np.asarray(tiles.columns)].reshape(batches, 16, x.shape[1])
    slots = np.full((len(tiles.parts), 64, x.shape[1]), np.nan)
    covered = np.zeros(batches, int)
    for first, end, slot, window in np.asarray(tiles.parts):
        slots[slot] = by_batch[first:end].sum(axis=0)
        covered[first:end] += 1
        assert tiles.slot_offsets[window] <= slot < tiles.slot_offsets[window + 1]
    assert (covered == 1).all()
    begins = np.asarray(tiles.slot_offsets)
    windows = [slots[a:b].sum(axis=0) for a, b in itertools.pairwise(begins)]
    tile_sums = np.concatenate([*windows, np.zeros((0, x.shape[1]))])[:num_rows]
    terms = rest[:, None] * x[np.asarray(tiles.rest_columns)]
    rest_sums = np.zeros_like(tile_sums)
    np.add.at(rest_sums, np.repeat(np.arange(num_rows), np.diff(tiles.rest_offsets)), terms)
    out = np.full_like(tile_sums, np.nan)
    out[rows] = tile_sums + rest_sums
    return out
