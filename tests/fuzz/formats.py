"""For each reader a valid file, or a folder of them, and the call that reads it."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import math
import pickle
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

from jaxgnn import data, distributed
from jaxgnn.data.cache import set_file
from jaxgnn.graph import Graph, tiles
from tests.support.large_sets import (
    write_graphsaint,
    write_ogb,
    write_ogb_arrays,
    write_ogb_graphs,
    write_ppi,
    write_reddit,
)

Files = dict[str, bytes]
MAX_BYTES = 64 << 20
_NODES, _EDGES = 60, 300


def _edges(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, _NODES, (_EDGES, 2))


def _edge_list(rng: np.random.Generator) -> Files:
    lines = ["# a comment", *(f"{a}\t{b}" for a, b in _edges(rng)), "1,2, 0.5", ""]
    text = "\n".join(lines).encode()
    return {"plain.txt": text, "packed.txt.gz": gzip.compress(text, mtime=0)}


def _matrix_market(rng: np.random.Generator) -> Files:
    kinds = {
        "pattern general": "",
        "real symmetric": " -1.5e-3",
        "integer general": " 7",
        "real skew-symmetric": " 2.5",
    }
    files = {}
    for kind, value in kinds.items():
        lines = [f"{a + 1} {b + 1}{value}" for a, b in _edges(rng) if a > b]
        head = [f"%%MatrixMarket matrix coordinate {kind}", "% a comment", ""]
        sizes = f"{_NODES} {_NODES} {len(lines)}"
        text = "\n".join([*head, sizes, *lines, ""]).encode()
        files[f"{kind.replace(' ', '-')}.mtx"] = text
    files["packed.mtx.gz"] = gzip.compress(files["pattern-general.mtx"], mtime=0)
    dense = "\n".join(map(str, rng.integers(0, 2, 36)))
    files["array.mtx"] = f"%%MatrixMarket matrix array real general\n6 6\n{dense}\n".encode()
    return files


def _npz(arrays: dict[str, np.ndarray], save: Callable[..., None]) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def _shchur(rng: np.random.Generator) -> Files:
    n = 220
    senders = np.sort(rng.integers(0, n, 900))
    attributes = scipy.sparse.random_array((n, 6), density=0.5, format="csr", rng=rng)
    arrays = dict(
        adj_data=np.ones(900, np.float32),
        adj_indices=rng.integers(0, n, 900),
        adj_indptr=np.searchsorted(senders, np.arange(n + 1)),
        adj_shape=np.array([n, n]),
        attr_data=attributes.data.astype(np.float32),
        attr_indices=attributes.indices,
        attr_indptr=attributes.indptr,
        attr_shape=np.array([n, 6]),
        labels=np.arange(n) % 2,
    )
    return {"a.npz": _npz(arrays, np.savez_compressed), "b.npz": _npz(arrays, np.savez)}


def _heterophilous(rng: np.random.Generator) -> Files:
    part = rng.integers(0, 3, (2, _NODES))
    arrays = dict(
        node_features=rng.standard_normal((_NODES, 4), np.float32),
        node_labels=np.arange(_NODES) % 3,
        edges=_edges(rng),
        train_masks=part == 0,
        val_masks=part == 1,
        test_masks=part == 2,
    )
    return {"a.npz": _npz(arrays, np.savez_compressed), "b.npz": _npz(arrays, np.savez)}


def _planetoid(rng: np.random.Generator) -> Files:
    known, tested, trained = 506, 6, 4

    def rows(count: int) -> tuple[Any, np.ndarray]:
        features = scipy.sparse.csr_matrix((rng.random((count, 5)) > 0.6).astype(np.float32))
        return features, np.eye(3, dtype=np.int32)[rng.integers(0, 3, count)]

    (allx, ally), (tx, ty) = rows(known), rows(tested)
    lists = {i: rng.integers(0, known, 2).tolist() for i in range(0, known + tested, 4)}
    parts = dict(
        x=allx[:trained], y=ally[:trained], tx=tx, ty=ty, allx=allx, ally=ally, graph=lists
    )
    files = {}
    for protocol, (part, value) in enumerate(parts.items()):
        files[f"ind.small.{part}"] = pickle.dumps(value, 2 + protocol % 3)
    ids = "".join(f"{i}\n" for i in rng.permutation(np.arange(known, known + tested)))
    return files | {"ind.small.test.index": ids.encode()}


def _named_edges(rng: np.random.Generator) -> Files:
    text = "".join(f"n{a}\tm {b}\t{a / 7}\n" for a, b in _edges(rng)).encode()
    ids = "".join(f"{a};{b};-1.5e3\n" for a, b in _edges(rng))
    header = f"\ufeffsource;target;w\r\n{ids}".encode()
    return {"a.tsv": text, "b.csv": header, "packed.tsv.gz": gzip.compress(text, mtime=0)}


def _label_sets(rng: np.random.Generator) -> Files:
    edges = "".join(f"{a} {b}\n" for a, b in _edges(rng))
    sets = "".join(f"{' '.join(map(str, rng.integers(0, 20, 5)))}\n" for _ in range(6))
    return {"a.ungraph": f"{edges}{_NODES - 1} 0\n".encode(), "a.cmty": sets.encode()}


def _meshes(rng: np.random.Generator) -> Files:
    points = "\n".join(f"{x:.3f} {y:.3f} {z:.3f}" for x, y, z in rng.normal(size=(40, 3)))
    faces = rng.integers(0, 40, (60, 3))
    off = "\n".join(["OFF", "40 60 0", points, *(f"3 {a} {b} {c}" for a, b, c in faces), ""])
    vertices = "\n".join(f"v {line}" for line in points.split("\n"))
    obj = "\n".join([vertices, *(f"f {a + 1}/1 {b + 1} -{c + 1}" for a, b, c in faces), ""])
    return {"a.off": off.encode(), "b.obj": obj.encode()}


def _points(rng: np.random.Generator) -> Files:
    points, stream = rng.normal(size=(90, 3)), io.BytesIO()
    np.save(stream, points.reshape(3, 30, 3))
    arrays = dict(
        coords=points.astype(np.float32),
        ptr=np.array([0, 20, 20, 60, 90]),
        label=np.array([0, 1, 0, 1]),
        class_names=np.array(["a", "b"]),
        test_mask=np.array([True, False, False, False]),
    )
    files = {"a.npz": _npz(arrays, np.savez_compressed), "b.npz": _npz(arrays, np.savez)}
    return {**files, "c.npy": stream.getvalue()}


def _scipy(rng: np.random.Generator) -> Files:
    matrix = scipy.sparse.random_array((_NODES, _NODES), density=0.1, rng=rng)
    files = {}
    for kind in ("csr", "csc", "coo"):
        scipy.sparse.save_npz(stream := io.BytesIO(), matrix.asformat(kind), kind == "csc")
        files[f"{kind}.npz"] = stream.getvalue()
    return files


def _mat(rng: np.random.Generator) -> Files:
    matrix = scipy.sparse.random_array((_NODES, _NODES), density=0.1, rng=rng)
    group = scipy.sparse.csc_matrix(np.eye(4)[rng.integers(0, 4, _NODES)])
    sparse = scipy.sparse.csc_matrix(matrix)
    contents = {
        "sparse": {"A": sparse, "text": "words"},
        "full": {"A": np.round(sparse.toarray(), 1)},
        "sets": {"network": sparse, "group": group},
    }
    files = {}
    for name, variables in contents.items():
        for compressed in (False, True):
            scipy.io.savemat(stream := io.BytesIO(), variables, do_compression=compressed)
            files[f"{name}-{compressed}.mat"] = stream.getvalue()
    return files


def _graphml(rng: np.random.Generator) -> Files:
    import networkx

    graph = networkx.DiGraph(map(tuple, _edges(rng)[:40].tolist()))
    for _, _, values in graph.edges(data=True):
        values["weight"] = 1.5
    networkx.write_graphml(graph, stream := io.BytesIO())
    return {"a.graphml": stream.getvalue()}


def _tudataset(rng: np.random.Generator) -> Files:
    ends = np.sort(rng.integers(1, 31, (80, 2)), axis=0)
    ends = ends[(ends[:, 0] > 15) == (ends[:, 1] > 15)]
    columns = {
        "A": ends.tolist(),
        "graph_indicator": [[1 + (i >= 15)] for i in range(30)],
        "graph_labels": [[1], [2]],
        "node_labels": rng.integers(0, 3, (30, 1)).tolist(),
        "node_attributes": np.round(rng.normal(size=(30, 2)), 3).tolist(),
        "edge_labels": rng.integers(0, 2, (len(ends), 1)).tolist(),
    }
    return {
        f"T_{part}.txt": "".join(", ".join(map(str, row)) + "\n" for row in rows).encode()
        for part, rows in columns.items()
    }


def _tables(rng: np.random.Generator) -> Files:
    parts = ("train", "val", "test", "")
    nodes = [f'"n {i}",{i / 3:.2f},{"ab"[i % 2]},{parts[i % 4]}\r\n' for i in range(_NODES)]
    edges = [f"n {a},n {b},{a}.5\n" for a, b in _edges(rng)]
    return {
        "nodes.csv": "".join(["id,x,label,split\r\n", *nodes]).encode(),
        "edges.csv": "".join(["source,target,weight\n", *edges]).encode(),
    }


def _folder(write: Callable[[Path], Path], rng: np.random.Generator) -> Files:
    with tempfile.TemporaryDirectory() as temporary:
        folder = write(Path(temporary) / "set")
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _tcgnn(rng: np.random.Generator) -> Files:
    ends = dict(zip(("src_li", "dst_li"), _edges(rng).T, strict=True))
    arrays = {**ends, "num_nodes": np.array(_NODES)}
    return {"plain.npz": _npz(arrays, np.savez), "packed.npz": _npz(arrays, np.savez_compressed)}


def _cache(rng: np.random.Generator) -> Files:
    """An entry of the cache, and the parts of another."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, stream = Path(temporary), io.BytesIO()
        for name, content in _tables(rng).items():
            (folder / name).write_bytes(content)
        set_file.write(stream, set_file.encode(data.load(folder)), {})
    content = stream.getvalue()
    end = set_file._HEAD.unpack_from(content)[3]
    start = set_file._HEAD.size
    return {"a.graph": content, "arrays": content[start:end], "manifest": content[end:]}


