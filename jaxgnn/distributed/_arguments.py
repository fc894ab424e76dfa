"""The arguments of `shard`, and what is wrong with them."""

from __future__ import annotations

import os
from typing import Any, Protocol

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh
from jaxtyping import Int

from jaxgnn._core import checks
from jaxgnn.graph import Graph, graph_argument


class Owners(Protocol):
    """Which part owns each node."""

    @property
    def parts(self) -> int: ...
    @property
    def owner(self) -> Int[np.ndarray, " num_nodes"]: ...


def check_graph(graph: Any) -> Graph:
    """The square graph that is to be split.

    Raises:
        TypeError: no `Graph`, or one that is traced; of a partition or a folder it says where they
            go.
        ValueError: a rectangular one.
    """
    hint = ""
    if isinstance(graph, str | os.PathLike):
        hint = "load_sharded(directory, mesh, rows=...) reads a folder of Partition.save"
    elif hasattr(graph, "parts") and hasattr(graph, "owner"):
        hint = (
            "give the graph, and the owners by partition=, or read a saved one by "
            "load_sharded(directory, mesh, rows=...)"
        )
    if hint:
        kind = type(graph).__name__
        raise TypeError(f"graph: expected a jaxgnn.Graph, got {kind}: {hint}")
    graph = graph_argument(graph)
    if not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got {graph}")
    if isinstance(graph.row_offsets, Tracer):
        raise TypeError(
            "graph: expected one that is not traced: shard it outside jax.jit, the result is an "
            "argument of the jitted function"
        )
    return graph


def check_axes(
    mesh: Mesh,
    rows: str | None,
    features: str | None,
    exchange_dtype: str | None,
    overlap: bool | None,
) -> Mesh:
    """The mesh with automatic axes.

    Raises:
        TypeError: `mesh` is none, or `overlap` no bool.
        ValueError: an argument of `shard` that cannot be, or explicit axes of `jax.set_mesh`.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: expected a jax.sharding.Mesh, got {type(mesh).__name__}")
    if overlap is not None and not isinstance(overlap, bool):
        raise TypeError(f"overlap: expected True, False or None, got {overlap!r}")
    checks.choice(exchange_dtype, "exchange_dtype", (None, "bfloat16", "float16"))
    for name, axis in (("rows", rows), ("features", features)):
        if axis is not None and axis not in mesh.axis_names:
            raise ValueError(f"{name}: expected an axis of {mesh.axis_names}, got {axis!r}")
    if rows is not None and rows == features:
        raise ValueError(f"features: expected another axis than rows, got {features!r}")
    check_context()
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=auto)


def check_context() -> None:
    """That arrays of automatic axes can be used here.

    Raises:
        ValueError: `jax.set_mesh` set explicit axes, for which JAX refuses such arrays.
    """
    found = jax.sharding.get_abstract_mesh()
    if AxisType.Explicit in found.axis_types:
        raise ValueError(
            "mesh: expected none set by jax.set_mesh, or one of automatic axes, got explicit axes "
            f"{found.axis_names}: a sharded graph needs no jax.set_mesh; else make the mesh by "
            "jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,) * axes)"
        )


def sent_bytes(exchange_dtype: str | None) -> int:
    """Of a value that is sent, of 4 elsewhere."""
    return 4 if exchange_dtype is None else 2


def owner_of(partition: Owners, graph: Graph, count: int) -> Int[np.ndarray, " num_nodes"]:
    """The owner of each node.

    Raises:
        TypeError: no partition.
        ValueError: a partition of other parts or nodes.
    """
    if not hasattr(partition, "parts") or not hasattr(partition, "owner"):
        raise TypeError(
            "partition: expected a method's name, a Partition, or what has parts and owner, got "
            f"{type(partition).__name__}: Partition.of_owners(graph, owner, parts) makes one"
        )
    if partition.parts != count:
        raise ValueError(f"partition: expected {count} parts, got {partition.parts}")
    owner = np.asarray(partition.owner)
    check_owners(owner, graph.num_senders, count, "partition", "integer owners", "owners")
    return owner


def check_owners(
    owner: np.ndarray, nodes: int, parts: int, name: str, integers: str, owners: str
) -> None:
    """That each node has an owner among the parts.

    Args:
        owner: of each node.
        nodes, parts: their numbers.
        name, integers, owners: what an error calls the argument, its elements, and their range.

    Raises:
        ValueError: a node has none.
    """
    if owner.shape != (nodes,) or owner.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: expected {integers} of the shape ({nodes},), got {owner.dtype} of "
            f"{owner.shape}"
        )
    if owner.size and not 0 <= owner.min() <= owner.max() < parts:
        raise ValueError(
            f"{name}: expected {owners} from 0 to {parts - 1}, got {owner.min()} to {owner.max()}"
        )
