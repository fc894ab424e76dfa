"""Checks of an edge list on the host: integer vectors, of one length, within the counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer

from jaxgnn._core.arguments import as_integer
from jaxgnn._core.checks import choice
from jaxgnn._core.ffi import cpu_module

SELF_LOOPS = ("keep", "add", "add_remaining", "remove")  # the order of C++'s enum
MAX_NODES = 2**31 - 1


class EdgeList(NamedTuple):
    """Checked edges: both ends, of one integer type, and how many nodes there are."""

    senders: np.ndarray
    receivers: np.ndarray
    num_senders: int
    num_receivers: int
    square: bool

    @property
    def counts(self) -> dict[str, Any]:
        """The counts as the arguments of `build`."""
        if self.square:
            return {"num_nodes": self.num_receivers}
        return {"num_senders": self.num_senders, "num_receivers": self.num_receivers}


def check_edges(
    senders: Any,
    receivers: Any,
    undirected: bool,
    self_loops: str,
    *,
    num_nodes: int | None = None,
    num_senders: int | None = None,
    num_receivers: int | None = None,
) -> EdgeList:
    """The edges of `build`, if they and its options fit."""
    senders = as_indices(senders, "senders")
    receivers = as_indices(receivers, "receivers")
    if senders.shape != receivers.shape:
        raise ValueError(
            f"receivers: expected as many as senders ({senders.size}), got {receivers.size}"
        )
    if senders.dtype != receivers.dtype:
        senders, receivers = senders.astype(np.int64), receivers.astype(np.int64)
    choice(self_loops, "self_loops", SELF_LOOPS)
    num_senders, num_receivers, square = _counts(
        senders, receivers, num_nodes, num_senders, num_receivers
    )
    if not square and (undirected or self_loops != "keep"):
        option = "undirected=True" if undirected else f"self_loops={self_loops!r}"
        raise ValueError(
            f"{option}: expected a square graph (give num_nodes), got num_senders or num_receivers"
        )
    return EdgeList(senders, receivers, num_senders, num_receivers, square)


def check_concrete(values: Any, name: str, what: str = "a graph is built of indices") -> None:
    """Raises if what the host is to read is being traced."""
    if isinstance(values, Tracer):
        raise TypeError(
            f"{name}: {what} outside jax.jit, and is an argument of the jitted function (knn_graph "
            f"builds one inside); got {values}"
        )


def rows_of_index(edge_index: Any) -> tuple[np.ndarray, np.ndarray]:
    """The two rows of PyG's `edge_index`."""
    check_concrete(edge_index, "edge_index")
    if hasattr(edge_index, "edge_index"):  # PyG's Data, or a Graph
        name = type(edge_index).__name__
        raise TypeError(
            f"edge_index: expected an array, got {name}: its attribute edge_index is one"
        )
    index = _as_array(edge_index, "edge_index")
    if index.ndim != 2 or index.shape[0] != 2:
        raise ValueError(f"edge_index: expected the shape (2, num_edges), got {index.shape}")
    return index[0], index[1]


def as_indices(values: Any, name: str) -> np.ndarray:
    """`values` as a contiguous int32 or int64 vector; a copy only if they are something else.

    Raises:
        TypeError: not integers.
        ValueError: not one-dimensional.
    """
    check_concrete(values, name)
    array = _as_array(values, name)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected a vector of indices, got the shape {array.shape}")
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int32)  # what NumPy makes of an empty list
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {array.dtype}")
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        place = int(array.argmax())
        raise ValueError(
            f"{name}: expected indices below 2**31, got {name}[{place}] = {array[place]}"
        )
    fits = np.can_cast(array.dtype, np.int32)
    return np.ascontiguousarray(array, dtype=np.int32 if fits else np.int64)


def _as_array(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{name}: expected an array of integers: {error}") from error


def _counts(
    senders: np.ndarray,
    receivers: np.ndarray,
    num_nodes: int | None,
    num_senders: int | None,
    num_receivers: int | None,
) -> tuple[int, int, bool]:
    """Senders, receivers and whether they are one set, with all indices checked against them."""
    if num_senders is None and num_receivers is None:
        count = _check_count(num_nodes, "num_nodes")
        highest = max(
            _check_range(senders, count, "senders", "num_nodes"),
            _check_range(receivers, count, "receivers", "num_nodes"),
        )
        count = highest + 1 if count is None else count
        return count, count, True
    if num_nodes is not None:
        raise ValueError(
            "num_nodes: expected it alone (a square graph) or num_senders and num_receivers "
            "(a rectangular one), got both"
        )

    def resolve(indices: np.ndarray, count: int | None, name: str) -> int:
        count = _check_count(count, f"num_{name}")
        highest = _check_range(indices, count, name, f"num_{name}")
        return highest + 1 if count is None else count

    return (
        resolve(senders, num_senders, "senders"),
        resolve(receivers, num_receivers, "receivers"),
        False,
    )


def _check_count(count: Any, name: str) -> int | None:
    if count is None:
        return None
    number = as_integer(count)
    if number is None:
        raise TypeError(f"{name}: expected an integer, got {count!r}")
    if not 0 <= number <= MAX_NODES:
        raise ValueError(f"{name}: expected 0 to 2**31 - 1, got {number}")
    return number


def _check_range(indices: np.ndarray, count: int | None, name: str, count_name: str) -> int:
    """The largest index (-1 if there are none), all of them being in [0, count)."""
    if cpu_module is not None:
        low, high = cpu_module.extent(indices)
    else:
        low, high = (int(indices.min()), int(indices.max())) if indices.size else (0, -1)
    limit = MAX_NODES if count is None else count
    if low < 0 or high >= limit:
        place = int(np.argmax((indices < 0) | (indices >= limit)))
        expected = f"0 to {count_name} - 1 = {limit - 1}" if count is not None else "0 to 2**31 - 2"
        raise ValueError(f"{name}: expected {expected}, got {name}[{place}] = {indices[place]}")
    return high
