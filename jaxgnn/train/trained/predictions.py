"""Predictions with the user's node ids and class names, as CSV or `.npz`."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxgnn._core.text import printable
from jaxgnn.train.reports.description import check_finite
from jaxgnn.train.reports.records import replacing
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.trained.loaded import LoadedRun, check_loaded
from jaxgnn.train.trained.loaded_graphs import LoadedGraphRun

SUFFIXES = (".csv", ".npz")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What a model says of each node, or of each graph.

    Attributes:
        ids: the user's ids; the nodes' or the graphs' numbers where the data name none.
        class_names: the name of each class, or target.
        probabilities: of each class; of targets that are numbers their values.
        multilabel: whether a node or a graph may have several labels.
        numbers: whether the targets are numbers.
    """

    ids: Sequence[Any]
    class_names: Sequence[str]
    probabilities: Float[np.ndarray, "rows classes"]
    multilabel: bool
    numbers: bool = False

    @property
    def labels(self) -> Int[np.ndarray, " rows"] | Bool[np.ndarray, "rows classes"]:
        """The most probable class of each row; of several labels those above one half.

        Raises:
            ValueError: the targets are numbers.
        """
        if self.numbers:
            raise ValueError("labels: expected classes, got targets that are numbers")
        if self.multilabel:
            return self.probabilities > 0.5
        return self.probabilities.argmax(axis=-1).astype(np.int32)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all.

        A `.csv` has the columns `id`, `class` (of several labels `classes`, their names with `|`
        between) and `probability_NAME` for each class. An `.npz` has the arrays `id`, `class`
        (numbers, or a mask of the labels), `class_names` and `probabilities`. Of targets that are
        numbers these are `id` and `target_NAME`, or the arrays `id`, `target_names` and `targets`.

        Raises:
            ConfigError: a path of another suffix.
            OSError: it cannot be written.
        """
        path = Path(path)
        check_suffix(path, "path")
        if path.suffix == ".npz":
            names = np.asarray(self.class_names, np.str_)
            arrays: dict[str, Any] = {"id": np.asarray(self.ids)}
            if self.numbers:
                arrays |= {"target_names": names, "targets": self.probabilities}
            else:
                arrays |= {"class": self.labels, "class_names": names}
                arrays["probabilities"] = self.probabilities
            with replacing(path, binary=True) as file:
                np.savez(file, **arrays)
            return
        with replacing(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            kind = "target" if self.numbers else "probability"
            heads = [f"{kind}_{name}" for name in self.class_names]
            if self.numbers:
                writer.writerow(["id", *heads])
                for name, row in zip(self.ids, self.probabilities, strict=True):
                    writer.writerow([name, *map(str, row)])
                return
            writer.writerow(["id", "classes" if self.multilabel else "class", *heads])
            for name, label, row in zip(self.ids, self.labels, self.probabilities, strict=True):
                writer.writerow([name, self._name(label), *map(str, row)])

    def _name(self, label: Any) -> str:
        if not self.multilabel:
            return self.class_names[int(label)]
        return "|".join(self.class_names[int(index)] for index in np.flatnonzero(label))


def predict(run: LoadedRun | LoadedGraphRun, data: Any) -> Predictions:
    """The predictions for all nodes, or all graphs, of data that `run.own_data` or `run.load_data`
    returned.

    Raises:
        TypeError: `run` is none of `load_run`.
        DataError: outputs that are not finite, of features or weights that are too large.
    """
    check_loaded(run)
    found = _predictions(run, data)
    check_finite(found.probabilities, getattr(data, "name", "data"))
    return found


def _predictions(run: LoadedRun | LoadedGraphRun, data: Any) -> Predictions:
    if isinstance(run, LoadedGraphRun):
        graph_names: Any = getattr(data, "graph_names", None)
        return Predictions(
            ids=range(len(data)) if graph_names is None else graph_names,
            class_names=run.dataset.output_names(),
            probabilities=run.predict(data),
            multilabel=run.dataset.targets == "labels",
            numbers=run.dataset.targets == "values",
        )
    names = getattr(data, "node_names", None)
    return Predictions(
        ids=np.arange(data.graph.num_nodes) if names is None else names,
        class_names=run.dataset.class_labels(),
        probabilities=run.predict(data.graph, data.features, run.edge_weights(data)),
        multilabel=run.dataset.multilabel,
    )


def check_suffix(path: Path, name: str, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Refuses a file of another kind; `name` is the argument that gave it.

    Raises:
        ConfigError: it is one, or its directory is not there.
    """
    if path.suffix not in suffixes:
        listed = " or ".join(suffixes)
        got = printable(path) if path.name else "none"
        raise ConfigError(f"{name}: expected a file name with {listed}, got {got}")
    if path.is_dir() or not path.parent.is_dir():
        reason = "is a directory" if path.is_dir() else "its directory is not there"
        raise ConfigError(f"{name}: {printable(path)}: {reason}")
