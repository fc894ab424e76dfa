"""Predictions with the user's node ids and class names, as CSV or `.npz`."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxgnn._core.text import printable
from jaxgnn.train.config import ConfigError
from jaxgnn.train.loaded import LoadedRun
from jaxgnn.train.records import replacing

SUFFIXES = (".csv", ".npz")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What a model says of each node.

    Attributes:
        ids: the user's node ids; the nodes' numbers where the data name none.
        class_names: the name of each class.
        probabilities: of each class at each node.
        multilabel: whether a node may have several labels.
    """

    ids: Sequence[Any]
    class_names: Sequence[str]
    probabilities: Float[np.ndarray, "nodes classes"]
    multilabel: bool

    @property
    def labels(self) -> Int[np.ndarray, " nodes"] | Bool[np.ndarray, "nodes classes"]:
        """The most probable class of each node; of several labels those above one half."""
        if self.multilabel:
            return self.probabilities > 0.5
        return self.probabilities.argmax(axis=-1).astype(np.int32)

    def save(self, path: Path) -> None:
        """Writes the file, whole or not at all.

        A `.csv` has the columns `id`, `class` (of several labels `classes`, their names with `|`
        between) and `probability_NAME` for each class. An `.npz` has the arrays `id`, `class`
        (numbers, or a mask of the labels), `class_names` and `probabilities`.

        Raises:
            ConfigError: a path of another suffix.
            OSError: it cannot be written.
        """
        check_suffix(path, "path")
        if path.suffix == ".npz":
            with replacing(path, binary=True) as file:
                np.savez(
                    file,
                    **{
                        "id": np.asarray(self.ids),
                        "class": self.labels,
                        "class_names": np.asarray(self.class_names, np.str_),
                        "probabilities": self.probabilities,
                    },
                )
            return
        with replacing(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            heads = [f"probability_{name}" for name in self.class_names]
            writer.writerow(["id", "classes" if self.multilabel else "class", *heads])
            for node, label, row in zip(self.ids, self.labels, self.probabilities, strict=True):
                writer.writerow([node, self._name(label), *map(str, row)])

    def _name(self, label: Any) -> str:
        if not self.multilabel:
            return self.class_names[int(label)]
        return "|".join(self.class_names[int(index)] for index in np.flatnonzero(label))


def predict(run: LoadedRun, data: Any) -> Predictions:
    """The predictions for all nodes of data that `run.own_data` or `run.load_data` returned."""
    names = getattr(data, "node_names", None)
    return Predictions(
        ids=np.arange(data.graph.num_nodes) if names is None else names,
        class_names=run.dataset.class_labels(),
        probabilities=run.predict(data.graph, data.features),
        multilabel=run.dataset.multilabel,
    )


def check_suffix(path: Path, name: str, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Refuses a file of another kind; `name` is the argument that gave it.

    Raises:
        ConfigError: it is one, or its directory is not there.
    """
    if path.suffix not in suffixes:
        listed = " or ".join(suffixes)
        raise ConfigError(f"{name}: expected a file name with {listed}, got {printable(path)}")
    if path.is_dir() or not path.parent.is_dir():
        reason = "is a directory" if path.is_dir() else "its directory is not there"
        raise ConfigError(f"{name}: {printable(path)}: {reason}")
