"""What sampled blocks have to be, whatever draws their edges: everything but the probabilities."""

import numpy as np


def check_blocks(graph, blocks, seeds, sizes, *, unique, replace=False, available=None):
    """Checks places, edges, masks and counts, hop by hop.

    `unique`: a node has one place. `available`: how many edges of each node may be drawn; all of
    them if not given.
    """
    nodes, edges = np.asarray(blocks.nodes), np.asarray(blocks.edges)
    first = blocks.graphs[0]
    senders, receivers = np.asarray(first.senders), np.asarray(first.receivers)
    real = edges >= 0
    np.testing.assert_array_equal(blocks.edge_mask, real)
    np.testing.assert_array_equal(blocks.node_mask, nodes >= 0)
    assert len(nodes) == first.num_senders and len(edges) == first.num_edges
    # Edges are those of the graph, between the places of their nodes; padding joins padding.
    np.testing.assert_array_equal(np.asarray(graph.senders)[edges[real]], nodes[senders[real]])
    np.testing.assert_array_equal(np.asarray(graph.receivers)[edges[real]], nodes[receivers[real]])
    assert (nodes[senders[~real]] == -1).all()
    assert (nodes[receivers[~real]] == -1).all()
    np.testing.assert_array_equal(nodes[: len(seeds)], seeds)
    # Of all edges that a place may take it takes `size`, or all, and those of the last level none.
    limits = np.asarray(graph.in_degrees) if available is None else np.asarray(available)
    limits = np.append(limits, 0)[nodes]
    taken = np.bincount(receivers[real], minlength=len(nodes))
    begin = 0
    for layer, size in zip(blocks.graphs[::-1], sizes, strict=True):
        level = slice(begin, layer.num_receivers)
        expected = size * (limits > 0) if replace else np.minimum(limits, size)
        np.testing.assert_array_equal(taken[level], expected[level])
        begin = layer.num_receivers
    assert not taken[begin:].any()
    if not replace:  # no edge twice at a place
        pairs = np.stack([receivers[real], edges[real]])
        assert np.unique(pairs, axis=1).shape == pairs.shape
    _check_places(blocks, seeds, nodes, senders, real, unique)
    for layer, deeper in zip(blocks.graphs[1:], blocks.graphs, strict=False):
        # The receivers of a layer are the first of its senders, and the senders of the next.
        assert layer.num_senders == deeper.num_receivers <= deeper.num_senders
        count = layer.num_edges
        np.testing.assert_array_equal(layer.senders, deeper.senders[:count])
        np.testing.assert_array_equal(layer.receivers, deeper.receivers[:count])
    for layer in blocks.graphs:
        layer.validate()


def _check_places(blocks, seeds, nodes, senders, real, unique):
    """The sender of an edge has a place of its own, or with `unique` that of its node: the first of
    equal seeds, else in the order of first occurrence."""
    used = np.flatnonzero(nodes >= 0)
    if not unique:
        times = np.bincount(senders[real], minlength=len(nodes))
        assert (times[used[used >= len(seeds)]] == 1).all()
        assert not times[: len(seeds)].any()
        return
    place_of: dict[int, int] = {}
    for place, seed in enumerate(seeds):
        if seed >= 0:
            place_of.setdefault(int(seed), place)
    begin = 0
    for layer in blocks.graphs[::-1]:
        following = layer.num_receivers
        for edge in range(begin, layer.num_edges):
            if real[edge]:
                node = int(nodes[senders[edge]])
                if node not in place_of:
                    place_of[node] = following
                    following += 1
                assert senders[edge] == place_of[node]
        assert (nodes[following : layer.num_senders] == -1).all()
        begin = layer.num_edges
    assert set(nodes[used]) == set(place_of)
