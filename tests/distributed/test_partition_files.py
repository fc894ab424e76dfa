"""Folders of partitions: what comes back, and what damaged ones say."""

import dataclasses
import functools
import json
from hashlib import sha256

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, distributed
from jaxgnn._core.ffi import cpu_module
from jaxgnn.data import CSR, DataError, benchmark_graph
from jaxgnn.distributed import Partition

pytestmark = pytest.mark.skipif(cpu_module is None, reason="jaxgnn._cpu is not built")


@pytest.fixture
def saved(tmp_path):
    csr = benchmark_graph("arxiv", 0.01)
    split = distributed.partition(csr, 3)
    x = np.arange(2 * csr.num_nodes, dtype=np.float32).reshape(-1, 2)
    split.save(tmp_path / "out", csr, {"x": x})
    return csr, split, x, tmp_path / "out"


def test_parts_come_back(saved):
    csr, split, x, folder = saved
    back = Partition.load(folder)
    np.testing.assert_array_equal(back.owner, split.owner)
    assert (back.parts, back.statistics) == (3, split.statistics)
    for part in range(3):
        data = Partition.load_part(folder, part)
        np.testing.assert_array_equal(data.nodes, np.flatnonzero(split.owner == part))
        np.testing.assert_array_equal(data.arrays["x"], x[data.nodes])
        rows = np.split(data.senders, data.row_offsets[1:-1])
        for node, row in zip(data.nodes, rows, strict=True):
            begin, end = csr.row_offsets[node : node + 2]
            np.testing.assert_array_equal(row, csr.senders[begin:end])
    with pytest.raises(ValueError, match="directory: expected an empty one"):
        split.save(folder, csr)
    ring = CSR(np.arange(csr.num_nodes + 1), np.arange(csr.num_nodes, dtype=np.int32))
    with pytest.raises(ValueError, match="graph: expected the one that was split, whose cut_edges"):
        split.save(folder.with_name("other"), ring)
    assert not folder.with_name("other").exists()
    with pytest.raises(ValueError, match="x: expected numbers with"):
        split.save(folder, csr, {"x": x[1:]})
    with pytest.raises(ValueError, match=r"x: expected numbers with .* got bfloat16"):
        split.save(folder.with_name("other"), csr, {"x": x.astype(jnp.bfloat16)})
    with pytest.raises(ValueError, match="part: expected an integer from 0 to 2, got 3"):
        Partition.load_part(folder, 3)
    with pytest.raises(TypeError, match="part: expected an integer, got str"):
        Partition.load_part(folder, "1")
    split.save(folder.with_name("lists"), csr, {"x": x.tolist()})
    lists = Partition.load_part(folder.with_name("lists"), 1)
    np.testing.assert_array_equal(lists.arrays["x"], x[lists.nodes])


def test_damage_names_the_file_and_spares_other_parts(saved):
    *_, folder = saved
    path = folder / "part-00001" / "senders.npy"
    whole = path.read_bytes()
    for data, message in ((whole[:-4], "expected .* bytes"), (whole[:-1] + b"~", "checksum")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"part-00001/senders\.npy: .*{message}"):
            Partition.load_part(folder, 1)
        Partition.load_part(folder, 0)
    path.unlink()
    with pytest.raises(DataError, match=r"part-00001/senders\.npy"):
        Partition.load_part(folder, 1)
    nodes = folder / "part-00002" / "nodes.npy"
    whole = nodes.read_bytes()
    nodes.write_bytes((folder / "part-00000" / "nodes.npy").read_bytes())
    with pytest.raises(DataError, match=r"part-00002/nodes\.npy"):
        Partition.load(folder)
    nodes.write_bytes(whole)
    manifest = folder / "manifest.json"
    good = json.loads(manifest.read_text())
    versions = {"version": 0}, {"version": 3}, {"version": True}
    edges = {"edges": "a"}, {"edges": -1}, {"edges": True}, {"edges": 1.0}
    # More parts than files: none of them gets a path before that is known.
    many = {"parts": 10**7, "nodes": 10**7}
    for change in (*versions, *edges, many, {"parts": 0}, {"format": "other"}, {"files": []}):
        manifest.write_text(json.dumps(good | change))
        for load in (Partition.load, functools.partial(Partition.load_part, part=0)):
            with pytest.raises(DataError, match=r"manifest\.json"):
                load(folder)
    manifest.write_text(json.dumps(good | {"nodes": 1 << 60}))
    with pytest.raises(DataError, match=r"some nodes have no part"):
        Partition.load(folder)
    for value in ("x", True, -1, 1.5, None):
        changed = good["statistics"] | {"cut_edges": value}
        manifest.write_text(json.dumps(good | {"statistics": changed}))
        with pytest.raises(DataError, match=r"manifest\.json: statistics: cut_edges: expected an"):
            Partition.load(folder)
    # Checksums that fit do not make it a part.
    for name, change, message in (
        ("row_offsets", lambda values: values[::-1].copy(), "expected an ascent from 0"),
        ("senders", lambda values: -1 - values, "senders: expected nodes from 0 to "),
        ("nodes", lambda values: values[::-1].copy(), "nodes: expected int64, ascending"),
        ("x", lambda values: values[1:], "do not belong together"),
    ):
        path = folder / "part-00000" / f"{name}.npy"
        content = path.read_bytes()
        np.save(path, change(np.load(path)))
        changed = {"bytes": path.stat().st_size, "sha256": sha256(path.read_bytes()).hexdigest()}
        files = good["files"] | {f"part-00000/{name}.npy": changed}
        manifest.write_text(json.dumps(good | {"files": files}))
        with pytest.raises(DataError, match=message):
            Partition.load_part(folder, 0)
        path.write_bytes(content)
    manifest.unlink()  # interrupted before the end
    with pytest.raises(DataError, match=r"manifest\.json"):
        Partition.load(folder)


