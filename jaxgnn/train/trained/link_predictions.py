"""Scores of pairs of nodes: the pairs as a table of the user's ids, in and out."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxgnn.data.files.columns import References, read_columns
from jaxgnn.data.files.limits import Budget
from jaxgnn.train.problems.links import LinkData
from jaxgnn.train.reports.description import check_finite
from jaxgnn.train.reports.records import replacing
from jaxgnn.train.trained.loaded_links import LoadedLinkRun
from jaxgnn.train.trained.predictions import check_suffix


class Pairs(NamedTuple):
    """Pairs of nodes by their numbers, int32."""

    senders: Int[np.ndarray, " pairs"]
    receivers: Int[np.ndarray, " pairs"]


def read_pairs(path: str | os.PathLike[str], data: LinkData) -> Pairs:
    """The pairs of a `.csv`, `.csv.gz` or `.parquet` table with the columns `source`, `target`.

    Its other columns must be numbers, as in `edges.csv`, and are not used.

    Args:
        path: the table.
        data: whose nodes its ids name.

    Raises:
        DataError: a missing column, or an id of no node; with the file, the line and the column.
    """
    names = data.node_names
    numbers = (
        _Numbers(data.graph.num_nodes)
        if names is None
        else {name: number for number, name in enumerate(names)}
    )
    source, target = References(numbers), References(numbers)
    read_columns(Path(path), {"source": source, "target": target}, {}, Budget())
    return Pairs(source.numpy(), target.numpy())


class _Numbers(Mapping[str, int]):
    """The ids of nodes without names: 0 to n - 1, as they are written without signs and zeros."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __getitem__(self, name: str) -> int:
        if name.isascii() and name.isdigit() and len(name) < 11:
            number = int(name)
            if number < self._count and str(number) == name:
                return number
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self._count))

    def __len__(self) -> int:
        return self._count


@dataclasses.dataclass(frozen=True)
class LinkPredictions:
    """What a model says of pairs of nodes.

    Attributes:
        senders, receivers: the user's ids; the nodes' numbers where the data name none.
        scores: the decoder's logits, float32; of float64 models float64.
    """

    senders: Sequence[Any] | np.ndarray
    receivers: Sequence[Any] | np.ndarray
    scores: Float[np.ndarray, " pairs"]

    @property
    def probabilities(self) -> Float[np.ndarray, " pairs"]:
        r"""$1 / (1 + e^{-s})$ of the scores $s$: of an edge, where half of the pairs are edges."""
        half = 0.5 * self.scores  # tanh does not overflow
        return 0.5 * (1 + np.tanh(half))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all.

        A `.csv` has the columns, and an `.npz` the arrays, `source`, `target`, `score` and
        `probability`.

        Raises:
            ConfigError: a path of another suffix.
            OSError: it cannot be written.
        """
        path = Path(path)
        check_suffix(path, "path")
        columns: dict[str, Any] = {
            "source": np.asarray(self.senders),
            "target": np.asarray(self.receivers),
            "score": self.scores,
            "probability": self.probabilities,
        }
        if path.suffix == ".npz":
            with replacing(path, binary=True) as file:
                np.savez(file, **columns)
            return
        with replacing(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*(map(str, values) for values in columns.values()), strict=True))


def predict_links(run: LoadedLinkRun, data: LinkData, pairs: Pairs) -> LinkPredictions:
    """The scores of pairs of nodes, with messages over all edges of the data.

    A pair that is itself an edge of the data passes messages between its ends: that flatters it.
    `jaxgnn train` scores the links of the test without them.

    Args:
        run: the model.
        data: of `run.own_data` or `run.load_data`.
        pairs: of its nodes.

    Raises:
        DataError: ends that are no nodes, or scores that are not finite, of features that are too
            large.
    """
    logits = run.logits(run.encode(data.graph, data.features), *pairs)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    scores = np.asarray(jax.device_get(logits))
    check_finite(scores, data.name)
    ids: list[Any] = [*pairs]
    if (names := data.node_names) is not None:
        ids = [[names[number] for number in numbers.tolist()] for numbers in pairs]
    return LinkPredictions(ids[0], ids[1], scores)
