"""The layout of tiles that a GPU makes: XLA's operations alone, so that they are the same here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, tiles
from jaxgnn._core import device
from jaxgnn.graph._layouts import device_tiles
from jaxgnn.graph._layouts import tiles as _tiles
from jaxgnn.graph._layouts.device_windows import numbers_fit, rows_fit, sort_windows
from tests.support.strategies import examples, skewed_graph

pytestmark = pytest.mark.usefixtures("strict")
RNG = np.random.default_rng(0)


def check_rows(offsets, columns, num_columns: int, min_edges: int, order=None) -> _tiles.Tiles:
    """All arrays and counts of the host's layout of these rows, to the bit; returns the layout."""
    host = _tiles.lay_out(
        np.asarray(offsets), np.asarray(columns), num_columns, "numbered", order, min_edges
    )
    arrays, chunks, *counts = device_tiles.lay_out(
        jnp.asarray(offsets), jnp.asarray(columns), num_columns, order, min_edges
    )
    assert set(arrays) == {*_tiles._LAID_OUT, "rows"}
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, getattr(host, name), name, strict=True)
    np.testing.assert_array_equal(chunks.table, host.rest_chunks.table, strict=True)
    assert jax.tree.structure(chunks) == jax.tree.structure(host.rest_chunks)
    assert counts == [host.num_entries, host.num_columns]
    return host


def check(graph: Graph, min_edges: int, *, shuffle: bool = False) -> tuple[_tiles.Tiles, ...]:
    """Both directions, as numbered or in an order of their own."""
    return tuple(
        check_rows(
            offsets,
            columns,
            num_columns,
            min_edges,
            RNG.permutation(offsets.size - 1).astype(np.int32) if shuffle else None,
        )
        for offsets, columns, num_columns in (
            (graph.row_offsets, graph.senders, graph.num_senders),
            (graph.transpose_row_offsets, graph.transpose_receivers, graph.num_receivers),
        )
    )


