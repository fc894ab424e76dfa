"""What the Open Graph Benchmark's sets of nodes and of graphs are made of: the folder `raw` as text
or as NumPy's arrays, and `split`."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from jaxgnn.data.files.archive import Header, open_npz
from jaxgnn.data.files.checks import charge_splits, check_features, check_ids, check_kind
from jaxgnn.data.files.limits import Budget, DataError, display_path, quote, reading
from jaxgnn.data.files.native import native_module
from jaxgnn.data.formats.edges import parse
from jaxgnn.data.sets.dataset import Split

ARRAYS = "raw/data.npz"
"""The file by which the layout of arrays is recognized."""
_MOST_GRAPHS = 1 << 26


class Raw(Protocol):
    """The folder `raw`, in one of its two layouts."""

    both_directions: bool
    """Whether each edge is there with its reverse, where the set has both."""
    unknown_labels: bool
    """Whether a label may be NaN."""

    def path_of(self, what: str) -> pathlib.Path:
        """The file that holds a part, for errors."""
        ...

    def counts(self, what: str, rows: int | None) -> np.ndarray:
        """Nodes or edges (`"node"`, `"edge"`) of each graph, int64."""
        ...

    def edges(self, n: int, num_edges: int) -> tuple[np.ndarray, np.ndarray]:
        """Both ends of each edge, int32."""
        ...

    def table(self, what: str, rows: int) -> np.ndarray | None:
        """Features, float32, `"node-feat"` or `"edge-feat"`; None where there are none."""
        ...

    def labels(self, what: str, rows: int) -> np.ndarray:
        """`"node-label"` or `"graph-label"`, float32, a row each."""
        ...


def raw_of(folder: pathlib.Path, budget: Budget) -> Raw:
    """The raw files of a set's directory."""
    kind = RawArrays if (folder / ARRAYS).exists() else RawText
    return kind(folder / "raw", budget)


class RawText:
    """`edge.csv.gz`, `num-node-list.csv.gz`, `node-feat.csv.gz`, ...: each edge is listed once."""

    both_directions = unknown_labels = False

    def __init__(self, folder: pathlib.Path, budget: Budget) -> None:
        self._folder, self._budget = folder, budget

    def path_of(self, what: str) -> pathlib.Path:
        return self._folder / f"{what}.csv.gz"

    def counts(self, what: str, rows: int | None) -> np.ndarray:
        path = self.path_of(f"num-{what}-list")
        most = _MOST_GRAPHS
        return table_of_file(path, np.int64, rows, self._budget, columns=1, most=most)[:, 0]

    def edges(self, n: int, num_edges: int) -> tuple[np.ndarray, np.ndarray]:
        return edges_of_file(self.path_of("edge"), n, num_edges, self._budget)

    def table(self, what: str, rows: int) -> np.ndarray | None:
        path = self.path_of(what)
        if not path.exists():
            return None
        values = table_of_file(path, np.float32, rows, self._budget)
        with reading(path):
            return check_features(values, what, self._budget)

    def labels(self, what: str, rows: int) -> np.ndarray:
        path, blanks = self.path_of(what), what == "graph-label"
        return table_of_file(path, np.float32, rows, self._budget, blanks=blanks)


class RawArrays:
    """`data.npz` with `edge_index`, `num_nodes_list`, `node_feat`, ..., and `node-label.npz`."""

    both_directions = unknown_labels = True

    def __init__(self, folder: pathlib.Path, budget: Budget) -> None:
        self._folder, self._budget = folder, budget

    def path_of(self, what: str) -> pathlib.Path:
        return self._folder / (f"{what}.npz" if what.endswith("-label") else "data.npz")

    def counts(self, what: str, rows: int | None) -> np.ndarray:
        key = f"num_{what}s_list"
        with open_npz(self.path_of(key), self._budget) as archive:
            check_kind(claim := archive.header(key), key)
            if claim.size > _MOST_GRAPHS or (rows is not None and claim.size != rows):
                raise DataError(f"{key}: expected {rows or 'fewer'} entries, got {claim.size}")
            self._budget.charge(8 * claim.size, key)
            return archive.read(key).astype(np.int64)

    def edges(self, n: int, num_edges: int) -> tuple[np.ndarray, np.ndarray]:
        key = "edge_index"
        with open_npz(self.path_of(key), self._budget) as archive:
            check_kind(claim := archive.header(key), key, ndim=2)
            if claim.shape != (2, num_edges):
                raise DataError(f"{key}: expected {[2, num_edges]}, got {quote(claim.shape)}")
            with self._budget.scope():
                ends = [check_ids(ids, n, key, self._budget) for ids in archive.read(key)]
            self._budget.charge(8 * num_edges, "the edges")
            return np.ascontiguousarray(ends[0]), np.ascontiguousarray(ends[1])

    def table(self, what: str, rows: int) -> np.ndarray | None:
        key = what.replace("-", "_")
        with open_npz(self.path_of(what), self._budget) as archive:
            if key not in archive.keys:
                return None
            _check_rows(archive.header(key), rows, key)
            return check_features(archive.read(key), key, self._budget)

    def labels(self, what: str, rows: int) -> np.ndarray:
        key = what.replace("-", "_")
        with open_npz(self.path_of(what), self._budget) as archive:
            claim = archive.header(key)
            _check_rows(claim, rows, key)
            self._budget.charge(4 * claim.size, key)
            return archive.read(key).astype(np.float32)


