"""`load`: a dataset by its name or its path."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable
from typing import Any

from jaxgnn.data.dataset import DataError, NodeDataset, normalise_features
from jaxgnn.data.digits import digits

_NAMED: dict[str, Callable[..., NodeDataset]] = {"digits": digits}


def names() -> tuple[str, ...]:
    """The names that `load` knows without a file."""
    return tuple(_NAMED)


def load(
    name_or_path: str | os.PathLike[str], *, normalize_features: bool = False, **options: Any
) -> NodeDataset:
    """A dataset by name, or read from a directory or a file.

    Names: `"digits"`, and the synthetic `"sbm"`, `"rmat"`, `"chung_lu"`. A path is a directory
    or file of Planetoid's raw files (`ind.NAME.x`, ...), or an `.npz` file (or a directory that
    holds one) in the layout of shchur's gnn-benchmark or of the heterophilous sets.

    Args:
        name_or_path: a path wins over a name if it has a separator or a suffix.
        normalize_features: scale the rows of the features to sum 1 (`normalise_features`).
        options: those of the reader, such as `seed` and `num_splits` where splits are drawn.

    Raises:
        DataError: no such name or path, a file that is not such data, or an unknown option.
    """
    text = os.fspath(name_or_path)
    reader = _NAMED.get(text)
    if reader is None:
        raise DataError(f"{text}: no dataset of that name ({', '.join(_NAMED)})")
    accepted = inspect.signature(reader).parameters
    for option in options:
        if option not in accepted:
            known = ", ".join(name for name in accepted if name != "path")
            raise DataError(f"{text}: unknown option {option!r}; there are {known}")
    dataset = reader(**options)
    if normalize_features:
        dataset = dataclasses.replace(dataset, features=normalise_features(dataset.features))
    return dataset
