"""`load`: a dataset by its name or its path."""

from __future__ import annotations

import inspect
import numbers
import os
import pathlib
from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np

from jaxgnn._core import checks
from jaxgnn._core.arguments import as_integer
from jaxgnn.data.cache.built_sets import load_cached
from jaxgnn.data.cache.downloads import SOURCES, download, hint
from jaxgnn.data.files.columns import find_table
from jaxgnn.data.files.limits import DataError, display_path, quote
from jaxgnn.data.formats.edges import read_edge_list, read_matrix_market
from jaxgnn.data.generated.digits import digits
from jaxgnn.data.generated.synthetic import chung_lu_dataset, rmat_dataset, sbm_dataset
from jaxgnn.data.loading.recognize import Loaded, Reader, reader_of
from jaxgnn.data.sets.csr import CSR
from jaxgnn.data.sets.dataset import NodeDataset, normalize_in_place
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.plain_graph import PlainGraph

_NAMED: dict[str, Callable[..., NodeDataset]] = {
    "digits": digits,
    "sbm": sbm_dataset,
    "rmat": rmat_dataset,
    "chung_lu": chung_lu_dataset,
}


_EDGE_LISTS = (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el", ".ungraph")


def names() -> tuple[str, ...]:
    """The names that `load` knows without a file or a download."""
    return tuple(_NAMED)


@overload
def load(
    name_or_path: Literal["digits", "sbm", "rmat", "chung_lu"],
    *,
    normalize_features: bool = False,
    **options: Any,
) -> NodeDataset: ...
@overload
def load(
    name_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    normalize_features: bool = False,
    cache: bool | None = None,
    **options: Any,
) -> Loaded: ...
def load(
    name_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    normalize_features: bool = False,
    cache: bool | None = None,
    **options: Any,
) -> Loaded:
    """A dataset by name, or what is read from a directory or a file.

    Names: `"digits"`, the synthetic `"sbm"`, `"rmat"`, `"chung_lu"`, and those that are downloaded
    (`download`): `"cora"`, `"minesweeper"`. A path is recognized by what is in it: the files of a
    directory, the first bytes of a file. `docs/data.md` lists the layouts and formats, and the
    reader of each.

    Args:
        name_or_path: a name wins over a path: write `./sbm` for a directory of that name. Before a
            download a path of that name is looked for.
        root: of `download`; a path of that name in the current directory does not count then.
        normalize_features: scale the rows of the features by `jaxgnn.data.normalize_features`.
        cache: keep what was built of the files in the user's cache directory, from which the next
            call maps it: None where the files hold at least 16 MiB, True always, False never.
            Changed files are read again.
        options: those of the reader, such as `seed` and `num_splits` where splits are drawn.

    Returns:
        A `NodeDataset` of nodes with labels, a `GraphSet` of many graphs, or a `PlainGraph`.

    Raises:
        DataError: no such name or path, a file that is not such data, an unknown option or one of
            another type, or a download that fails.
        TypeError: `name_or_path` is neither.
    """
    checks.path(name_or_path, "name_or_path")
    text = os.fspath(name_or_path)
    if root is not None and text not in SOURCES:
        raise DataError(f"{display_path(text)}: root: expected None but for {', '.join(SOURCES)}")
    if text in SOURCES and (root is not None or not os.path.exists(text)):
        text = str(download(text, root))
    reader, found = _reader(text)
    accepted = _options(reader, found)
    for option in options:
        if option not in accepted:
            known = ", ".join([*sorted(accepted), "normalize_features", "cache"])
            raise DataError(f"{display_path(text)}: no option {option!r}; it has {known}")
    _check_types(reader, options)
    if cache not in (None, True, False):
        raise DataError(f"cache: expected None, True or False, got {quote(cache)}")
    loaded = load_cached(reader, found, options, cache)
    if normalize_features:
        if loaded.features is None:
            raise DataError(f"{display_path(text)}: normalize_features: it has no features")
        normalize_in_place(loaded.features)
    return loaded


def load_nodes(name_or_path: str | os.PathLike[str], **options: Any) -> NodeDataset:
    """`load` of a set of nodes with labels.

    Raises:
        DataError: as of `load`, or it is a `GraphSet` or a `PlainGraph`.
    """
    return of_nodes(name_or_path, load(name_or_path, **options))


def of_nodes(name_or_path: str | os.PathLike[str], loaded: Loaded) -> NodeDataset:
    """What was loaded, if it is nodes with labels.

    Raises:
        DataError: it is not.
    """
    if isinstance(loaded, NodeDataset):
        return loaded
    name, table = display_path(name_or_path), find_table(pathlib.Path(name_or_path), "nodes")
    if isinstance(loaded, PlainGraph) and table is not None:
        raise DataError(
            f"{name}: expected nodes with labels (the column 'label' of {table.name}), got none; "
            "jaxgnn train --task link needs none"
        )
    task = "graph" if isinstance(loaded, GraphSet) else "link"
    raise DataError(
        f"{name}: expected nodes with labels, got {loaded!r}: jaxgnn train --task {task} needs none"
    )


def accepts(name_or_path: str | os.PathLike[str], option: str) -> bool:
    """Whether what reads it has that option.

    Raises:
        DataError: no such name or path.
    """
    text = os.fspath(name_or_path)
    if text in SOURCES and not os.path.exists(text):
        return False  # not downloaded for the question
    return option in _options(*_reader(text))


def _options(reader: Reader, found: dict[str, Any]) -> set[str]:
    """The reader's, but for the arguments that name what it reads."""
    return set(inspect.signature(reader).parameters) - set(found)


# What a reader's annotation says of an option; others the reader checks.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "None": ("None", lambda value: value is None),
    "bool": ("True or False", lambda value: isinstance(value, bool | np.bool_)),
    "int": ("an integer", lambda value: as_integer(value) is not None),
    "float": (
        "a number",
        lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool),
    ),
    "str": ("text", lambda value: isinstance(value, str)),
}


def _check_types(reader: Reader, options: dict[str, Any]) -> None:
    parameters = inspect.signature(reader).parameters
    for option, value in options.items():
        kinds = str(parameters[option].annotation).split(" | ")
        if set(kinds) <= _KINDS.keys() and not any(_KINDS[kind][1](value) for kind in kinds):
            expected = " or ".join(_KINDS[kind][0] for kind in kinds)
            raise DataError(f"{option}: expected {expected}, got {quote(value)}")


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


def _reader(text: str) -> tuple[Reader, dict[str, Any]]:
    """Which function reads it, and the arguments that name it."""
    if text in _NAMED:
        return _NAMED[text], {}
    name, path = display_path(text), pathlib.Path(text)
    try:
        exists = path.exists()
        if exists:
            return reader_of(path)
    except DataError:
        raise
    except (OSError, ValueError) as error:  # a name that is too long, or with a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{name}: cannot be read: {reason}") from error
    names = ", ".join([*_NAMED, *SOURCES])
    elsewhere = hint(text)
    raise DataError(
        f"{name}: no such file or directory, and no dataset of that name ({names})"
        + (f"; {elsewhere}" if elsewhere else "")
    )
