"""Which reader reads a path: by the names in a directory, by the first bytes of a file."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from jaxgnn.data.files.archive import npz_keys
from jaxgnn.data.files.columns import find_table
from jaxgnn.data.files.limits import DataError, display_path, head_of, quote, reading, stem_of
from jaxgnn.data.files.lines import as_number
from jaxgnn.data.formats.edges import read_edges, read_weighted_matrix_market
from jaxgnn.data.formats.graphml import read_graphml
from jaxgnn.data.formats.graphsaint import (
    GRAPHSAINT_FILES,
    REDDIT_FILES,
    read_graphsaint,
    read_reddit,
)
from jaxgnn.data.formats.label_sets import read_label_sets
from jaxgnn.data.formats.matrices import is_scipy, read_mat, read_scipy
from jaxgnn.data.formats.meshes import meshes_set, read_obj, read_off
from jaxgnn.data.formats.npz import is_heterophilous, is_shchur, read_heterophilous, read_shchur
from jaxgnn.data.formats.ogb import read_ogb
from jaxgnn.data.formats.ogb_graphs import OGB_GRAPH_FILES, read_ogb_graphs
from jaxgnn.data.formats.ogb_raw import ARRAYS
from jaxgnn.data.formats.partitioned import is_partition, read_partition
from jaxgnn.data.formats.planetoid import PARTS, find_planetoid, read_planetoid
from jaxgnn.data.formats.point_clouds import is_point_cloud, read_points
from jaxgnn.data.formats.ppi import PPI_FILES, read_ppi
from jaxgnn.data.formats.tables import is_tables, read_tables
from jaxgnn.data.formats.tcgnn import is_tcgnn, read_tcgnn
from jaxgnn.data.formats.tudataset import find_tudataset, read_tudataset
from jaxgnn.data.sets.dataset import NodeDataset
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.plain_graph import PlainGraph

Loaded = NodeDataset | GraphSet | PlainGraph
Reader = Callable[..., Loaded]

# The files by which a directory is recognized, and what reads it.
_FOLDERS: tuple[tuple[tuple[str, ...], Reader], ...] = (
    (GRAPHSAINT_FILES, read_graphsaint),
    (REDDIT_FILES, read_reddit),
    (PPI_FILES, read_ppi),
    *((files, read_ogb_graphs) for files in OGB_GRAPH_FILES),
    (("raw/edge.csv.gz", "split"), read_ogb),
    ((ARRAYS, "split"), read_ogb),
)
_LABEL_SETS = (".cmty", ".cmty.gz")
_DOCUMENTS = (".md", ".rst", ".html", ".pdf")
_OFF = (b"OFF", b"COFF", b"NOFF", b"CNOFF", b"STOFF")
_ENDINGS: dict[str, Reader] = {
    ".npy": read_points,
    ".mat": read_mat,
    ".mtx": read_weighted_matrix_market,
    ".graphml": read_graphml,
    ".off": read_off,
    ".obj": read_obj,
}
_MOST_MESHES = 10_000


def reader_of(path: pathlib.Path) -> tuple[Reader, dict[str, Any]]:
    """The reader of a file or a directory, and the arguments that name it.

    Raises:
        DataError: nothing reads it.
    """
    return _folder(path) if path.is_dir() else _file(path)


def _folder(path: pathlib.Path) -> tuple[Reader, dict[str, Any]]:
    if is_partition(path):
        return read_partition, {"path": path}
    if find_planetoid(path):
        return _planetoid_folder, {"path": path}
    for files, reader in _FOLDERS:
        if all((path / name).exists() for name in files):
            return reader, {"path": path}
    if find_tudataset(path):
        return read_tudataset, {"folder": path}
    if is_tables(path):
        return read_tables, {"folder": path}
    files = sorted(
        entry
        for entry in path.iterdir()
        if entry.is_file()
        and not entry.name.startswith((".", "README", "LICENSE"))
        and not entry.name.lower().endswith(_DOCUMENTS)
    )
    sets = [entry for entry in files if entry.name.lower().endswith(_LABEL_SETS)]
    if len(sets) == 1 and len(files) == 2:
        graph = next(entry for entry in files if entry not in sets)
        return read_label_sets, {"graph_path": graph, "labels_path": sets[0]}
    if len(files) == 1:
        if find_table(path, "nodes") == files[0]:
            raise DataError(f"{display_path(path)}: expected an edges.csv beside {files[0].name}")
        return _file(files[0])
    if files and all(_mesh_reader(entry) for entry in files[:_MOST_MESHES]):
        return read_meshes, {"folder": path}
    named = ", ".join(entry.name for entry in files[:5])
    raise DataError(
        f"{display_path(path)}: expected a known layout (docs/data.md) or one file in this "
        f"directory, got {len(files)} files{f': {named}' if named else ''}"
    )


def _file(path: pathlib.Path) -> tuple[Reader, dict[str, Any]]:
    if path.name.startswith("ind."):
        return _planetoid_file, {"path": path}
    if path.name.lower().endswith(_LABEL_SETS):
        raise DataError(
            f"{display_path(path)}: label sets need their graph: load the directory of both, or "
            "use jaxgnn.data.read_label_sets"
        )
    if path.name.lower() in ("nodes.csv", "nodes.csv.gz"):
        raise DataError(
            f"{display_path(path)}: expected an edge list, got a table of nodes: give the "
            "directory with nodes.csv and edges.csv"
        )
    with reading(path):
        head = head_of(path)
        if head.startswith(b"PK") or path.suffix == ".npz":
            return _archive_reader(path), {"path": path}
        if head.startswith(b"\x93NUMPY"):
            return read_points, {"path": path}
        if head.startswith(b"MATLAB 5.0"):
            return read_mat, {"path": path}
        if head.startswith(b"\x89HDF"):
            raise DataError("HDF5 (MATLAB's version 7.3 too) is not read: save it with -v7")
        if head.startswith((b"\x80", b"PAR1")):
            kind = "a pickle" if head.startswith(b"\x80") else "a Parquet file"
            raise DataError(f"expected a known format (docs/data.md), got {kind}")
        return _text_reader(head) or _by_name(path), {"path": path}


def _archive_reader(path: pathlib.Path) -> Reader:
    keys = npz_keys(path)
    known = (
        (is_shchur, read_shchur),
        (is_heterophilous, read_heterophilous),
        (is_scipy, read_scipy),
        (is_point_cloud, read_points),
        (is_tcgnn, read_tcgnn),
    )
    for recognizes, reader in known:
        if recognizes(keys):
            return reader
    raise DataError(
        "expected the arrays of shchur's gnn-benchmark (adj_data, ...), of a heterophilous set "
        "(node_features, ...), of scipy.sparse.save_npz, of point clouds (positions, ...) or of "
        "TC-GNN (src_li, ...), "
        f"got {quote(', '.join(sorted(keys)[:9]))}"
    )


def _text_reader(head: bytes) -> Reader | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:14].lower() == b"%%matrixmarket":
        return read_weighted_matrix_market
    if text.startswith(b"<"):
        if b"<graphml" in text:
            return read_graphml
        raise DataError("expected GraphML where a file starts with <, got something else")
    if text.startswith(b"{"):  # whose commas would split it into names
        raise DataError("expected a known format (docs/data.md), got JSON")
    return _mesh_format(text)


def _by_name(path: pathlib.Path) -> Reader:
    """Where the content says nothing: what the name promises, or an edge list."""
    ending = pathlib.Path(path.name.lower().removesuffix(".gz")).suffix
    return _ENDINGS.get(ending, read_edges)


def _mesh_format(text: bytes) -> Reader | None:
    lines = [line.split() for line in text.split(b"\n")[:-1][:200]]
    lines = [line for line in lines if line and not line[0].startswith(b"#")]
    if lines and lines[0][0].rstrip(b"0123456789").upper() in _OFF:
        return read_off
    for line in lines:
        numbers = [as_number(token.decode("latin1")) for token in line[1:4]]
        if line[0] == b"v" and len(numbers) == 3 and None not in numbers:
            return read_obj
    return None


def _mesh_reader(path: pathlib.Path) -> Reader | None:
    with reading(path):
        return _mesh_format(head_of(path).removeprefix(b"\xef\xbb\xbf"))


def read_meshes(folder: pathlib.Path, max_bytes: int | None = None) -> GraphSet:
    """The OFF and OBJ files of a directory as one set, in the order of their names."""
    readers = {p: _mesh_reader(p) for p in sorted(folder.iterdir()) if p.is_file()}
    paths = {path: reader for path, reader in readers.items() if reader}
    stems = Counter(map(stem_of, paths))
    meshes = []
    for path, reader in paths.items():
        mesh = reader(path, max_bytes=max_bytes)
        assert isinstance(mesh, PlainGraph)
        # The whole name where one mesh is in several formats.
        meshes.append((stem_of(path) if stems[stem_of(path)] == 1 else path.name, mesh))
    with reading(folder):
        return meshes_set(meshes, stem_of(folder), str(folder))


def _planetoid_folder(
    path: pathlib.Path, name: str | None = None, max_bytes: int | None = None
) -> NodeDataset:
    return read_planetoid(path, name, max_bytes=max_bytes)


def _planetoid_file(path: pathlib.Path, max_bytes: int | None = None) -> NodeDataset:
    name = path.name.removeprefix("ind.")
    for part in PARTS:
        name = name.removesuffix(f".{part}")
    return read_planetoid(path.parent, name, max_bytes=max_bytes)
