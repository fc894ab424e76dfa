"""Rows of nodes at the places of blocks, gathered where they are used."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, Shaped

from jaxgnn.graph._take import take_rows


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values", "nodes"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True, eq=False)
class NodeRows:
    """`values[nodes]`, with a row of zeros for the node -1, not gathered yet.

    A model takes it in place of the array: an aggregation that comes first reads the nodes' rows
    where they lie, and the rows of the last hop are never written. `jnp.asarray`, and every
    function of JAX and Flax, makes the array.

    Attributes:
        values: of all nodes, `[num_nodes, ...]`.
        nodes: of each place, -1 for padding.
    """

    values: Shaped[Array, "num_nodes *rest"]
    nodes: Int[Array, " places"]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.nodes.shape[0], *self.values.shape[1:])

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def first(self, count: int) -> NodeRows:
        """The rows of the first places."""
        return NodeRows(self.values, self.nodes[:count])

    def __jax_array__(self) -> Shaped[Array, "places *rest"]:
        return take_rows(self.values, self.nodes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.asarray(self.__jax_array__(), dtype)

    def __getitem__(self, index: Any) -> Shaped[Array, "*selected"]:
        return self.__jax_array__()[index]

    def __repr__(self) -> str:
        return f"NodeRows(shape={self.shape}, dtype={self.dtype})"