def _check_rows(claim: Header, rows: int, key: str) -> None:
    if claim.dtype.kind not in "fiub" or claim.ndim != 2 or claim.shape[0] != rows:
        raise DataError(
            f"{key}: expected numbers with {rows} rows and 2 axes, got "
            f"{claim.dtype}{quote(claim.shape)}"
        )


def edges_of_file(
    path: pathlib.Path, n: int, num_edges: int, budget: Budget
) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of each edge, int32."""
    with reading(path):
        parser = native_module("the readers of text").EdgeListParser(strict=True)
        parse(parser, path, budget)
        senders, receivers = parser.take()
        budget.charge(senders.nbytes + receivers.nbytes, "the edges")
        if senders.size != num_edges:
            raise DataError(f"expected {num_edges} rows, got {senders.size}")
        if parser.max_id >= n:
            raise DataError(f"expected ids below {n}, got {parser.max_id}")
        return senders, receivers


def split_of_folder(folder: pathlib.Path, n: int, budget: Budget) -> Split:
    """The masks of the one published split."""
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    if len(found) != 1:
        raise DataError(f"{folder}: expected one directory, got {len(found)}")
    if (found[0] / "split_dict.pt").exists():
        raise DataError(
            f"{display_path(found[0])}: expected train.csv.gz, ..., got split_dict.pt: PyTorch's "
            "pickles are not read"
        )
    masks = []
    charge_splits(budget, n)
    for part in ("train", "valid", "test"):
        path = found[0] / f"{part}.csv.gz"
        with reading(path), budget.scope():
            ids = table_of_file(path, np.int64, None, budget, columns=1, most=n)[:, 0]
            if ids.size and not 0 <= ids.min() <= ids.max() < n:
                raise DataError(f"expected ids below {n}, got {ids.min()} to {ids.max()}")
            mask = np.zeros(n, bool)
            mask[ids] = True
            masks.append(mask)
    return Split(*masks)


def table_of_file(
    path: pathlib.Path,
    dtype: type,
    rows: int | None,
    budget: Budget,
    *,
    columns: int | None = None,
    most: int = 0,
    blanks: bool = False,
) -> np.ndarray:
    """A `.csv.gz` of numbers: exactly `rows` rows, or if that is None at most `most`. With `blanks`
    an empty field is NaN."""
    with reading(path):
        module = native_module("the readers of text")
        kind = module.FloatTableParser if dtype is np.float32 else module.IntegerTableParser
        parser = kind(most if rows is None else rows)
        parse(parser, path, budget, _with_nan if blanks else iter)
        if rows is not None and parser.rows != rows:
            raise DataError(f"expected {rows} rows, got {parser.rows}")
        width = parser.columns if parser.rows else columns or 1
        if columns is not None and width != columns:
            raise DataError(f"expected {columns} columns, got {width}")
        values = parser.take()
        budget.charge(values.nbytes, "the table")
        return values.reshape(-1, width)


_BLANK = re.compile(rb"(?m)^(?=,)|(?<=,)(?=,|\r?$)")
_LONGEST_LINE = 1 << 24


def _with_nan(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks with NaN in empty fields, cut at the ends of lines."""
    rest = b""
    for block in blocks:
        rest += block
        end = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _LONGEST_LINE else 0)
        if end:
            yield _BLANK.sub(b"nan", rest[:end])
            rest = rest[end:]
    if rest:
        yield _BLANK.sub(b"nan", rest)
