"""Sparse graph translation: against NumPy, published block counts, its inverse, bad arguments."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, tiles
from jaxgnn._core import device, ffi
from jaxgnn.data import load
from jaxgnn.graph import tiles as implementation
from jaxgnn.graph._layouts import device_translation
from tests.support.strategies import graphs, skewed_graph

SHAPES = [(16, 8), (16, 16), (64, 16), (3, 2), (1, 1)]


def by_definition(graph: Graph, rows: int, columns: int, transpose: bool) -> dict:
    """The translation, window by window."""
    offsets = graph.transpose_row_offsets if transpose else graph.row_offsets
    edge_columns = np.asarray(graph.transpose_receivers if transpose else graph.senders)
    offsets = np.asarray(offsets).tolist()
    blocks, before, ranks, lists, edge_counts, entries = [], [], [], [], [], set()
    for first in range(0, len(offsets) - 1, rows):
        bounds = offsets[first : first + rows + 1]
        read = edge_columns[bounds[0] : bounds[-1]].tolist()
        distinct = sorted(set(read))
        blocks.append(-(-len(distinct) // columns))
        ranks += [distinct.index(column) for column in read]
        lists.append(distinct)
        edge_counts += [min(read.count(column), rows) for column in distinct]
        for row, ends in enumerate(itertools.pairwise(bounds), first):
            entries |= {(row, column) for column in edge_columns[slice(*ends)].tolist()}
        starts = []
        for column in distinct:
            if not starts or column >= starts[-1] + columns:
                starts.append(column)
        before.append(len(starts))
    return {
        "window_blocks": blocks,
        "window_blocks_before": before,
        "edge_columns": ranks,
        "edge_offsets": [*offsets[:-1:rows], offsets[-1]],
        "column_offsets": np.cumsum([0, *map(len, lists)]).tolist(),
        "columns": list(itertools.chain.from_iterable(lists)),
        "edge_histogram": np.bincount(np.array(edge_counts, int), minlength=rows + 1).tolist(),
        "num_entries": len(entries),
        "num_blocks": sum(blocks),
        "num_blocks_before": sum(before),
    }


def check(graph: Graph, shape: tuple[int, int], transpose: bool) -> tiles.Translation:
    result = tiles.translate(graph, *shape, transpose=transpose)
    for name, expected in by_definition(graph, *shape, transpose).items():
        assert np.asarray(getattr(result, name)).tolist() == expected, name
    restored = graph.transpose_receivers if transpose else graph.senders
    np.testing.assert_array_equal(result.restore(), restored)
    return result


@given(graphs(max_nodes=40), st.sampled_from(SHAPES), st.booleans())
def test_translation_is_its_definition(graph, shape, transpose):
    """Also of empty graphs and windows, repeated edges, rectangular graphs, a last short window."""
    check(graph, shape, transpose)


def random_rows(wide: bool) -> tuple[np.ndarray, np.ndarray]:
    """Row offsets and unsorted columns, with hubs, runs of empty rows, and work for two threads."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 40, 3_001) * (rng.random(3_001) < 0.7)
    lengths[[5, 2_000]] = 9_000, 40_000
    lengths[100:300] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64 if wide else np.int32)
    return offsets, rng.integers(0, 20_000, offsets[-1]).astype(np.int32)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
def test_kernel_equals_numpy(wide):
    if ffi.cpu_module is None:
        pytest.skip("needs jaxgnn._cpu")
    offsets, columns = random_rows(wide)
    for shape in SHAPES[::2]:
        result = ffi.cpu_module.translate(offsets, columns, *shape)
        expected = implementation._translate_numpy(offsets, columns, *shape)
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", SHAPES[1::2], ids=str)
def test_device_program_equals_numpy(shape):
    """What a GPU runs is XLA's alone, so that it is the same here."""
    for offsets, columns in [random_rows(False), (np.zeros(6, np.int32), np.zeros(0, np.int32))]:
        given = jnp.asarray(offsets), jnp.asarray(columns)
        arrays, num_entries = device_translation.translate(*given, *shape, 20_000)
        expected = implementation._translate_numpy(offsets, columns, *shape)._asdict()
        assert num_entries == expected.pop("num_entries")
        for name, values in expected.items():
            np.testing.assert_array_equal(arrays[name], values, name, strict=True)


