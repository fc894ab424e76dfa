"""A graph as the flat arrays that an exported program takes, always of the same shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxgnn.data.files.limits import DataError
from jaxgnn.graph import Graph, batch
from jaxgnn.graph._build.device_csr import square_graph

EDGES = ("senders", "receivers")
"""The arrays of a portable program."""


def check_fits(graph: Graph, num_nodes: int, num_edges: int) -> None:
    """That padding gives it these counts.

    Raises:
        DataError: it is rectangular, or too large.
    """
    if not graph.is_square:
        raise DataError(f"graph: expected one set of nodes, got {graph}")
    if graph.num_nodes > num_nodes or graph.num_edges > num_edges:
        raise DataError(
            f"graph: expected at most {num_nodes:,} nodes and {num_edges:,} edges, got "
            f"{graph.num_nodes:,} and {graph.num_edges:,}"
        )
    if graph.num_edges < num_edges and graph.num_nodes == num_nodes:
        raise DataError(
            f"graph: expected fewer than {num_nodes:,} nodes, or {num_edges:,} edges, since "
            f"padding edges run between padding nodes; got {graph.num_edges:,} edges"
        )


def padded(graph: Graph, num_nodes: int, num_edges: int) -> Graph:
    """The graph with these counts, whose arrays have shapes and static fields that they alone
    decide.

    Raises:
        DataError: as `check_fits`.
    """
    check_fits(graph, num_nodes, num_edges)
    whole = batch.pad(graph, num_nodes=num_nodes, num_edges=num_edges).graph
    # What depends on the graph's values would make a program of its own.
    return dataclasses.replace(whole.drop_edge_permutation(), symmetric=False)


def names_and_arrays(graph: Graph, portable: bool) -> tuple[tuple[str, ...], list[Array]]:
    """The arrays of a padded graph, by name."""
    if portable:
        return EDGES, [graph.senders, graph.receivers]
    found = jax.tree_util.tree_leaves_with_path(graph)
    names = tuple(jax.tree_util.keystr(path).removeprefix(".") for path, _ in found)
    return names, [leaf for _, leaf in found]


def graph_of_edges(arrays: Sequence[Any], num_nodes: int) -> Graph:
    """The graph of sorted senders and receivers, under `jit`."""
    senders, receivers = arrays
    bounds = np.arange(num_nodes + 1, dtype=np.int32)
    offsets = jax.numpy.searchsorted(receivers, bounds).astype(np.int32)
    return square_graph(offsets, senders, receivers, None)
