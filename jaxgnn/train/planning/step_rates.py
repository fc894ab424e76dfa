"""Seconds of a training step's work on this machine, each measured once when it is asked for."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn.graph import Graph
from jaxgnn.ops._projection.weight_gradient import sum_over_rows
from jaxgnn.train.planning.kernel_rates import FLOATS, KINDS, Call, Tensor, seconds_of_item
from jaxgnn.train.planning.step_work import Dot, Moved

_SECONDS = 0.2  # of a measurement, if three calls take no longer
_ROWS = (
    1 << 14
)  # the most rows of a matrix product that is measured: its result brings no new pages
_BLOCK = 1 << 26  # the most bytes whose allocation is measured; glibc maps blocks of 32 MB anew
_STREAM = 1 << 22  # numbers of the array by which the memory's rate is measured
_MOST_MOVED = 1 << 18  # rows that are gathered or scattered in a measurement
_DTYPES = {**FLOATS, "s32": "int32", "u32": "uint32"}


class Rates:
    """Seconds of work on the default device, measured once each."""

    def __init__(self, graph: Graph, clock: Callable[[], float]):
        self._graph = graph
        self._seconds = functools.partial(seconds_of, clock=clock)
        self._items: dict[Call, float] = {}

    @functools.cached_property
    def byte(self) -> float:
        """Of a byte that an elementwise function reads or writes."""
        x = jnp.ones(_STREAM, jnp.float32)
        return self._seconds(lambda x: jnp.maximum(x, 0) * 2 + 1, x) / (2 * x.nbytes)

    def pages(self, nbytes: int) -> float:
        """Of the first touches of a block of memory, from one of at most 64 MB."""
        size = min(nbytes, _BLOCK) // 4
        if size == 0:
            return 0.0
        spent = self._seconds(lambda value: jnp.full(size, value), jnp.float32(1))
        return max(spent / (4 * size) - self.byte, 0.0) * nbytes

    @functools.cached_property
    def random(self) -> float:
        """Of a number drawn, and compared."""
        count = _STREAM // 8
        key = jax.random.key(0)
        return self._seconds(lambda key: jax.random.bernoulli(key, 0.5, (count,)), key) / count

    def moved(self, moves: Counter[Moved]) -> float:
        """Of rows gathered and scattered by random indices."""
        return sum(count * self._moved(move) for move, count in moves.items())

    def _moved(self, move: Moved) -> float:
        if move.dtype not in _DTYPES:
            return 0.0
        rows, dtype = min(move.rows, _MOST_MOVED), _DTYPES[move.dtype]
        table = jnp.ones((move.size, move.width), dtype)
        index = jnp.asarray(np.random.default_rng(0).integers(move.size, size=rows), jnp.int32)
        if move.kind == "gather":
            spent = self._seconds(lambda table, index: table[index], table, index)
        else:
            added = jnp.ones((rows, move.width), dtype)
            spent = self._seconds(lambda t, i, x: t.at[i].add(x), table, index, added)
        return spent * move.rows / rows

    def of(self, function: Callable[..., Any], *operands: Any) -> float:
        """Of any function."""
        return self._seconds(function, *operands)

    def products(self, dots: Counter[Dot]) -> float:
        """Of matrix products, all in one program, so that none finds its operands in the caches
        that it has just left. Of longer ones 16,384 rows are measured."""
        by_scale: dict[float, list[Dot]] = {}
        for dot in dots.elements():
            if dot.left.dtype in FLOATS:
                longest = max(*dot.left.shape, *dot.right.shape)
                by_scale.setdefault(max(1.0, longest / _ROWS), []).append(dot)
        return sum(scale * self._products(some, scale) for scale, some in by_scale.items())

    def _products(self, dots: list[Dot], scale: float) -> float:
        def operand(tensor: Tensor) -> Array:
            shape = [min(size, _ROWS) if scale > 1 else size for size in tensor.shape]
            return jnp.ones(shape, FLOATS[tensor.dtype])

        pairs = [(operand(dot.left), operand(dot.right)) for dot in dots]

        def run(pairs: list[tuple[Array, Array]]) -> list[Array]:
            """One after the other, as most are in a step: each waits for the one before."""
            outs: list[Array] = []
            for dot, (left, right) in zip(dots, pairs, strict=True):
                if outs:
                    left, outs[-1] = jax.lax.optimization_barrier((left, outs[-1]))
                axes = (((dot.axes[0],), (dot.axes[1],)), ((), ()))
                if dot.axes == (0, 0):
                    outs.append(sum_over_rows(left, right))
                else:
                    outs.append(jax.lax.dot_general(left, right, axes))
            return outs

        return self._seconds(run, pairs)

    def item(self, call: Call) -> float:
        """Of an edge, or of a row of `maxk`, of a kernel's call, by that kernel on this graph."""
        # As one number for all of a kind that is measured alike.
        key = call._replace(name=KINDS.get(call.name, "spmm"), items=0)
        if key not in self._items:
            self._items[key] = seconds_of_item(self._seconds, self._graph, call)
        return self._items[key]


def seconds_of(
    function: Callable[..., Any], *operands: Any, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The least time of a compiled call, of 3 to 50 within some tenths of a second; of one
    call that takes a second."""
    compiled = jax.jit(function).lower(*operands).compile()
    jax.block_until_ready(compiled(*operands))
    times: list[float] = []
    while len(times) < 50 and sum(times) < (_SECONDS if len(times) >= 3 else 1.0):
        before = clock()
        jax.block_until_ready(compiled(*operands))
        times.append(clock() - before)
    return float(np.min(times))
