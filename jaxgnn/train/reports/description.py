"""`DatasetDescription`, `LinkDescription`: what a run records of its data, so that its model is
built without them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import reprlib
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import numpy as np
from jaxtyping import Float

from jaxgnn._core.text import printable
from jaxgnn.data import DataError, GraphSet, Metric, NodeDataset, PlainGraph
from jaxgnn.data.formats.label_sets import DEGREE_FEATURE, degree_column
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError

LARGEST_WIDTH = 1 << 31
Data = TypeVar("Data", NodeDataset, PlainGraph, NodeDataset | PlainGraph)


@dataclasses.dataclass(frozen=True)
class DatasetDescription:
    """The data that a run was trained on.

    Attributes:
        name: the dataset's.
        num_nodes, num_edges: of its graph.
        num_features: features a node, which the model expects.
        num_classes: outputs of the model.
        multilabel: whether a node may have several labels.
        metric: the score that the set's publication reports.
        normalized: whether the run scaled the rows of the features to sum 1.
        class_names: the user's name of each class; `None`: numbers from 0.
        feature_names: the user's name of each feature, or `None`.
        node_names: a digest of the user's names of the nodes, or `None`.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    multilabel: bool
    metric: Metric
    normalized: bool
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    node_names: str | None = None

    @classmethod
    def of(cls, dataset: NodeDataset, *, normalized: bool) -> DatasetDescription:
        """That of a dataset."""
        names = dataset.class_names
        return cls(
            name=dataset.name,
            num_nodes=dataset.num_nodes,
            num_edges=dataset.graph.num_edges,
            num_features=dataset.num_features,
            num_classes=dataset.num_classes,
            multilabel=dataset.is_multilabel,
            metric=dataset.metric,
            normalized=normalized,
            class_names=None if names is None else tuple(map(str, names)),
            feature_names=dataset.feature_names,
            node_names=digest_of_names(dataset.node_names),
        )

    def to_json(self) -> dict[str, Any]:
        """For `config.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> DatasetDescription:
        """The inverse.

        Raises:
            ConfigError: `value` is something else.
        """
        check_fields(cls, value)
        for name in ("num_nodes", "num_edges", "num_features", "num_classes"):
            least = int(name in ("num_features", "num_classes"))
            if not least <= value[name] < (LARGEST_WIDTH if least else 1 << 62):
                raise unexpected(name, "a count", value[name])
        if value["metric"] not in get_args(Metric):
            raise unexpected("metric", f"one of {', '.join(get_args(Metric))}", value["metric"])
        classes = names_of(value, "class_names", value["num_classes"])
        features = names_of(value, "feature_names", value["num_features"])
        known: dict[str, Any] = {**value, "class_names": classes, "feature_names": features}
        return cls(**known)

    def class_labels(self) -> list[str]:
        """The name of each class; its number where it has none."""
        return list(self.class_names or map(str, range(self.num_classes)))


def normalizes_features(config: TrainConfig, dataset: NodeDataset) -> bool:
    """Whether the rows of a dataset's features are scaled to sum 1."""
    planetoid = "public" in dataset.splits
    return config.features == "normalized" or (config.features == "auto" and planetoid)