@st.composite
def rectangles(draw) -> Graph:
    """Up to four windows with few or many columns, so that some are shared, also by no edge."""
    num_receivers, num_senders = draw(st.integers(1, 200)), draw(st.sampled_from([1, 20, 150]))
    size = draw(st.sampled_from([0, 50, 3_000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    senders = rng.integers(0, num_senders, size)
    receivers = np.sort(rng.integers(0, num_receivers, (2, size)), axis=0)[0]  # falling degrees
    return Graph.from_edges(
        senders, receivers, num_senders=num_senders, num_receivers=num_receivers
    )


@given(rectangles(), st.sampled_from([1, 2, 4, 8]), st.booleans())
@examples(4)
def test_layout_is_the_hosts(graph, min_edges, shuffle):
    """Rectangular graphs, repeated edges, short and empty windows, orders."""
    check(graph, min_edges, shuffle=shuffle)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("min_edges", "shuffle"), [(1, False), (2, True), (4, False), (4, True), (8, False)]
)
def test_hubs(min_edges, shuffle):
    """Hubs, self-loops, repeated edges; 64 does not divide the rows."""
    graph = skewed_graph(331, 12_000)
    assert graph.self_loops is not None and np.asarray(graph.self_loops).any()
    for side in check(graph, min_edges, shuffle=shuffle):
        assert 0 < side.tile_share < 1 and side.rest_chunks.table.shape[0] > 1


def test_windows_in_parts_and_empty_ones():
    """437 batches in one window; seven empty windows, of which the last is short."""
    receivers = np.concatenate([np.repeat(np.arange(5), 7_000), RNG.integers(448, 470, 3_000)])
    senders = np.concatenate([np.tile(np.arange(7_000), 5), RNG.integers(0, 40, 3_000)])
    graph = Graph.from_edges(senders, receivers, num_senders=7_000, num_receivers=500)
    side, _ = check(graph, 4)
    assert np.diff(side.slot_offsets).tolist() == [2, 0, 0, 0, 0, 0, 0, 1]
    assert np.asarray(side.parts)[:, 2].tolist() == [1, 0, 2]  # the longest first


def test_no_tiles_and_no_rest():
    repeated = Graph.from_edges(np.zeros(3_000, int), np.arange(3_000) % 3, num_nodes=100)
    side, _ = check(repeated, 1)
    assert side.num_batches == 0 and side.rest_chunks.table.shape[0] > 3
    senders, receivers = np.tile(np.arange(64), 64), np.repeat(np.arange(64), 64)
    side, _ = check(Graph.from_edges(senders, receivers, num_nodes=64), 4)
    assert side.rest_columns.size == 0


def test_the_last_batch_is_left_out():
    """16 entries of 20 of one degree: the last columns are not; in a second window all are."""
    senders = [np.repeat(np.arange(20), 4), np.repeat(np.arange(20), 16)]
    receivers = [np.tile(np.arange(4), 20), np.tile(np.arange(64, 80), 20)]
    ends = np.concatenate(senders), np.concatenate(receivers)
    side, _ = check(Graph.from_edges(*ends, num_senders=20, num_receivers=128), 4)
    assert side.num_entries == 16 + 20
    columns = [*range(16), *range(20), *[19] * 12]
    assert np.asarray(side.columns).tolist() == columns


@pytest.mark.few(1)
@pytest.mark.parametrize("counts", [(0, 0), (70, 0), (0, 70), (70, 70)], ids=str)
def test_no_edges(counts):
    num_receivers, num_senders = counts
    check(Graph.from_edges([], [], num_senders=num_senders, num_receivers=num_receivers), 1)


@pytest.mark.system
def test_rows_that_are_not_sorted():
    lengths = RNG.integers(0, 90, 150)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns = RNG.integers(0, 400, offsets[-1]).astype(np.int32)
    for min_edges in (1, 2):
        assert check_rows(offsets, columns, 400, min_edges).num_entries > 0


@pytest.mark.parametrize(
    ("num_windows", "num_columns"),
    [(9, 40), (1 << 12, 1 << 20), (1 << 20, 1 << 15), (1 << 15, 1 << 20), (1 << 17, 1 << 17)],
)
def test_sorted_windows(num_windows, num_columns):
    """By one key, at its largest, too, and by two of each width."""
    window = np.sort(RNG.integers(0, num_windows, 500))
    window[-1] = num_windows - 1
    columns = RNG.integers(max(num_columns - 60, 0), num_columns, 500)
    columns[-1] = num_columns - 1
    expected = np.lexsort((columns, window))
    arrays = (jnp.asarray(values, jnp.int32) for values in (window, columns))
    edges, in_order = sort_windows(*arrays, num_windows, num_columns)
    np.testing.assert_array_equal(edges, expected.astype(np.int32), strict=True)
    np.testing.assert_array_equal(in_order, columns[expected].astype(np.int32), strict=True)


def test_which_rows_fit():
    """The device's check of a graph's rows, and where places beyond its edges are no int32."""
    offsets, columns = jnp.array([0, 2, 2, 3]), jnp.array([0, 5, 1])
    assert rows_fit(offsets, columns, 6) is True
    for wrong in ([0, 2, 1, 3], [1, 2, 2, 3], [0, 2, 2, 2], [0, 2, 2, 4]):
        assert rows_fit(jnp.array(wrong), columns, 6) is False
    assert not rows_fit(offsets, columns, 5) and not rows_fit(offsets, columns - 1, 6)
    assert numbers_fit(1 << 29, (1 << 29) - 1) and not numbers_fit(1 << 29, 1 << 29)


@pytest.mark.system
@pytest.mark.usefixtures("x64")
def test_with_64_bit_types():
    graph = skewed_graph(70, 900)
    check(graph, 2, shuffle=True)
    check_rows(np.asarray(graph.row_offsets, np.int64), graph.senders, 70, 2)


@pytest.mark.system
def test_graphs_on_a_gpu_take_it(monkeypatch):
    """Where it is asked for, both directions; as numbered without the host's module."""
    graphs = skewed_graph(90, 1_500), skewed_graph(90, 700, undirected=True)
    calls, lay_out = [], device_tiles.lay_out

    def counted(*arguments):
        calls.append(arguments)
        return lay_out(*arguments)

    monkeypatch.setattr(device_tiles, "lay_out", counted)
    for graph in graphs:
        for order in ("numbered", "auto"):
            expected = graph.with_tiles(order=order, min_edges=2)
            assert not calls
            with monkeypatch.context() as patch:
                patch.setattr(device, "on_gpu", lambda array: True)
                graph.with_tiles(order=order, min_edges=2)
                assert not calls
                if order == "numbered":
                    patch.setattr(_tiles, "host_module", None)
                made = graph.with_tiles(order=order, min_edges=2, on_device=True)
            assert len(calls) == (1 if graph.symmetric else 2)
            calls.clear()
            assert jax.tree.structure(made) == jax.tree.structure(expected)
            jax.tree.map(np.testing.assert_array_equal, made, expected)
            assert (made.tiles is made.transpose_tiles) == graph.symmetric
    # As if too large, and without edges: on the host.
    monkeypatch.setattr(device, "on_gpu", lambda array: True)
    Graph.from_edges([], [], num_nodes=9).with_tiles(order="numbered", on_device=True)
    monkeypatch.setattr(_tiles, "numbers_fit", lambda *sizes: False)
    graphs[0].with_tiles(order="numbered", on_device=True)
    assert not calls


@pytest.mark.system
def test_made_where_a_function_is_traced(monkeypatch):
    """Of a graph that is no argument of it."""
    graph = skewed_graph(65, 300)
    expected = graph.with_tiles(order="numbered", min_edges=2).tiles, tiles.translate(graph)
    monkeypatch.setattr(device, "on_gpu", lambda array: True)

    @jax.jit
    def traced(x):
        made = graph.with_tiles(order="numbered", min_edges=2, on_device=True)
        made = made.tiles, tiles.translate(graph)
        return [x + one.columns for one in made if one is not None]

    for columns, one in zip(traced(jnp.int32(0)), expected, strict=True):
        assert one is not None
        np.testing.assert_array_equal(columns, one.columns)
