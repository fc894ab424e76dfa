"""The arguments of `shard`, and what is wrong with them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from jax.sharding import AxisType, Mesh
from jaxtyping import Int

from jaxgnn._core import checks
from jaxgnn.graph import Graph


class Owners(Protocol):
    """Which part owns each node."""

    @property
    def parts(self) -> int: ...
    @property
    def owner(self) -> Int[np.ndarray, " num_nodes"]: ...


def check_axes(
    mesh: Mesh,
    rows: str | None,
    features: str | None,
    exchange_dtype: str | None,
    overlap: bool | None,
) -> Mesh:
    """The mesh with automatic axes.

    Raises:
        TypeError: `overlap` is no bool.
        ValueError: an argument of `shard` that cannot be.
    """
    if overlap is not None and not isinstance(overlap, bool):
        raise TypeError(f"overlap: expected True, False or None, got {overlap!r}")
    checks.choice(exchange_dtype, "exchange_dtype", (None, "bfloat16", "float16"))
    for name, axis in (("rows", rows), ("features", features)):
        if axis is not None and axis not in mesh.axis_names:
            raise ValueError(f"{name}: expected an axis of {mesh.axis_names}, got {axis!r}")
    if rows is not None and rows == features:
        raise ValueError(f"features: expected another axis than rows, got {features!r}")
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=auto)


def sent_bytes(exchange_dtype: str | None) -> int:
    """Of a value that is sent, of 4 elsewhere."""
    return 4 if exchange_dtype is None else 2


def owner_of(partition: Owners, graph: Graph, count: int) -> Int[np.ndarray, " num_nodes"]:
    """The owner of each node.

    Raises:
        ValueError: a partition of other parts or nodes.
    """
    if partition.parts != count:
        raise ValueError(f"partition: expected {count} parts, got {partition.parts}")
    owner = np.asarray(partition.owner)
    if owner.shape != (graph.num_senders,) or not np.issubdtype(owner.dtype, np.integer):
        raise ValueError(
            f"partition: expected integer owners of the shape ({graph.num_senders},), "
            f"got {owner.dtype} of {owner.shape}"
        )
    if owner.size and not 0 <= owner.min() <= owner.max() < count:
        raise ValueError(
            f"partition: expected owners from 0 to {count - 1}, got {owner.min()} to {owner.max()}"
        )
    return owner