def _forged(arrays: bytes, text: bytes) -> bytes:
    """An entry of these parts, with checksums that fit as far as the manifest can be read."""
    content = bytes(set_file._HEAD.size) + arrays
    with contextlib.suppress(Exception):
        manifest = json.loads(text)
        for dtype, shape, place, checksums in manifest["arrays"]:
            size = np.dtype(dtype).itemsize * math.prod(shape)
            checksums[:] = [zlib.crc32(content[place : place + size])] if size else []
        text = json.dumps(manifest).encode()
    head = (b"JAXGNNGC", set_file.VERSION, zlib.crc32(text), len(content), len(text))
    return set_file._HEAD.pack(*head) + arrays + text


def _read_cache(folder: Path, file: str) -> Any:
    path = folder / "a.graph"
    if file != path.name:
        parts = ((folder / name).read_bytes() for name in ("arrays", "manifest"))
        path.write_bytes(_forged(*parts))
    return set_file.read(path, MAX_BYTES)[0]


def _tiles_graph() -> Graph:
    ends = np.random.default_rng(0).integers(0, 200, (2, 3000))
    return Graph.from_edges(*ends, num_nodes=200)


def _tiles(rng: np.random.Generator) -> Files:
    with tempfile.TemporaryDirectory() as temporary:
        tiles.save(_tiles_graph().with_tiles(order="rcm"), path := Path(temporary) / "a")
        return {"a.tiles": path.read_bytes()}