@dataclasses.dataclass(frozen=True)
class LinkDescription:
    """The data of a run of `--task link`.

    Attributes:
        name: the data's.
        num_nodes, num_edges: of the graph, with the reverse edges that the run added.
        num_features: features a node, which the encoder expects; `None` where it has an embedding
            of these nodes.
        normalized: whether the run scaled the rows of the features to sum 1.
        feature_names: the user's name of each feature, or `None`.
        node_names: a digest of the user's names of the nodes, or `None`.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int | None
    normalized: bool
    feature_names: tuple[str, ...] | None = None
    node_names: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For `config.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> LinkDescription:
        """The inverse.

        Raises:
            ConfigError: `value` is something else.
        """
        check_fields(cls, value)
        for name in ("num_nodes", "num_edges"):
            if not 0 <= value[name] < 1 << 62:
                raise unexpected(name, "a count", value[name])
        width = value["num_features"]
        if width is not None and not (type(width) is int and 1 <= width < LARGEST_WIDTH):
            raise unexpected("num_features", "a count or null", width)
        return cls(**{**value, "feature_names": names_of(value, "feature_names", width or 0)})


def digest_of_names(names: Sequence[str] | None) -> str | None:
    """What tells whether nodes are the same in the same order; of none `None`."""
    if names is None:
        return None
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:32]


def with_degrees(description: DatasetDescription | LinkDescription, data: Data) -> Data:
    """Data as they are; without features those of a run on tables without features, the degrees.

    Tables without labels are a `PlainGraph`, which has none then.
    """
    names = (DEGREE_FEATURE,)
    if data.features is not None or description.feature_names != names:
        return data
    return dataclasses.replace(data, features=degree_column(data.graph), feature_names=names)


def by_name(
    description: DatasetDescription | LinkDescription, data: Data, where: str, *, learned: bool
) -> Data:
    """Data whose features are the run's, in their order; where both have names of them. With
    `learned` rows of the nodes, the nodes must be the run's instead, in their order.

    Raises:
        DataError: the features, or the nodes, have other names.
    """
    if learned:
        nodes = digest_of_names(data.node_names), description.node_names
        if None not in nodes and nodes[0] != nodes[1]:
            raise DataError(
                f"{where}: expected the nodes of {description.name}, by name and in their order, "
                "for the model has a learned embedding for each, got others"
            )
        return data
    names, expected = data.feature_names, description.feature_names
    if data.features is None or names is None or expected is None or names == expected:
        return data
    place = {name: i for i, name in enumerate(names)}
    missing = [name for name in expected if name not in place]
    if missing or len(place) != len(expected):
        what = printable(reprlib.repr(missing or sorted(place.keys() - set(expected))))
        raise DataError(
            f"{where}: expected the features of {description.name} by name, "
            f"got {'none of' if missing else 'further ones:'} {what}"
        )
    features = np.ascontiguousarray(data.features[:, [place[name] for name in expected]])
    return dataclasses.replace(data, features=features, feature_names=expected)


def check_class_names(data: NodeDataset | GraphSet, run: Any) -> None:
    """Refuses labelled data whose classes are not those of a run's description. Classes without
    names are 0, 1, ...: others are no such numbers.

    Raises:
        DataError: they are others, or in another order.
    """
    names = [
        None if each.class_names is None else tuple(map(str, each.class_names))
        for each in (run, data)
    ]
    if names[0] != names[1]:
        expected, got = ("0, 1, ..." if n is None else reprlib.repr(n) for n in names)
        raise DataError(
            f"{data.name}: expected the classes of {run.name} by name, {printable(expected)}, "
            f"got {printable(got)}"
        )


def check_finite(outputs: Float[np.ndarray, "rows ..."], name: str) -> None:
    """Refuses outputs of a model that overflowed: the largest of NaNs is no class.

    Raises:
        DataError: NaN or infinity, with the first row that has some.
    """
    wrong = ~np.isfinite(outputs).all(axis=tuple(range(1, outputs.ndim)))
    if wrong.any():
        raise DataError(
            f"{printable(name)}: expected finite outputs of the model, got NaN or infinity in row "
            f"{int(wrong.argmax())}, of features or weights of edges that are too large"
        )


def check_fields(cls: type, value: Any) -> None:
    """That a value has a description's keys, and of the right types those of one type. What has a
    default may be missing: earlier versions did not record it."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    needed = {name for name, f in fields.items() if f.default is dataclasses.MISSING}
    if not isinstance(value, dict) or not needed <= value.keys() <= fields.keys():
        raise ConfigError(f"config.json: dataset: expected the keys {', '.join(fields)}")
    kinds = {"str": str, "int": int, "bool": bool}
    for name, kind in ((n, kinds.get(str(f.type))) for n, f in fields.items()):
        if kind is not None and type(value[name]) is not kind:
            raise unexpected(name, kind.__name__, value[name])


def names_of(value: dict[str, Any], key: str, count: int) -> tuple[str, ...] | None:
    """So many names, or `None`: what a description's JSON has of a key."""
    names = value.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or not all(type(name) is str for name in names):
        raise unexpected(key, "a list of names or null", names)
    if len(names) != count:
        raise unexpected(key, f"{count} names", names)
    return tuple(names)


def unexpected(name: str, expected: str, value: Any) -> ConfigError:
    """The error of a description's field that has another value."""
    got = printable(reprlib.repr(value))
    return ConfigError(f"config.json: dataset: {name}: expected {expected}, got {got}")
