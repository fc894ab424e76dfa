"""Argument checks shared by the operations: those of every layer, and of the graph."""

from jaxgnn._core.checks import (
    boolean,
    choice,
    edge_weights,
    floating,
    floating_rows,
    integer,
    key,
    matrix,
    number,
)
from jaxgnn.graph import graph_argument

__all__ = [
    "boolean",
    "choice",
    "edge_weights",
    "floating",
    "floating_rows",
    "graph_argument",
    "integer",
    "key",
    "matrix",
    "number",
]
