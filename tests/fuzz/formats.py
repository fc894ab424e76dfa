"""For each reader a valid file, or a folder of them, and the call that reads it."""

from __future__ import annotations

import functools
import gzip
import io
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from jaxgnn import data
from tests.support.large_sets import write_graphsaint, write_ogb, write_reddit

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


def _folder(write: Callable[[Path], Path], rng: np.random.Generator) -> Files:
    with tempfile.TemporaryDirectory() as temporary:
        folder = write(Path(temporary) / "set")
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _of_folder(reader: Callable[..., Any]) -> Callable[[Path, str], Any]:
    return lambda folder, file: reader(folder, max_bytes=MAX_BYTES)


def _of_file(reader: Callable[..., Any]) -> Callable[[Path, str], Any]:
    return lambda folder, file: reader(folder / file, max_bytes=MAX_BYTES)


# What writes the valid files, and what reads the folder in which one of them was changed.
READERS: dict[str, tuple[Callable[..., Files], Callable[[Path, str], Any]]] = {
    "edge_list": (_edge_list, _of_file(data.read_edge_list)),
    "matrix_market": (_matrix_market, _of_file(data.read_matrix_market)),
    "planetoid": (_planetoid, _of_folder(data.read_planetoid)),
    "shchur": (_shchur, _of_file(data.read_shchur)),
    "heterophilous": (_heterophilous, _of_file(data.read_heterophilous)),
    "graphsaint": (functools.partial(_folder, write_graphsaint), _of_folder(data.read_graphsaint)),
    "graphsaint_multilabel": (
        functools.partial(_folder, functools.partial(write_graphsaint, multilabel=True)),
        _of_folder(data.read_graphsaint),
    ),
    "reddit": (functools.partial(_folder, write_reddit), _of_folder(data.read_reddit)),
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
