"""Partitions: quality, bounds, determinism, memory, and what is refused."""

import sys

import jax
import numpy as np
import pytest

import jaxgnn
from jaxgnn import distributed
from jaxgnn._core.ffi import cpu_module
from jaxgnn.data import CSR, benchmark_graph
from tests.support.processes import run_python

pytestmark = pytest.mark.skipif(cpu_module is None, reason="jaxgnn._cpu is not built")


def expected_statistics(csr, owner, parts):
    """By sets, a pair of parts at a time."""
    receivers, senders = owner[csr.receivers], owner[csr.senders]
    pairs = [
        len(set(csr.senders[(receivers == p) & (senders == q)]))
        for p in range(parts)
        for q in range(parts)
        if p != q
    ]
    edges, nodes = np.bincount(receivers, minlength=parts), np.bincount(owner, minlength=parts)
    return (
        int((receivers != senders).sum()),
        sum(pairs) / owner.size,
        nodes.max() / nodes.mean(),
        edges.max() / edges.mean(),
        max(pairs) * len(pairs) / sum(pairs),
    )


def test_whole_windows_are_dealt():
    """A window has one owner, and parts have as many windows and as much work."""
    csr = benchmark_graph("reddit", 0.02)
    graph = csr.to_graph().with_windows(width=512)  # of 32 receivers
    split = distributed.partition(graph, 5, method="windows")
    rows, cut = np.asarray(graph.windows.rows), np.asarray(graph.windows.parts)
    owners = split.owner[rows]
    owner = owners.max(axis=1)
    assert ((owners == owner[:, None]) | (rows < 0)).all()
    windows = np.bincount(owner, minlength=5)
    assert windows.max() == -(-rows.shape[0] // 5)
    entries = np.bincount(owner[cut[:, 0]], cut[:, 2] - cut[:, 1])
    assert entries.max() <= 1.05 * entries.mean() and split.statistics.edge_balance <= 1.05
    again = distributed.partition(graph, 5, method="windows", edge_balance=1.05)
    np.testing.assert_array_equal(again.owner, split.owner)
    with pytest.raises(ValueError, match="edge_balance: can't be met"):
        distributed.partition(graph, 5, method="windows", edge_balance=1.0)
    for without in (csr, csr.to_graph()):
        with pytest.raises(ValueError, match='method: "windows" expected a Graph with windows'):
            distributed.partition(without, 5, method="windows")


def test_stream_halves_the_cut_within_the_balances():
    csr = benchmark_graph("arxiv", 0.1)
    split = distributed.partition(csr, 8)
    found = split.statistics
    block = distributed.partition(csr, 8, method="block").statistics
    assert found.cut_edges < 0.55 * block.cut_edges and found.halo_per_node < block.halo_per_node
    assert found.edge_balance <= 1.05 and found.node_balance <= 1.1501
    once = distributed.partition(csr, 8, passes=1)
    assert found.cut_edges < 0.8 * once.statistics.cut_edges  # restreaming does it
    for other in (split, once):
        values = other.statistics
        np.testing.assert_allclose(
            [getattr(values, name) for name in values.__dataclass_fields__],
            expected_statistics(csr, other.owner, 8),
            rtol=1e-12,
        )
    # A Graph and 64-bit senders say the same; another seed does not.
    wide = CSR(csr.row_offsets, csr.senders.astype(np.int64))
    for graph in (csr.to_graph(), wide):
        np.testing.assert_array_equal(distributed.partition(graph, 8).owner, split.owner)
    assert (distributed.partition(csr, 8, seed=1).owner != split.owner).any()
    many = distributed.partition(csr, 70, edge_balance=1.2)  # more than 64 parts a word
    cut = expected_statistics(csr, many.owner, 70)[:2]
    assert (many.statistics.cut_edges, many.statistics.halo_per_node) == pytest.approx(cut)


def test_threads_change_nothing():
    assert cpu_module is not None
    csr = benchmark_graph("arxiv", 0.1)
    arrays = csr.row_offsets, csr.senders
    most = csr.num_nodes, csr.num_edges // 6
    first, *others = (cpu_module.stream_partition(*arrays, 7, *most, 3, 5, n) for n in (1, 2, 7))
    for owner in others:
        np.testing.assert_array_equal(owner, first)


@pytest.mark.parametrize("method", ["stream", "block"])
def test_small_graphs(method):
    ring = np.arange(9)
    graph = jaxgnn.Graph.from_edges(ring, (ring + 1) % 9, num_nodes=9)
    for parts in (1, 2, 8, 9):
        split = distributed.partition(graph, parts, method=method, edge_balance=2)
        assert split.owner.dtype == np.int32 and split.owner.shape == (9,)
        assert split.owner.min() >= 0 and split.owner.max() < parts == split.parts
        assert parts > 1 or split.statistics.halo_per_node == split.statistics.cut_edges == 0
    # Without edges; with self-loops and duplicates alone.
    empty = jaxgnn.Graph.from_edges(ring[:0], ring[:0], num_nodes=5)
    assert distributed.partition(empty, 5, method=method).statistics.exchange_padding == 1
    twice = np.array([0, 0, 1, 1])
    loops = jaxgnn.Graph.from_edges(twice, twice, num_nodes=2)
    assert distributed.partition(loops, 2, method=method).statistics.cut_edges == 0


def test_metis_finds_two_cliques():
    pytest.importorskip("pymetis")
    i, j = np.nonzero(~np.eye(10, dtype=bool))
    senders, receivers = np.r_[i, i + 10, 0], np.r_[j, j + 10, 10]
    graph = jaxgnn.Graph.from_edges(senders, receivers, num_nodes=20)
    assert distributed.partition(graph, 2, method="metis").statistics.cut_edges == 1
    star = jaxgnn.Graph.from_edges(np.arange(1, 9), np.zeros(8, int), num_nodes=9)
    assert distributed.partition(star, 2, method="metis").statistics.edge_balance == 2
    with pytest.raises(ValueError, match="edge_balance: can't be met"):
        distributed.partition(star, 2, method="metis", edge_balance=1.05)


def test_what_is_refused():
    star = jaxgnn.Graph.from_edges(np.arange(1, 9), np.zeros(8, int), num_nodes=9)
    for options, message in (
        ({"parts": 0}, "parts: expected an integer from 1 to 9"),
        ({"parts": 10}, "parts: expected an integer from 1 to 9"),
        ({"method": "best"}, "method: expected one of"),
        ({"passes": 0}, "passes: expected an integer from 1"),
        ({"passes": 10**20}, "passes: expected an integer from 1"),
        ({"seed": -1}, "seed: expected an integer from 0"),
        ({"edge_balance": 0.9}, "edge_balance: expected a finite number from 1"),
        ({"node_balance": float("nan")}, "node_balance: expected a finite number from 1"),
        ({}, "edge_balance: can't be met, the closest found was 2.0, got 1.05"),
        ({"method": "block", "edge_balance": 1.05}, "edge_balance: can't be met, .* was 2.0, got"),
        ({"method": "block", "node_balance": 1.5}, "node_balance: can't be met, .* got 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            distributed.partition(star, **{"parts": 2, **options})
    # What is not asked for does not matter.
    assert distributed.partition(star, 2, method="block").statistics.edge_balance == 2
    with pytest.raises(TypeError, match="edge_balance: expected a number, got str"):
        distributed.partition(star, 2, edge_balance="1")
    with pytest.raises(TypeError, match=r"graph: expected a jaxgnn\.Graph or .*, got ndarray"):
        distributed.partition(np.zeros((9, 9)), 2)
    for owner, message in (
        (np.zeros(8, int), "owner: expected integers of the shape \\(9,\\)"),
        (np.full(9, 2), "owner: expected parts from 0 to 1, got 2 to 2"),
        ([[0], [1, 2]], "owner: expected an array, got lists of different lengths"),
    ):
        with pytest.raises(ValueError, match=message):
            distributed.Partition.of_owners(star, owner, 2)
    one = np.zeros(1, int)
    for receivers in (1, 2):
        graph = jaxgnn.Graph.from_edges(one, one, num_senders=2, num_receivers=receivers)
        with pytest.raises(ValueError, match="graph: expected a square graph, got Graph"):
            distributed.partition(graph, 1)
    empty = jaxgnn.Graph.from_edges([], [], num_nodes=0)
    for call in (
        lambda: distributed.partition(empty, 1),
        lambda: distributed.Partition.of_owners(empty, np.zeros(0, np.int32), 1),
    ):
        with pytest.raises(ValueError, match="graph: expected at least one node, got none"):
            call()
    with pytest.raises(TypeError, match="graph: expected one that is not traced"):
        jax.jit(lambda graph: distributed.partition(graph, 2).parts)(star)
    offsets, senders = np.array([0, 1, 2]), np.array([0, 1], np.int32)
    for csr, message in (
        (CSR(offsets, senders + np.int32(1)), "senders: expected ids"),
        (CSR(offsets, -senders), "senders: expected ids"),
        (CSR(offsets, senders.astype(float)), "senders: expected int32"),
    ):
        with pytest.raises(ValueError, match=message):
            distributed.partition(csr, 1)


@pytest.mark.parametrize("method", ["stream", "block"])
@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 2], r"rise, got row_offsets\[1\] = 3 before row_offsets\[2\] = 2"),
        ([0, 1, 1], r"run from 0 to the number of senders \(2\), got 0 to 1"),
        ([1, 1, 2], r"run from 0 to the number of senders \(2\), got 1 to 2"),
    ],
)
def test_bad_offsets(method, offsets, message):
    csr = CSR(np.array(offsets), np.array([0, 1], np.int32))
    with pytest.raises(ValueError, match="row_offsets: expected them to " + message):
        distributed.partition(csr, 2, method=method)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on memory beside files is Linux's")
def test_mapped_edges_are_not_copied(tmp_path):
    nodes, edges = 100_000, 40_000_000
    with open(tmp_path / "senders", "wb") as file:
        file.truncate(4 * edges)  # every edge is from node 0; the file takes no disk
    np.arange(0, edges + 1, edges // nodes).astype(np.int64).tofile(tmp_path / "offsets")
    program = """
import resource, sys
import jax
import numpy as np
from jaxgnn import distributed
from jaxgnn.data import CSR
offsets = np.memmap(sys.argv[1] + "/offsets", np.int64, "r")
senders = np.memmap(sys.argv[1] + "/senders", np.int32, "r")
data = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmData"))
most = (data << 10) + (120 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
split = distributed.partition(CSR(offsets, senders), 4, passes=1)
assert split.statistics.edge_balance <= 1.05
try:
    np.array(senders)
except MemoryError:
    print("bounded")
"""
    result = run_python("-c", program, str(tmp_path), JAX_PLATFORMS="cpu")
    assert result.stdout == "bounded\n", result.stderr
