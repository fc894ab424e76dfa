"""Windows of receivers: their structure."""

import dataclasses
import heapq
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph
from jaxgnn._core import ffi
from jaxgnn.graph._layouts import windows as _windows
from tests.support.oracle import edges
from tests.support.strategies import graphs, skewed_graph
from tests.support.window_products import hubs

pytestmark = pytest.mark.few(1)


@pytest.fixture(scope="module")
def hub_graph() -> Graph:
    return hubs()


def decoded(graph: Graph) -> np.ndarray:
    """The edges (receiver, sender) that the windows list, sorted."""
    assert graph.windows is not None
    rows, parts, senders, masks = (
        np.asarray(getattr(graph.windows, name)) for name in ("rows", "parts", "senders", "masks")
    )
    begins, ends = parts[:, 1], parts[:, 2]
    np.testing.assert_array_equal(begins[1:], ends[:-1])  # the parts have each entry once
    window = np.repeat(parts[:, 0], ends - begins)
    bits = np.unpackbits(masks.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    assert bits.any(axis=1).all() and not bits[:, rows.shape[1] :].any()
    entry, bit = np.nonzero(bits)
    found = np.stack([rows[window[entry], bit], senders[entry]], axis=1)
    return found[np.lexsort(found.T[::-1])].astype(np.int64)


def listed(graph: Graph) -> np.ndarray:
    senders, receivers = edges(graph)
    return np.array(sorted(zip(receivers, senders, strict=True)), np.int64).reshape(-1, 2)


def bits_of(mask: np.ndarray) -> list[int]:
    return [r for r in range(64) if mask[r // 32] >> (r % 32) & 1]


def assert_edges_of_slots(graph: Graph) -> None:
    """That each entry's slots hold its edges, by receiver, and every edge has a slot."""
    windows = graph.windows
    assert windows is not None and windows.edges is not None and windows.slots is not None
    source, target = edges(graph)
    rows, parts, entry_senders, masks, edge_of, slots = (
        np.asarray(getattr(windows, name))
        for name in ("rows", "parts", "senders", "masks", "edges", "slots")
    )
    np.testing.assert_array_equal(np.sort(edge_of), np.arange(graph.num_edges))
    for window, begin, end, _ in parts:
        for e in range(begin, end):
            receivers = [rows[window, r] for r in bits_of(masks[e])]
            first = (int(slots[window, len(receivers)]) + len(receivers) * e) % 2**32
            found = edge_of[first : first + len(receivers)]
            np.testing.assert_array_equal(target[found], receivers)
            np.testing.assert_array_equal(source[found], entry_senders[e])


@given(graphs(), st.sampled_from([1, 256, 260, 384, 512, 1000, 1024]))
def test_windows_list_every_edge_once(graph, width):
    windowed = graph.with_windows(weighted=True, width=width)
    receivers = windowed.windows.receivers
    assert windowed.windows.rows.shape[0] == -(-graph.num_receivers // receivers)
    assert receivers == (64 if width <= 256 else 16384 // width)
    assert windowed.windows.width >= width
    np.testing.assert_array_equal(decoded(windowed), listed(graph))
    rows = np.asarray(windowed.windows.rows).ravel()
    np.testing.assert_array_equal(np.sort(rows[rows >= 0]), np.arange(graph.num_receivers))
    assert_edges_of_slots(windowed)
    assert windowed.validate() is windowed
    assert graph.with_windows().windows.edges is None


@pytest.mark.parametrize(("more_senders", "most"), [(0, 1280), (1, 3500)])
def test_receivers_of_a_community_share_windows(more_senders, most):
    """Also in a rectangular graph, where senders and receivers are different nodes."""
    rng = np.random.default_rng(0)
    community = rng.permutation(np.arange(1280) % 20)  # of 64 nodes each
    receivers = rng.integers(1280, size=40_000)
    members = np.argsort(community, kind="stable").reshape(20, 64)
    senders = members[community[receivers], rng.integers(64, size=40_000)]
    senders, receivers = np.unique(np.stack([senders, receivers]), axis=1)
    graph = Graph.from_edges(
        senders, receivers, num_senders=1280 + more_senders, num_receivers=1280
    ).with_windows()
    # Of 31,678 edges; 64 entries for each community, if it has a window of its own.
    assert graph.windows.senders.shape[0] <= most
    np.testing.assert_array_equal(decoded(graph), listed(graph))


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [256, 512])
def test_long_windows_are_cut(hub_graph, width):
    graph = hub_graph.with_windows(weighted=True, width=width)
    parts = np.asarray(graph.windows.parts)
    places = parts[:, 3]
    assert graph.windows.num_partials == (places >= 0).sum() > 1
    np.testing.assert_array_equal(np.sort(places[places >= 0]), np.arange((places >= 0).sum()))
    np.testing.assert_array_equal(decoded(graph), listed(graph))
    assert_edges_of_slots(graph)


def test_few_windows_are_cut_into_more_parts():
    """Of 12,800 edges, 200 a receiver: one part of 32,768 entries would hold them all."""
    rng = np.random.default_rng(0)
    edges = rng.integers(20_000, size=12_800), np.arange(12_800) % 64
    graph = Graph.from_edges(*edges, num_senders=20_000, num_receivers=64)
    graph = graph.with_windows(weighted=True)
    lengths = np.diff(np.asarray(graph.windows.parts)[:, 1:3])
    assert lengths.size > 1 and lengths.max() <= 8192
    np.testing.assert_array_equal(decoded(graph), listed(graph))
    assert_edges_of_slots(graph)


def test_heavy_entries_are_cut_finer():
    """A window's first entries have most edges: a part of them has fewer entries."""
    dense = np.repeat(np.arange(3000), 64), np.tile(np.arange(64), 3000)
    rest = 3000 + np.arange(9000), np.arange(9000) % 64
    ends = (np.append(*pair) for pair in zip(dense, rest, strict=True))
    graph = Graph.from_edges(*ends, num_senders=12_000, num_receivers=64).with_windows()
    parts, masks = np.asarray(graph.windows.parts), np.asarray(graph.windows.masks)
    lengths = parts[:, 2] - parts[:, 1]
    edges = np.append(0, np.cumsum(np.bitwise_count(masks).sum(axis=1, dtype=np.int64)))
    costs = lengths + edges[parts[:, 2]] - edges[parts[:, 1]]
    heavy = parts[:, 2] <= 3000
    assert heavy.sum() >= 12 and costs.max() <= 16_000 + 65
    assert lengths.max() > 10 * lengths[heavy].max()
    np.testing.assert_array_equal(decoded(graph), listed(graph))


def test_no_block_of_a_gpu_ends_late():
    """Of its 264 blocks each takes the next part as soon as it is free. The heaviest of 330 windows
    has more work than a block's share of all, which is that of a window and a quarter."""
    rng = np.random.default_rng(0)
    degrees = np.repeat((300 * rng.lognormal(0, 0.5, 330) / 8).astype(int) * 8, 64)
    degrees[:64] = 1500
    offsets = np.append(0, np.cumsum(degrees)).astype(np.int32)
    senders = np.concatenate([rng.choice(2000, n, replace=False) for n in degrees])
    order = np.arange(degrees.size, dtype=np.int32)
    windows = _windows.build(offsets, senders.astype(np.int32), 2000, False, 64, order)
    parts, masks = np.asarray(windows.parts), np.asarray(windows.masks)
    edges = np.append(0, np.cumsum(np.bitwise_count(masks).sum(axis=1, dtype=np.int64)))
    work = edges + np.arange(edges.size)
    costs = work[parts[:, 2]] - work[parts[:, 1]]
    share = work[-1] / 264
    assert costs[parts[:, 0] == 0].sum() > 1.2 * share > 1.2 * costs.max()
    blocks = [0] * 264
    for cost in costs:
        heapq.heappushpop(blocks, blocks[0] + cost)
    assert max(blocks) < share + 16_000


def test_an_order_of_the_receivers():
    """In place of the one that is found: consecutive receivers make a window."""
    graph = skewed_graph(100, 900)
    arrays = np.asarray(graph.row_offsets), np.asarray(graph.senders), 100
    order = np.random.default_rng(0).permutation(100).astype(np.int32)
    built = _windows.build(*arrays, True, 16, order)
    found = {frozenset(row) - {-1} for row in np.asarray(built.rows).tolist()}
    assert found == {frozenset(order[first : first + 16].tolist()) for first in range(0, 100, 16)}
    ordered = dataclasses.replace(graph, windows=built)
    np.testing.assert_array_equal(decoded(ordered), listed(graph))
    assert_edges_of_slots(ordered)
    own = graph.with_windows().windows.order  # with windows of any size
    same = _windows.build(*arrays, True, 16, own)
    assert jax.tree.all(jax.tree.map(np.array_equal, same, _windows.build(*arrays, True, 16)))
    for wrong in (order[:-1], np.append(order[:-1], order[0]), order - 1):
        with pytest.raises(ValueError, match="order must have each receiver once"):
            _windows.build(*arrays, True, 16, wrong)


@pytest.mark.parametrize(
    ("width", "error"), [(0, ValueError), (1025, ValueError), ("4", TypeError)]
)
def test_widths_of_windows_are_checked(width, error):
    with pytest.raises(error, match="width: expected an integer"):
        skewed_graph(20, 60).with_windows(width=width)
    with pytest.raises(TypeError, match="weighted: expected True or False, got 'no'"):
        skewed_graph(20, 60).with_windows(weighted="no")  # pyright: ignore


def test_bits_beyond_the_receivers_of_a_window_are_found(hub_graph):
    windows = hub_graph.with_windows(width=1024).windows
    lie = dataclasses.replace(windows, masks=windows.masks.at[3, 0].set(1 << 16))
    with pytest.raises(ValueError, match=r"windows\.masks: expected bits of a window's receivers"):
        dataclasses.replace(hub_graph, windows=lie).validate()


def test_new_graphs_drop_the_windows():
    graph = skewed_graph(20, 60).with_windows()
    assert graph.drop_edge_permutation().windows is not None
    assert graph.transpose().windows is None


def test_tracing_is_an_error():
    graph = skewed_graph(20, 60)
    with pytest.raises(TypeError, match=r"with_windows: call it outside jax\.jit"):
        jax.jit(lambda g: g.with_windows())(graph)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's RLIMIT_AS")
@pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built")
def test_out_of_memory_is_a_memory_error():
    """In the threads that build the windows too: what they need is four bytes a sender."""
    program = """
import resource
import numpy as np
from jaxgnn._core import ffi

receivers, senders, gigabyte = 4096, 250_000_000, 1 << 30
offsets = np.arange(receivers + 1, dtype=np.int32)
columns = np.arange(receivers, dtype=np.int32)
ffi.cpu_module.build_windows(offsets, columns, receivers)
with open("/proc/self/statm") as statm:
    taken = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + gigabyte // 2, resource.RLIM_INFINITY))
try:
    ffi.cpu_module.build_windows(offsets, columns, senders)
except MemoryError:
    print("MemoryError")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "MemoryError\n"), done.stderr
