"""`DatasetDescription`, `LinkDescription`: what a run records of its data, so that its model is
built without them."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any, get_args

from jaxgnn._core.text import printable
from jaxgnn.data import Metric, NodeDataset
from jaxgnn.train.config import TrainConfig
from jaxgnn.train.options import ConfigError

_LARGEST_WIDTH = 1 << 31


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
        _check_fields(cls, value)
        for name in ("num_nodes", "num_edges", "num_features", "num_classes"):
            least = int(name in ("num_features", "num_classes"))
            if not least <= value[name] < (_LARGEST_WIDTH if least else 1 << 62):
                raise _unexpected(name, "a count", value[name])
        if value["metric"] not in get_args(Metric):
            raise _unexpected("metric", f"one of {', '.join(get_args(Metric))}", value["metric"])
        names = value["class_names"]
        if names is not None:
            if not isinstance(names, list) or not all(type(name) is str for name in names):
                raise _unexpected("class_names", "a list of names or null", names)
            if len(names) != value["num_classes"]:
                raise _unexpected("class_names", f"{value['num_classes']} names", names)
        known: dict[str, Any] = {**value, "class_names": None if names is None else (*names,)}
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
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int | None
    normalized: bool

    def to_json(self) -> dict[str, Any]:
        """For `config.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> LinkDescription:
        """The inverse.

        Raises:
            ConfigError: `value` is something else.
        """
        _check_fields(cls, value)
        for name in ("num_nodes", "num_edges"):
            if not 0 <= value[name] < 1 << 62:
                raise _unexpected(name, "a count", value[name])
        width = value["num_features"]
        if width is not None and not (type(width) is int and 1 <= width < _LARGEST_WIDTH):
            raise _unexpected("num_features", "a count or null", width)
        return cls(**value)


def _check_fields(cls: type, value: Any) -> None:
    """That a value has a description's keys, and of the right types those of one type."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if not isinstance(value, dict) or value.keys() != fields.keys():
        raise ConfigError(f"config.json: dataset: expected the keys {', '.join(fields)}")
    kinds = {"str": str, "int": int, "bool": bool}
    for name, kind in ((n, kinds.get(str(f.type))) for n, f in fields.items()):
        if kind is not None and type(value[name]) is not kind:
            raise _unexpected(name, kind.__name__, value[name])


def _unexpected(name: str, expected: str, value: Any) -> ConfigError:
    got = printable(reprlib.repr(value))
    return ConfigError(f"config.json: dataset: {name}: expected {expected}, got {got}")
