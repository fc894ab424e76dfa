"""Tiles of real graphs, where the data sets are: every edge once, and how much windows share."""

import numpy as np
import pytest

from jaxgnn.data import load
from tests.support import oracle_tiles

# File, whether edges go both ways, order, the order found, edges a column in 64 rows.
SETS = [
    ("facebook_combined/facebook_combined.txt.gz", True, "auto", "groups", 9.20),
    ("amazon_photo/amazon_electronics_photo.npz", True, "auto", "groups", 4.45),
    ("wikipedia_pos/wikipedia.ungraph.gz", True, "auto", "labels", 3.06),
    ("p2p_gnutella31/p2p-Gnutella31.mtx.gz", False, "labels", "labels", 1.40),
]


@pytest.mark.parametrize(("file", "undirected", "order", "found", "u"), SETS)
def test_layout(data_directory, file, undirected, order, found, u):
    """The weighted product over the layout in float64 against SciPy's; the oracle also compares
    the masks with the edges that are listed."""
    path = data_directory / file
    if not path.is_file():
        pytest.skip(f"no {path}")
    graph = load(path, undirected=undirected).graph.with_tiles(order=order)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(graph.num_edges)
    matrix = graph.to_scipy(weights)  # senders by receivers
    sides = [(graph.tiles, graph.row_offsets, matrix.T, weights)]
    if not graph.symmetric:
        permutation = np.asarray(graph.transpose_permutation)
        offsets = graph.transpose_row_offsets
        sides += [(graph.transpose_tiles, offsets, matrix, weights[permutation])]
    for side, offsets, matrix, values in sides:
        x = rng.standard_normal((matrix.shape[1], 2))
        got = oracle_tiles.spmm(side, offsets, x, values)
        np.testing.assert_allclose(got, matrix @ x, rtol=1e-12, atol=1e-11)
    assert graph.tiles.order == found
    assert graph.tiles.edges_per_column == pytest.approx(u, abs=0.01)
    assert 0 < graph.tiles.tile_share < 1