def _read_tiles(folder: Path, file: str) -> Any:
    """With a checksum that fits, where the file still begins as it should."""
    path = folder / file
    content = path.read_bytes()
    if content.startswith(b"JAXGNNTI") and len(content) > 200:
        path.write_bytes(content[:-32] + hashlib.sha256(content[:-32]).digest())
    graph = tiles.load(_tiles_graph(), path)
    return data.PlainGraph("tiles", graph.validate())


def _partition(rng: np.random.Generator) -> Files:
    graph = Graph.from_edges(*_edges(rng).T, num_nodes=_NODES)

    def write(folder: Path) -> Path:
        features = rng.standard_normal((_NODES, 2), np.float32)
        weights = rng.random(graph.num_edges, np.float32)
        split = distributed.partition(graph, 3)
        split.save(folder, graph, {"x": features}, edge_arrays={"w": weights})
        return folder

    return _folder(write, rng)


def _read_partition(folder: Path, file: str) -> Any:
    """With checksums that fit the files, as far as the manifest can be read."""
    with contextlib.suppress(Exception):
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        for name, entry in manifest["files"].items():
            content = (folder / name).read_bytes()
            entry.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        path.write_text(json.dumps(manifest))
    whole = distributed.Partition.load(folder)
    ends = np.zeros(whole.owner.size + 1, np.int64)
    for part in range(whole.parts):
        found = distributed.Partition.load_part(folder, part)
        ends[found.nodes + 1] = np.diff(found.row_offsets)
    offsets = np.cumsum(ends)
    return data.CSR(offsets, np.zeros(offsets[-1], np.int32))


