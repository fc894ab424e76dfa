"""The check of a graph among the arguments."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxgnn.graph._graph import Graph
from jaxgnn.graph._substitute import GraphSubstitute
from jaxgnn.graph.batch import GraphBatch

LARGE = 1_000_000
"""Edges above which a graph among a program's constants is worth a warning."""

_own_closure = ContextVar("own_closure", default=False)
_warned = False


def graph_argument(graph: Any, name: str = "graph") -> Graph:
    """`graph`, if it is one.

    Warns once of a large graph that a jitted function closes over.
    """
    if not isinstance(graph, Graph):
        kind = type(graph).__name__
        raise TypeError(f"{name}: expected a jaxgnn.Graph, got {kind}{_hint(graph, name)}")
    if graph.num_edges > LARGE and not _warned:
        _warn_of_constant(graph)
    return graph


@contextlib.contextmanager
def own_closure() -> Iterator[None]:
    """A block that traces a function of the library's own which closes over a graph.

    Outside `jax.jit` its graph is no constant of a compiled program; inside, the call was checked.
    """
    token = _own_closure.set(True)
    try:
        yield
    finally:
        _own_closure.reset(token)


def _hint(value: Any, name: str) -> str:
    """What to do instead, for the usual mistakes."""
    if isinstance(value, GraphSubstitute):
        return ": it does not work on sharded graphs (docs/distributed.md lists what does)"
    if isinstance(value, GraphBatch):
        return f": its attribute {'membership' if name == 'membership' else 'graph'} is one"
    if hasattr(value, "num_seeds"):  # Blocks, whose module imports this one
        return ": blocks are for models; a convolution takes one of blocks.graphs, one a layer"
    if isinstance(value, tuple | list) and value and isinstance(value[0], Graph):
        return ": unpack the pair, graph, weights = ..., and give both"
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape) == 2 and shape[0] == 2:
        return ": make one of an edge_index with Graph.from_edge_index(edge_index), before training"
    if name == "membership" and shape is not None and len(shape) == 1:
        return (
            ": make one of a vector with each node's graph by Graph.from_edges("
            "numpy.arange(nodes), vector, num_senders=nodes, num_receivers=graphs)"
        )
    if shape is not None or hasattr(value, "__jax_array__"):
        return ": the graph comes first, then the features"
    if isinstance(getattr(value, "batch", None), GraphBatch):
        return ": its attribute batch is what a model takes"
    if hasattr(value, "blocks"):
        return ": its attribute blocks is what a model takes"
    if hasattr(value, "edge_index"):
        return ": make one with Graph.from_edge_index(data.edge_index), before training"
    return ""


def _warn_of_constant(graph: Graph) -> None:
    """Warns if the graph is concrete where operations are staged into a program."""
    global _warned
    if isinstance(graph.senders, Tracer) or _own_closure.get():
        return
    # Of a constant, transformations such as grad and vmap make a constant: only staging traces it.
    if isinstance(jax.lax.neg(np.int32(0)), Tracer):
        _warned = True
        warnings.warn(
            f"{graph} is a constant of a jitted function, which closes over it: XLA copies it into "
            "the program and folds it at length. Give it to the function as an argument.",
            stacklevel=3,
        )