def test_graphs_on_a_gpu_take_the_device_program(monkeypatch):
    monkeypatch.setattr(device, "on_gpu", lambda array: True)
    check(skewed_graph(90, 700), (16, 8), True)
    check(Graph.from_edges([3], [1], num_senders=4, num_receivers=34), (16, 8), False)


def test_statistics():
    """A window of two rows over the columns 0, 9 and 16, one column read by both."""
    graph = Graph.from_edges([0, 9, 9, 16], [0, 0, 1, 1], num_senders=17, num_receivers=18)
    result = tiles.translate(graph)
    assert (result.num_windows, result.num_blocks, result.num_blocks_before) == (2, 1, 2)
    assert result.reduction == 0.5
    assert result.density == 4 / 128
    assert result.edges_per_column == 4 / 3
    assert np.asarray(result.edge_histogram)[:3].tolist() == [0, 2, 1]
    assert repr(result) == "Translation(2 windows, 2 -> 1 blocks of 16x8, 1.33 edges a column)"
    leaves, structure = jax.tree.flatten(result)
    assert jax.tree.unflatten(structure, leaves).num_blocks == 1

    none = tiles.translate(Graph.from_edges([], [], num_nodes=0))
    assert (none.num_windows, none.num_blocks, none.restore().size) == (0, 0, 0)
    assert (none.reduction, none.density, none.edges_per_column) == (0, 0, 0)


def test_without_the_compiled_module(monkeypatch):
    monkeypatch.setattr(implementation, "cpu_module", None)
    check(skewed_graph(90, 700), (16, 8), True)


def test_cora_as_published(data_directory):
    """In both directions; the edges that Cora's file repeats would change no count."""
    if not (data_directory / "cora").is_dir():
        pytest.skip(f"no {data_directory / 'cora'}")
    graph = load(data_directory / "cora").graph
    assert (graph.num_edges, graph.symmetric) == (10_556, True)
    for shape, before, after in [((16, 8), 7_477, 1_268), ((16, 16), 6_509, 681)]:
        result = tiles.translate(graph, *shape)
        assert (result.num_blocks_before, result.num_blocks) == (before, after)
        assert round(result.edges_per_column, 2) == 1.10


def test_proteins_as_published(data_directory):
    """32 % fewer blocks."""
    path = data_directory / "proteins_full" / "PROTEINS_full_A.txt"
    if not path.is_file():
        pytest.skip(f"no {path}")
    edges = np.loadtxt(path, np.int32, delimiter=",") - 1
    graph = Graph.from_edges(edges[:, 1], edges[:, 0], num_nodes=43_471)
    for shape, before, after in [((16, 8), 19_031, 12_880), ((16, 16), 11_518, 7_120)]:
        result = tiles.translate(graph, *shape)
        assert (result.num_blocks_before, result.num_blocks) == (before, after)
        assert round(result.edges_per_column, 2) == 1.73
    assert round(tiles.translate(graph).reduction, 2) == 0.32


def test_bad_arguments():
    graph = Graph.from_edges([0], [1], num_nodes=2)
    for rows in (1.5, True, "16"):
        with pytest.raises(TypeError, match="rows: expected an integer, got"):
            tiles.translate(graph, rows)
    for rows in (0, -1, 1025):
        with pytest.raises(ValueError, match="rows: expected an integer from 1 to 1024, got"):
            tiles.translate(graph, rows)
    with pytest.raises(ValueError, match="columns: expected an integer from 1 to 1024, got 0"):
        tiles.translate(graph, columns=0)
    with pytest.raises(TypeError, match="graph: expected a jaxgnn"):
        tiles.translate([])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="transpose: expected True or False, got 'no'"):
        tiles.translate(graph, transpose="no")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="on_device: expected True or False, got 'cpu'"):
        graph.with_tiles(on_device="cpu")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="translate: call it outside"):
        jax.jit(lambda graph: tiles.translate(graph).columns)(graph)
