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


def spmm(tiles, offsets, x, weights=None):
    """Tiles, other edges and their sum, float64 `[rows, features]`.

    Args:
        tiles: of one direction.
        offsets: the direction's row offsets.
        x: features.
        weights: in the edge order of the direction.
    """
    x = np.asarray(x, np.float64)
    rows, places = np.asarray(tiles.rows), np.asarray(tiles.edge_places)
    batches, num_rows = tiles.num_batches, rows.size
    place_of = np.empty(num_rows, np.int64)
    place_of[rows] = np.arange(num_rows)
    edge_row = np.repeat(place_of, np.diff(np.asarray(offsets)))
    matrices = masks_of(tiles)
    in_tile = places >= 0
    entry = places[in_tile]
    where = entry // 16, edge_row[in_tile] % 64, entry % 16
    counted = np.zeros_like(matrices)
    np.add.at(counted, where, 1)
    np.testing.assert_array_equal(counted, matrices)  # each edge of a mask once
    rest = np.ones(len(tiles.rest_columns))
    if weights is not None:
        weights = np.asarray(weights, np.float64)
        matrices[where] = weights[in_tile]
        rest[-1 - places[~in_tile]] = weights[~in_tile]
    assert np.array_equal(np.sort(-1 - places[~in_tile]), np.arange(rest.size))

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