def _of_folder(reader: Callable[..., Any]) -> Callable[[Path, str], Any]:
    return lambda folder, file: reader(folder, max_bytes=MAX_BYTES)


def _of_file(reader: Callable[..., Any]) -> Callable[[Path, str], Any]:
    return lambda folder, file: reader(folder / file, max_bytes=MAX_BYTES)


# What writes the valid files, and what reads the folder in which one of them was changed.
READERS: dict[str, tuple[Callable[..., Files], Callable[[Path, str], Any]]] = {
    "edge_list": (_edge_list, _of_file(data.read_edge_list)),
    "matrix_market": (_matrix_market, _of_file(data.read_matrix_market)),
    "tcgnn": (_tcgnn, _of_file(data.read_tcgnn)),
    "planetoid": (_planetoid, _of_folder(data.read_planetoid)),
    "shchur": (_shchur, _of_file(data.read_shchur)),
    "heterophilous": (_heterophilous, _of_file(data.read_heterophilous)),
    "graphsaint": (functools.partial(_folder, write_graphsaint), _of_folder(data.read_graphsaint)),
    "graphsaint_multilabel": (
        functools.partial(_folder, functools.partial(write_graphsaint, multilabel=True)),
        _of_folder(data.read_graphsaint),
    ),
    "reddit": (functools.partial(_folder, write_reddit), _of_folder(data.read_reddit)),
    "ogb_graphs": (
        functools.partial(_folder, write_ogb_graphs),
        _of_folder(data.read_ogb_graphs),
    ),
    "ppi": (functools.partial(_folder, write_ppi), _of_folder(data.read_ppi)),
    "edges": (_named_edges, _of_file(functools.partial(data.read_edges, weights=True))),
    "weighted_matrix_market": (
        _matrix_market,
        _of_file(functools.partial(data.read_weighted_matrix_market, weights=True)),
    ),
    "label_sets": (
        _label_sets,
        lambda folder, file: data.read_label_sets(
            folder / "a.ungraph", folder / "a.cmty", max_bytes=MAX_BYTES
        ),
    ),
    "meshes": (_meshes, _of_file(data.load)),  # recognized by what is left of it
    "points": (_points, _of_file(data.read_points)),
    "scipy": (_scipy, _of_file(functools.partial(data.read_scipy, weights=True))),
    "mat": (_mat, _of_file(data.read_mat)),
    "graphml": (_graphml, _of_file(functools.partial(data.read_graphml, weight="weight"))),
    "tudataset": (_tudataset, _of_folder(data.read_tudataset)),
    "tables": (_tables, _of_folder(data.read_tables)),
    "ogb_arrays": (functools.partial(_folder, write_ogb_arrays), _of_folder(data.read_ogb)),
    "ogb_graph_arrays": (
        functools.partial(_folder, functools.partial(write_ogb_arrays, write=write_ogb_graphs)),
        _of_folder(data.read_ogb_graphs),
    ),
    "tiles": (_tiles, _read_tiles),
    "partition": (_partition, _read_partition),
    "cache": (_cache, _read_cache),
    "ogb": (functools.partial(_folder, write_ogb), _of_folder(data.read_ogb)),
    "ogb_edges": (
        functools.partial(_folder, functools.partial(write_ogb, features=0, tasks=3)),
        _of_folder(data.read_ogb),
    ),
}


@functools.cache
def valid_files(reader: str) -> Files:
    """The valid files of a reader, by their paths."""
    return READERS[reader][0](np.random.default_rng(0))
