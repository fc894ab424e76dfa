"""Reader of Planetoid's raw files (Yang, Cohen and Salakhutdinov, ICML 2016)."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from jaxgnn.data import unpickle
from jaxgnn.data.checks import MAX_BYTES, check_features, check_size, reading
from jaxgnn.data.dataset import DataError, NodeDataset, Split
from jaxgnn.data.provenance import metadata_of
from jaxgnn.graph import Graph

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_VALIDATION_NODES = 500


def find_planetoid(folder: str | os.PathLike[str]) -> list[str]:
    """Names of the sets whose raw files lie in a directory."""
    return sorted(
        path.name.removeprefix("ind.").removesuffix(".graph")
        for path in pathlib.Path(folder).glob("ind.*.graph")
    )


def read_planetoid(
    folder: str | os.PathLike[str], name: str | None = None, *, max_bytes: int = MAX_BYTES
) -> NodeDataset:
    """Cora, Citeseer or Pubmed with the public split, as PyG's `Planetoid` reads them.

    An edge goes from each node to each in its list; duplicates and self-loops are dropped. The
    public split trains on the nodes of `x`, validates on the next 500 and tests on those of
    `test.index`. Ids that `test.index` skips (Citeseer has 15 isolated ones) get zero features
    and class 0, and are in no mask.

    Args:
        folder: the directory of the files `ind.NAME.x`, `.y`, `.tx`, ...
        name: the NAME, where there are several.
        max_bytes: refuse a feature matrix of more.

    Raises:
        DataError: a file is missing, damaged or holds anything but the arrays it should.
    """
    folder = pathlib.Path(folder)
    if name is None:
        found = find_planetoid(folder)
        if len(found) != 1:
            raise DataError(
                f"{folder}: expected one set of Planetoid files (ind.NAME.graph), "
                f"got {', '.join(found) or 'none'}"
            )
        name = found[0]
    paths = {part: folder / f"ind.{name}.{part}" for part in PARTS}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise DataError(f"{folder}: no {', '.join(missing)}")

    pickled = {part: _unpickle(path) for part, path in paths.items() if part != "test.index"}
    matrices = {}
    for part in ("x", "tx", "allx", "y", "ty", "ally"):
        with reading(paths[part]):
            matrices[part] = check_features(
                unpickle.as_matrix(pickled[part]), "its matrix", max_bytes
            )
    with reading(paths["graph"]):
        senders, receivers = unpickle.as_neighbor_lists(pickled["graph"])
    with reading(paths["test.index"]):
        ids = paths["test.index"].read_text("ascii").split()
        tested = np.array([int(i) for i in ids], np.int64)

    with reading(folder / f"ind.{name}.*"):
        _check_shapes(matrices, tested)
        n = int(tested.max()) + 1
        width = matrices["allx"].shape[1]
        check_size(4 * n * max(width, 1), f"features of {n} nodes", max_bytes)
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


def _unpickle(path: pathlib.Path):
    with reading(path):
        return unpickle.loads(path.read_bytes())


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
    if not np.isin(one_hot, (0, 1)).all() or (one_hot.sum(axis=1) > 1).any():
        raise DataError("ally, ty: expected one-hot rows")
    return one_hot.argmax(axis=1).astype(np.int32)


def _public_split(num_train: int, tested: np.ndarray, num_nodes: int) -> Split:
    masks = np.zeros((3, num_nodes), bool)
    masks[0, :num_train] = True
    masks[1, num_train : num_train + _VALIDATION_NODES] = True
    masks[2, tested] = True
    return Split(*masks)
