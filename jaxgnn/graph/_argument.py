"""The check of a graph among the arguments."""

from __future__ import annotations

from typing import Any

from jaxgnn.graph._graph import Graph


def graph_argument(graph: Any, name: str = "graph") -> Graph:
    """`graph`, if it is one."""
    if not isinstance(graph, Graph):
        raise TypeError(f"{name}: expected a jaxgnn.Graph, got {type(graph).__name__}")
    return graph
