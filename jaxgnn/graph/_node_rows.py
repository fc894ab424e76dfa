"""Rows of nodes at the places of blocks, gathered where they are used."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, Shaped

from jaxgnn.graph._take import take_rows


def _made(operation: Callable[[Any, Any], Any], *, other_first: bool = False) -> Any:
    """The operation of the array that rows make, and another operand."""

    def apply(rows: NodeRows, other: Any) -> Any:
        array = rows.__jax_array__()
        return operation(other, array) if other_first else operation(array, other)

    return apply


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values", "nodes"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True, eq=False)
class NodeRows:
    """`values[nodes]`, with a row of zeros for the node -1, not gathered yet.

    A model takes it in place of the array: an aggregation that comes first reads the nodes' rows
    where they lie, and the rows of the last hop are never written. `jnp.asarray`, arithmetic and
    every function of `jax.numpy` make the array. Make it for `jax.lax`, `nnx.Dropout`, `jax.vmap`
    and `jax.tree.map`, which do not; a map sees the two arrays.

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

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def astype(self, dtype: Any) -> Shaped[Array, "places *rest"]:
        return self.__jax_array__().astype(dtype)

    __add__, __radd__ = _made(operator.add), _made(operator.add, other_first=True)
    __sub__, __rsub__ = _made(operator.sub), _made(operator.sub, other_first=True)
    __mul__, __rmul__ = _made(operator.mul), _made(operator.mul, other_first=True)
    __truediv__, __rtruediv__ = _made(operator.truediv), _made(operator.truediv, other_first=True)
    __matmul__, __rmatmul__ = _made(operator.matmul), _made(operator.matmul, other_first=True)

    def __neg__(self) -> Shaped[Array, "places *rest"]:
        return -self.__jax_array__()

    def first(self, count: int) -> NodeRows:
        """The rows of the first places."""
        return NodeRows(self.values, self.nodes[:count])

    def __jax_array__(self) -> Shaped[Array, "places *rest"]:
        if self.nodes.ndim == 0:
            raise TypeError("NodeRows: expected jnp.asarray(rows) under jax.vmap, got the rows")
        return take_rows(self.values, self.nodes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.asarray(self.__jax_array__(), dtype)

    def __getitem__(self, index: Any) -> Shaped[Array, "*selected"]:
        return self.__jax_array__()[index]

    def __repr__(self) -> str:
        return f"NodeRows(shape={self.shape}, dtype={self.dtype})"
