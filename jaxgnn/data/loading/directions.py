"""Data whose edges join both ways."""

from __future__ import annotations

import dataclasses
import os
from typing import TypeVar

import numpy as np

from jaxgnn.data.loading.recognize import Loaded
from jaxgnn.data.loading.registry import accepts, load
from jaxgnn.data.sets.dataset import NodeDataset
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.graph import Graph

Data = TypeVar("Data", bound=NodeDataset | PlainGraph)


def load_undirected(name_or_path: str | os.PathLike[str]) -> Loaded:
    """`load` with the reverse of each edge, by the reader's own option where it has one: features
    made of degrees are then those of the graph with both. A `GraphSet` stays as it is.

    Raises:
        DataError: as `load`.
    """
    path = os.fspath(name_or_path)
    loaded = load(path, undirected=True) if accepts(path, "undirected") else load(path)
    return loaded if isinstance(loaded, GraphSet) else with_reverse_edges(loaded)


def with_reverse_edges(data: Data) -> Data:
    """The data with the reverse of each edge, repeated edges merged, as readers' `undirected=True`.

    Weights and features of merged edges are summed. A symmetric graph stays as it is.
    """
    if data.graph.symmetric:
        return data
    of_edges = {"weights": data.weights, "edge_features": data.edge_features}
    graph, merged = Graph.from_edges(
        *(np.asarray(ends) for ends in (data.graph.senders, data.graph.receivers)),
        num_nodes=data.graph.num_receivers,
        undirected=True,
        edge_data={name: values for name, values in of_edges.items() if values is not None},
    )
    return dataclasses.replace(
        data, graph=graph, **{name: np.asarray(values) for name, values in merged.items()}
    )
