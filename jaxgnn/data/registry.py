"""`load`: a dataset by its name or its path."""

from __future__ import annotations

import inspect
import os
import pathlib
from collections.abc import Callable
from typing import Any

from jaxgnn.data.csr import CSR
from jaxgnn.data.dataset import NodeDataset, normalize_in_place
from jaxgnn.data.digits import digits
from jaxgnn.data.edges import read_edge_list, read_matrix_market
from jaxgnn.data.graphsaint import (
    GRAPHSAINT_FILES,
    REDDIT_FILES,
    read_graphsaint,
    read_reddit,
)
from jaxgnn.data.limits import DataError, display_path
from jaxgnn.data.npz import layout_of, read_heterophilous, read_shchur
from jaxgnn.data.ogb import read_ogb
from jaxgnn.data.planetoid import PARTS, find_planetoid, read_planetoid
from jaxgnn.data.synthetic import chung_lu_dataset, rmat_dataset, sbm_dataset

_NAMED: dict[str, Callable[..., NodeDataset]] = {
    "digits": digits,
    "sbm": sbm_dataset,
    "rmat": rmat_dataset,
    "chung_lu": chung_lu_dataset,
}


_EDGE_LISTS = (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el")

# The files by which a directory is recognized, and what reads it.
_FOLDERS: tuple[tuple[tuple[str, ...], Callable[..., NodeDataset]], ...] = (
    (GRAPHSAINT_FILES, read_graphsaint),
    (REDDIT_FILES, read_reddit),
    (("raw/edge.csv.gz", "split"), read_ogb),
)


def names() -> tuple[str, ...]:
    """The names that `load` knows without a file."""
    return tuple(_NAMED)


def load(
    name_or_path: str | os.PathLike[str], *, normalize_features: bool = False, **options: Any
) -> NodeDataset:
    """A dataset by name, or read from a directory or a file.

    Names: `"digits"`, and the synthetic `"sbm"`, `"rmat"`, `"chung_lu"`. A path is a directory
    or file of Planetoid's raw files (`ind.NAME.x`, ...), or an `.npz` file (or a directory that
    holds one) in the layout of shchur's gnn-benchmark or of the heterophilous sets, or a
    directory in the layout of GraphSAINT, of GraphSAGE's Reddit or of an unpacked OGB node set.

    Args:
        name_or_path: a name wins over a path: write `./sbm` for a directory of that name.
        normalize_features: scale the rows of the features by `jaxgnn.data.normalize_features`.
        options: those of the reader, such as `seed` and `num_splits` where splits are drawn.

    Raises:
        DataError: no such name or path, a file that is not such data, or an unknown option.
    """
    text = os.fspath(name_or_path)
    reader, found = _reader(text)
    arguments = {} if found is None else {"path": found}
    accepted = inspect.signature(reader).parameters
    for option in options:
        if option not in accepted or option in arguments:
            known = ", ".join([*sorted(set(accepted) - set(arguments)), "normalize_features"])
            raise DataError(f"{display_path(text)}: no option {option!r}; it has {known}")
    dataset = reader(**arguments, **options)
    if normalize_features:
        normalize_in_place(dataset.features)
    return dataset


def load_bare_graph(path: str | os.PathLike[str], max_bytes: int | None = None) -> CSR | None:
    """The graph of a Matrix Market file or an edge list, by its name; None of any other."""
    reader = _bare_graph_reader(pathlib.Path(path))
    if reader is None or os.path.isdir(path):
        return None
    return reader(path, max_bytes=max_bytes)


def _bare_graph_reader(path: pathlib.Path) -> Callable[..., CSR] | None:
    """By the name alone: the reader says why what is there is no file."""
    name = path.name.lower().removesuffix(".gz")
    if name.startswith("ind."):
        return None
    if name.endswith(".mtx"):
        return read_matrix_market
    return read_edge_list if name.endswith(_EDGE_LISTS) else None


def _reader(text: str) -> tuple[Callable[..., NodeDataset], pathlib.Path | None]:
    """Which function reads it, and from where; no path if it is a name."""
    name = display_path(text)
    if text in _NAMED:
        return _NAMED[text], None
    path = pathlib.Path(text)
    try:
        is_folder = path.is_dir()
        path.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or with a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{name}: cannot be read: {reason}") from error
    if is_folder:
        if find_planetoid(path):
            return _planetoid_folder, path
        for files, reader in _FOLDERS:
            if all((path / name).exists() for name in files):
                return reader, path
        archives = sorted(path.glob("*.npz"))
        if len(archives) != 1:
            raise DataError(
                f"{name}: expected Planetoid's raw files (ind.NAME.graph, ...) or one .npz file "
                f"in this directory, got {len(archives)} .npz files"
            )
        return _archive_reader(archives[0]), archives[0]
    if path.exists():
        bare = _bare_graph_reader(path)
        if bare is not None and path.is_file():
            raise DataError(
                f"{display_path(path)}: a graph without features and labels: read it with "
                f"jaxgnn.data.{bare.__name__}, or see its statistics with jaxgnn info"
            )
        if path.name.startswith("ind."):
            return _planetoid_file, path
        return _archive_reader(path), path
    raise DataError(
        f"{name}: no such file or directory, and no dataset of that name ({', '.join(_NAMED)})"
    )


def _archive_reader(path: pathlib.Path) -> Callable[..., NodeDataset]:
    return read_shchur if layout_of(path) == "shchur" else read_heterophilous


def _planetoid_folder(
    path: pathlib.Path, name: str | None = None, max_bytes: int | None = None
) -> NodeDataset:
    return read_planetoid(path, name, max_bytes=max_bytes)


def _planetoid_file(path: pathlib.Path, max_bytes: int | None = None) -> NodeDataset:
    name = path.name.removeprefix("ind.")
    for part in PARTS:
        name = name.removesuffix(f".{part}")
    return read_planetoid(path.parent, name, max_bytes=max_bytes)
