"""`load_link_run`: the encoder and the decoder of a run of `--task link`, for pairs of nodes."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int

from jaxgnn._core import checks
from jaxgnn._core.checksum import checksum
from jaxgnn.data import DataError, GraphSet, load
from jaxgnn.data.files.checks import check_ends
from jaxgnn.graph import Graph, graph_argument
from jaxgnn.train.loop.epochs import Best, Progress
from jaxgnn.train.problems.links import LinkData, LinkModel, build_links, describe
from jaxgnn.train.problems.node_problem import prepared
from jaxgnn.train.problems.problem import link_data_of, load_link_data
from jaxgnn.train.process.recovery import Recovery
from jaxgnn.train.reports.description import LinkDescription, by_name, with_degrees
from jaxgnn.train.reports.records import check_data, read_config
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.steps.embedded_model import padding_embedding
from jaxgnn.train.trained.restored import newest_checkpoint, run_config

_PAIRS = 1 << 18  # scored at once: the rows of both ends are on the device


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedLinkRun:
    """A trained model of links, without the data that it was trained on.

    Attributes:
        directory: the run directory.
        config: the run's settings.
        dataset: what its data were.
        model: with the parameters that the run selected, in inference mode: its `encoder` takes a
            graph and features, its `decoder` the outputs, senders and receivers.
        progress: the epochs done, and the selected one.
    """

    directory: Path
    config: TrainConfig
    dataset: LinkDescription
    model: LinkModel
    progress: Progress

    @functools.cached_property
    def _programs(self) -> tuple[Callable[..., Array], Callable[..., Array]]:
        definition, state = nnx.split(self.model)

        def encode(state: Any, graph: Graph, x: Any) -> Array:
            return nnx.merge(definition, state).encode(graph, x)

        def decode(state: Any, nodes: Array, senders: Array, receivers: Array) -> Array:
            return nnx.merge(definition, state).decoder(nodes, senders, receivers)

        return (
            functools.partial(jax.jit(encode), state),
            functools.partial(jax.jit(decode), state),
        )

    def encode(
        self, graph: Graph, features: Float[ArrayLike, "nodes features"] | None
    ) -> Float[Array, "nodes width"]:
        """The nodes' outputs, which the decoder scores pairs by.

        Args:
            graph: whose edges pass messages; with the reverse of each unless the run is directed.
            features: of its nodes, prepared as the run's were; not read where the run has an
                embedding, whose nodes the graph must have.

        Raises:
            DataError: a rectangular graph, other nodes, or features of another shape.
        """
        self._check(graph, None if features is None else np.shape(features), "features")
        x = None if self.dataset.num_features is None else jnp.asarray(features, self.config.dtype)
        return self._programs[0](prepared(graph, self.config), x)

    def logits(
        self,
        nodes: Float[Array, "nodes width"],
        senders: Int[ArrayLike, " pairs"],
        receivers: Int[ArrayLike, " pairs"],
    ) -> Float[Array, " pairs"]:
        """The scores of pairs of nodes.

        Args:
            nodes: of `encode`.
            senders, receivers: the ends of each pair.

        Raises:
            DataError: ends that are no nodes, or of two lengths.
        """
        ends = check_ends(senders, receivers, nodes.shape[0])
        parts = [
            self._programs[1](nodes, *(ids[begin : begin + _PAIRS] for ids in ends))
            for begin in range(0, max(1, ends[0].size), _PAIRS)
        ]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    @property
    def has_embedding(self) -> bool:
        """Whether the encoder has a learned embedding for each node, and does not read features."""
        return self.dataset.num_features is None

    def exportable(self) -> nnx.Module:
        """The encoder as `jaxgnn.export.save` takes it, see `LoadedRun.exportable`."""
        return padding_embedding(self.model.encoder)

    def load_data(self, path: str | os.PathLike[str]) -> LinkData:
        """The data at a path or of a name, prepared as the run's were.

        Raises:
            DataError: no such data, many graphs, or other features than the run's, by number or by
                name; other nodes by name, where the encoder has a learned embedding for each.
        """
        loaded = load(path)
        if isinstance(loaded, GraphSet):
            raise DataError(f"{os.fspath(path)}: expected one graph, got a set of graphs")
        loaded = with_degrees(self.dataset, loaded)
        shape = None if loaded.features is None else loaded.features.shape
        self._check(loaded.graph, shape, os.fspath(path))
        loaded = by_name(self.dataset, loaded, os.fspath(path), learned=self.has_embedding)
        return link_data_of(self.config, loaded, normalized=self.dataset.normalized)

    def own_data(self, name: str = "run") -> LinkData:
        """The data of the run's settings, which must be those that it was trained on; `name` is
        the argument that gave the directory.

        Raises:
            ConfigError, DataError: they are not there, or others.
        """
        data = load_link_data(self.config)
        found = {"name": data.name, "fingerprint": checksum(*data.arrays())}
        check_data(self.directory, read_config(self.directory, name).get("data"), found, name)
        return data

    def _check(self, graph: Graph, shape: tuple[int, ...] | None, where: str) -> None:
        expected = self.dataset
        graph_argument(graph)
        if not graph.is_square:
            raise DataError(f"graph: expected one set of nodes, got {graph}")
        if self.has_embedding:
            if graph.num_nodes != expected.num_nodes:
                raise DataError(
                    f"{where}: expected the {expected.num_nodes} nodes of {expected.name}, whose "
                    f"embedding was learned, got {graph.num_nodes}"
                )
        elif shape is None:
            raise DataError(f"{where}: expected node features, got a graph without")
        elif shape != (graph.num_nodes, expected.num_features):
            raise DataError(
                f"{where}: expected {expected.num_features} features for each of the "
                f"{graph.num_nodes} nodes, as {expected.name} has, got the shape {list(shape)}"
            )


def load_link_run(
    directory: str | os.PathLike[str],
    name: str = "run",
    *,
    warn: Callable[[str], None] | None = None,
) -> LoadedLinkRun:
    """The model of a run of `--task link`, with the parameters that it selected.

    The data are not read, but for runs of versions that recorded no description of them.

    Args:
        directory: the run directory; nothing is written to it.
        name: the argument that gave it, for messages.
        warn: called with one line for each checkpoint that is damaged; by default a `RunWarning`.

    Raises:
        ConfigError: no run directory, no checkpoint yet, a run of another task, or a float64 run
            without `jax_enable_x64`.
        CheckpointError: no checkpoint that can be restored.
    """
    directory = checks.path(directory, name)
    config = run_config(directory, name, "link")
    record = read_config(directory, name)
    if "dataset" in record:
        description = LinkDescription.from_json(record["dataset"])
    else:
        description = describe(config, load_link_data(config))
    program, state = build_links(config, description.num_nodes, description.num_features)
    start = (state, Best(state.params, state.rest))
    (_, best), progress = newest_checkpoint(directory, name, start, warn or Recovery().warn)
    model = nnx.merge(program.inference, best.params, best.rest)
    return LoadedLinkRun(directory, config, description, model, progress)