def test_edge_arrays_come_back_in_the_order_of_the_edges(saved, tmp_path):
    csr, split, x, folder = saved
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["version"] == 1 and "edge_arrays" not in manifest  # as earlier versions read it
    assert Partition.load_part(folder, 0).edge_arrays == {}
    edge = np.arange(csr.num_edges)
    both = {"edge": edge, "pairs": np.stack([edge, -edge], axis=1)}
    out = tmp_path / "edges"
    split.save(out, csr, {"x": x}, edge_arrays=both)
    for part in range(3):
        data = Partition.load_part(out, part)
        degrees = np.diff(data.row_offsets)
        starts = np.repeat(csr.row_offsets[data.nodes] - data.row_offsets[:-1], degrees)
        expected = starts + np.arange(data.senders.size)
        np.testing.assert_array_equal(data.edge_arrays["edge"], expected)
        np.testing.assert_array_equal(data.edge_arrays["pairs"], both["pairs"][expected])
        assert data.arrays.keys() == {"x"} and data.edge_arrays.keys() == both.keys()
    for arrays, message in (
        ({"edge": edge[1:]}, rf"edge: expected numbers with {edge.size} rows, got int64"),
        ({"x": edge}, "edge_arrays: expected other names than those of arrays, got x"),
        ({"senders": edge}, "edge_arrays: expected identifiers other than nodes, row_offsets, sen"),
        ({"a/b": edge}, r"edge_arrays: expected identifiers other than .* as names, got 'a/b'"),
    ):
        with pytest.raises(ValueError, match=message):
            split.save(tmp_path / "other", csr, {"x": x}, edge_arrays=arrays)
    assert not (tmp_path / "other").exists()
    path = out / "part-00001" / "edge.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"~")
    with pytest.raises(DataError, match=r"part-00001/edge\.npy: the checksum differs"):
        Partition.load_part(out, 1)
    path.write_bytes(content)
    good = json.loads((out / "manifest.json").read_text())
    assert (good["version"], good["edge_arrays"]) == (2, ["edge", "pairs"])
    for names, message in (
        ("edge", r"manifest\.json: edge_arrays: expected different names of arrays, got 'edge'"),
        ([1], "edge_arrays: expected different names"),
        (["edge", "edge"], "edge_arrays: expected different names"),
        (["senders"], "edge_arrays: expected different names"),
        (["other"], r"part-00001/other\.npy: the manifest does not name this file"),
        (["pairs"], "part-00001: the files of the part do not belong together"),
        (["x"], "part-00001: the files of the part do not belong together"),
    ):
        (out / "manifest.json").write_text(json.dumps(good | {"edge_arrays": names}))
        with pytest.raises(DataError, match=message):
            Partition.load_part(out, 1)


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
def test_parts_become_the_sharded_graph_of_the_whole(tmp_path):
    """Joined in pairs; with duplicates, self-loops, isolated nodes, and a part without edges."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, 20, (2, 90))
    senders[:30] = receivers[:30]
    graph = Graph.from_edges(senders, receivers, num_nodes=24)
    owner = rng.integers(0, 3, 24, np.int32)
    owner[20:] = 3
    of_four = Partition.of_owners(graph, owner, 4)
    x = rng.standard_normal((24, 3)).astype(np.float32)
    names = np.array([f"n{node}" for node in range(24)])
    w = rng.standard_normal(90).astype(np.float32)
    of_edges = {"w": w, "ends": rng.integers(0, 9, (90, 2)), "kinds": w.astype(str)}
    of_four.save(tmp_path / "out", graph, {"x": x, "names": names}, edge_arrays=of_edges)
    mesh = jax.make_mesh((2,), ("d",), devices=jax.local_devices()[:2])
    of_two = dataclasses.replace(of_four, parts=2, owner=owner // 2)
    scheduled = graph.with_row_schedule()
    for overlap in (True, None):
        want = distributed.shard(scheduled, mesh, rows="d", partition=of_two, overlap=overlap)
        got, arrays = distributed.load_sharded(
            tmp_path / "out", mesh, rows="d", row_schedule=True, overlap=overlap
        )
        assert (got.kinds is None) == (overlap is None)
        want = dataclasses.replace(want, edge_permutation=None, num_input_edges=None)
        leaves, structure = jax.tree.flatten(want)
        found, of_found = jax.tree.flatten(got)
        assert of_found == structure
        for leaf, other in zip(found, leaves, strict=True):
            np.testing.assert_array_equal(leaf, other)
            assert leaf.sharding == other.sharding and leaf.dtype == other.dtype
        assert arrays.keys() == {"x", "w", "ends"}
        np.testing.assert_array_equal(arrays["x"], got.scatter(x))
        for name in ("w", "ends"):
            expected = got.scatter_edges(of_edges[name], in_graph_order=True)
            np.testing.assert_array_equal(arrays[name], expected)
            assert arrays[name].sharding == expected.sharding
    for axis in ("e", None):
        with pytest.raises(ValueError, match=rf"rows: expected an axis of .*, got '?{axis}"):
            distributed.load_sharded(tmp_path / "out", mesh, rows=axis)
    with pytest.raises(TypeError, match="row_schedule: expected True or False, got 'no'"):
        distributed.load_sharded(tmp_path / "out", mesh, rows="d", row_schedule="no")
    Partition.of_owners(graph, owner % 3, 3).save(tmp_path / "three", graph)
    with pytest.raises(ValueError, match="expected a divisor of the 3 parts, got 2 devices"):
        distributed.load_sharded(tmp_path / "three", mesh, rows="d")
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"edges": 90', '"edges": 91'))
    with pytest.raises(DataError, match=r"manifest\.json: expected 91 edges, got 90"):
        distributed.load_sharded(tmp_path / "out", mesh, rows="d")


def test_what_save_refuses_before_it_writes(tmp_path):
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    split = distributed.partition(graph, 1)
    (tmp_path / "file").write_text("")
    rows = np.zeros(3)
    for where, options, error, message in (
        ("a", {"data": {"x": np.float32(1)}}, TypeError, "data: expected what JSON has: .*float32"),
        ("a", {"data": {"x": float("nan")}}, ValueError, "data: expected what JSON has"),
        ("a", {"data": [1]}, TypeError, "data: expected a mapping, got list"),
        ("a", {"arrays": [rows]}, TypeError, "arrays: expected arrays by name, got list"),
        ("a", {"edge_arrays": {3: rows}}, TypeError, "edge_arrays: expected names, got 3"),
        ("file", {}, ValueError, "directory: expected a directory, got the file"),
        ("a", {"arrays": {"x": 3}}, ValueError, "arrays: x: expected .* 3 rows, got int64 of the "),
        ("a", {"arrays": {"x": [[1], [2, 3], [4]]}}, ValueError, "arrays: x: expected an array, g"),
    ):
        with pytest.raises(error, match=message):
            split.save(tmp_path / where, graph, **options)
    assert not (tmp_path / "a").exists()


def test_what_is_no_path_is_named():
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    split = distributed.partition(graph, 1)
    mesh = jax.make_mesh((1,), ("d",), devices=jax.local_devices()[:1])
    for call in (
        lambda: split.save(None, graph),  # pyright: ignore[reportArgumentType]
        lambda: Partition.load(None),  # pyright: ignore[reportArgumentType]
        lambda: Partition.load_part(None, 0),  # pyright: ignore[reportArgumentType]
        lambda: distributed.load_sharded(None, mesh, rows="d"),  # pyright: ignore
    ):
        with pytest.raises(TypeError, match="directory: expected a path, got NoneType"):
            call()
