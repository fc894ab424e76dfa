"""Reader of Planetoid's raw files (Yang, Cohen and Salakhutdinov, ICML 2016)."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from jaxgnn.data.files import unpickle
from jaxgnn.data.files.checks import charge_graph, charge_splits, read_features, row_blocks
from jaxgnn.data.files.limits import Budget, DataError, display_path, reading
from jaxgnn.data.files.native import native_module
from jaxgnn.data.formats.edges import parse
from jaxgnn.data.sets.dataset import NodeDataset, Split
from jaxgnn.data.sets.provenance import metadata_of
from jaxgnn.graph import Graph

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_VALIDATION_NODES = 500
_MOST_TESTED = 2**31 - 1


def find_planetoid(folder: str | os.PathLike[str]) -> list[str]:
    """Names of the sets whose raw files lie in a directory."""
    return sorted(
        path.name.removeprefix("ind.").removesuffix(".graph")
        for path in pathlib.Path(folder).glob("ind.*.graph")
    )


def read_planetoid(
    folder: str | os.PathLike[str], name: str | None = None, *, max_bytes: int | None = None
) -> NodeDataset:
    """Cora, Citeseer or Pubmed with the public split, as PyG's `Planetoid` reads them.

    An edge goes from each node to each in its list; duplicates and self-loops are dropped. The
    public split trains on the nodes of `x`, validates on the next 500 and tests on those of
    `test.index`. Ids that `test.index` skips (Citeseer has 15 isolated ones) get zero features
    and class 0, and are in no mask.

    Args:
        folder: the directory of the files `ind.NAME.x`, `.y`, `.tx`, ...
        name: the NAME, where there are several.
        max_bytes: refuse to take more memory, all together; by default 1,024 bytes for each of
            the files, at least 256 MiB and at most 16 GiB.

    Raises:
        DataError: a file is missing, damaged or holds anything but the arrays it should.
    """
    folder = pathlib.Path(folder)
    if name is None:
        found = find_planetoid(folder)
        if len(found) != 1:
            raise DataError(
                f"{display_path(folder)}: expected one set of Planetoid files (ind.NAME.graph), "
                f"got {', '.join(found[:9]) or 'none'}"
            )
        name = found[0]
    paths = {part: folder / f"ind.{name}.{part}" for part in PARTS}
    missing = [path.name for path in paths.values() if not path.exists()]
    if missing:
        raise DataError(f"{display_path(folder)}: no {', '.join(missing)}")

    budget = Budget(max_bytes)
    senders, receivers = _neighbor_lists(paths["graph"], budget)
    matrices = {
        part: _matrix(paths[part], budget) for part in ("x", "tx", "allx", "y", "ty", "ally")
    }
    tested = _test_index(paths["test.index"], budget)

    with reading(folder / f"ind.{name}.*"):
        _check_shapes(matrices, tested)
        n = int(tested.max()) + 1
        width = matrices["allx"].shape[1] + matrices["ally"].shape[1]
        budget.charge(4 * n * width, f"features of {n} nodes")
        charge_graph(budget, n, senders.size)
        charge_splits(budget, n)
        if senders.size and not (
            min(senders.min(), receivers.min()) >= 0 and max(senders.max(), receivers.max()) < n
        ):
            raise DataError(f"graph: expected node ids from 0 to {n - 1}, got others")
        features = _assemble(matrices["allx"], matrices["tx"], tested, n)
        one_hot = _assemble(matrices["ally"], matrices["ty"], tested, n)
        return NodeDataset(
            name=name,
            graph=Graph.from_edges(
                senders, receivers, num_nodes=n, deduplicate=True, self_loops="remove"
            ),
            features=features,
            labels=_classes(one_hot),
            num_classes=one_hot.shape[1],
            splits={"public": _public_split(len(matrices["y"]), tested, n)},
            metadata=metadata_of(name, source=str(folder)),
        )


def _matrix(path: pathlib.Path, budget: Budget) -> np.ndarray:
    """The dense matrix of one file."""

    def read():
        data = budget.read(path)
        return unpickle.as_matrix(unpickle.loads(data, budget), budget)

    with reading(path):
        return read_features(read, "its matrix", budget)


def _neighbor_lists(path: pathlib.Path, budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of each edge."""
    with reading(path):
        with budget.scope():
            data = budget.read(path)
            lists = unpickle.loads(data, budget)
            senders, receivers = unpickle.as_neighbor_lists(lists, len(data), budget)
        budget.charge(senders.nbytes + receivers.nbytes, "the edges")
        return senders, receivers


def _test_index(path: pathlib.Path, budget: Budget) -> np.ndarray:
    """The ids of the test nodes, one a line."""
    with reading(path):
        parser = native_module("the readers of text").IntegerTableParser(_MOST_TESTED)
        parse(parser, path, budget)
        if parser.columns > 1:
            raise DataError(f"expected one id a line, got {parser.columns}")
        tested = parser.take()
        budget.charge(6 * tested.nbytes, "the ids")  # and their distinct ones
        return tested


def _check_shapes(matrices: dict[str, np.ndarray], tested: np.ndarray) -> None:
    shapes = {part: matrix.shape for part, matrix in matrices.items()}
    for features, labels in (("x", "y"), ("tx", "ty"), ("allx", "ally")):
        if shapes[features][0] != shapes[labels][0]:
            raise DataError(
                f"{features}, {labels}: expected as many rows, "
                f"got {shapes[features][0]} and {shapes[labels][0]}"
            )
    for parts in (("x", "tx", "allx"), ("y", "ty", "ally")):
        if len({shapes[part][1] for part in parts}) != 1:
            columns = ", ".join(str(shapes[part][1]) for part in parts)
            raise DataError(f"{', '.join(parts)}: expected as many columns, got {columns}")
    if tested.size == 0 or tested.size != shapes["tx"][0]:
        raise DataError(f"test.index: expected {shapes['tx'][0]} ids, got {tested.size}")
    if np.unique(tested).size != tested.size or tested.min() != shapes["allx"][0]:
        raise DataError(
            f"test.index: expected distinct ids from {shapes['allx'][0]} on, "
            f"got {tested.min()} to {tested.max()}"
        )
    if shapes["y"][0] + _VALIDATION_NODES > shapes["ally"][0]:
        raise DataError(
            f"ally: expected the {shapes['y'][0]} training and {_VALIDATION_NODES} validation "
            f"nodes, got {shapes['ally'][0]} rows"
        )


def _assemble(
    known: np.ndarray, tested_rows: np.ndarray, tested: np.ndarray, num_nodes: int
) -> np.ndarray:
    """Rows of all nodes: row `i` of the test file belongs to node `tested[i]`."""
    rows = np.zeros((num_nodes, known.shape[1]), np.float32)
    rows[: len(known)] = known
    rows[tested] = tested_rows
    return rows


def _classes(one_hot: np.ndarray) -> np.ndarray:
    classes = np.empty(len(one_hot), np.int32)
    for begin, end in row_blocks(one_hot):
        rows = one_hot[begin:end]
        if not np.isin(rows, (0, 1)).all() or (rows.sum(axis=1) > 1).any():
            raise DataError("ally, ty: expected one-hot rows")
        classes[begin:end] = rows.argmax(axis=1)
    return classes


def _public_split(num_train: int, tested: np.ndarray, num_nodes: int) -> Split:
    masks = np.zeros((3, num_nodes), bool)
    masks[0, :num_train] = True
    masks[1, num_train : num_train + _VALIDATION_NODES] = True
    masks[2, tested] = True
    return Split(*masks)
