"""`jaxgnn info`: the memory and the time of a training step, before one is run.

Memory is XLA's own account of the compiled step. Time is a sum over five kinds of work, each at a
rate that is measured on this machine when it is asked for: the step's matrix products by their
shapes, jaxgnn's kernels by edges and width, random numbers by their count, everything else by the
bytes that XLA counts for it, and memory that is new to the process, by its size: a CPU's allocator
returns large blocks after each step, and the next one's first touch of each page is a page fault.
Work is assumed not to overlap.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn.graph import Graph
from jaxgnn.ops._projection.weight_gradient import sum_over_rows
from jaxgnn.train import kernel_rates
from jaxgnn.train.kernel_rates import FLOATS, KINDS, Call, Tensor, seconds_of_item
from jaxgnn.train.step import Program, TrainState, no_loss
from jaxgnn.train.task import Task

_SECONDS = 0.04  # of a measurement, if three calls take no longer
_ROWS = (
    1 << 14
)  # the most rows of a matrix product that is measured: its result brings no new pages
_BLOCK = 1 << 26  # the most bytes whose allocation is measured; glibc maps blocks of 32 MB anew
_STREAM = 1 << 22  # numbers of the array by which the memory's rate is measured

_TENSOR = re.compile(r"tensor<([^>]*)>")
_DOT = re.compile(
    r"stablehlo\.dot_general [^:]*?contracting_dims = \[([\d, ]*)\] x \[([\d, ]*)\][^:]* : (.*)"
)
_BATCHING = "batching_dims = "
# Of a compiled program, whose products XLA may have transposed.
_DEFINED = re.compile(r"(%[\w.-]+) = (\w+)\[([\d,]*)\]\S* (\S+)\(")
_COMPILED_DOT = re.compile(
    r" dot\((%[\w.-]+), (%[\w.-]+)\), lhs_contracting_dims={(\d+)}, rhs_contracting_dims={(\d+)}"
)
_CALL = re.compile(r"stablehlo\.custom_call @jaxgnn_(\w+)\(.* : (\(.*)")


class Dot(NamedTuple):
    """A matrix product, and the axes that it sums over."""

    left: Tensor
    right: Tensor
    axes: tuple[int, int]
    out: Tensor


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a training step takes.

    Attributes:
        peak_bytes: at the step's peak, with all that it reads and returns; 0 where XLA gives no
            account.
        argument_bytes: of these the graph, features, labels, parameters and optimizer states.
        seconds: of a step, as the sum of the next ones.
        products, kernels, random, rest, pages: seconds of matrix products, of kernels over edges,
            of random numbers, of all else, and of first touches of temporary memory.
        unknown: kernels over edges that were counted as products of as many edges and columns.
    """

    peak_bytes: int
    argument_bytes: int
    products: float
    kernels: float
    random: float
    rest: float
    pages: float
    unknown: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """The sum of the parts."""
        return self.products + self.kernels + self.random + self.rest + self.pages


def estimate(
    program: Program,
    state: TrainState,
    task: Task,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Estimate:
    """The memory and time of one step: on the whole graph, or on one mini-batch.

    The step is compiled, but not run; rates are measured, for a few tenths of a second each.
    `clock` is what they are measured with: `time.process_time` has the processor time of all
    threads, which on a CPU does not depend on what else the machine does.
    """
    if program.batches is None:
        traced = jax.jit(program.step, donate_argnums=0).trace(state, task)
    else:
        step = functools.partial(program.step_on_batches, 1)
        traced = jax.jit(step, donate_argnums=0).trace(state, no_loss(task), task)
    lowered = traced.lower()
    compiled = lowered.compile()
    dots, calls, call_bytes = work(lowered.as_text(), task.graph.num_edges)
    dots = compiled_dots(compiled.as_text() or "") or dots
    dots = dots + weight_gradients(lowered.as_text())
    bits = sum(random_bits(traced.jaxpr.jaxpr))
    memory = compiled.memory_analysis()
    arguments = peak = temporary = 0
    if memory is not None:
        temporary = memory.temp_size_in_bytes
        arguments = memory.argument_size_in_bytes
        peak = arguments + memory.output_size_in_bytes + temporary
        peak -= memory.alias_size_in_bytes  # what was donated has been counted
    accessed = (compiled.cost_analysis() or {}).get("bytes accessed", 0.0)
    known = sum(dot_bytes(dot) * count for dot, count in dots.items()) + call_bytes
    rates = Rates(task.whole_graph, clock)
    return Estimate(
        peak_bytes=peak,
        argument_bytes=arguments,
        products=rates.products(dots),
        kernels=sum(count * call.items * rates.item(call) for call, count in calls.items()),
        random=bits * rates.random if bits else 0.0,
        rest=max(accessed - known, 0.0) * rates.byte,
        pages=rates.pages(temporary),
        unknown=tuple(sorted({call.name for call in calls if call.name not in KINDS})),
    )


def work(text: str, num_edges: int) -> tuple[Counter[Dot], Counter[Call], int]:
    """The matrix products and kernels of a lowered program, and the bytes of these kernels.

    Kernels over windows are of all edges, `num_edges`; of others the operands say how many.

    Kernels neither over edges nor `maxk` are not among them: they count by their bytes.
    """
    dots: Counter[Dot] = Counter()
    calls: Counter[Call] = Counter()
    call_bytes = 0
    for line in text.splitlines():
        if (match := _DOT.search(line)) and _BATCHING not in line:
            left, right, out = _tensors(match[3])
            axes = tuple(int(axis) for axis in match.group(1, 2) if axis.isdecimal())
            if len(axes) == 2 and len(left.shape) == len(right.shape) == 2:
                dots[Dot(left, right, (axes[0], axes[1]), out)] += 1
        elif match := _CALL.search(line):
            operands, _, results = match[2].partition("->")
            operands, results = _tensors(operands), _tensors(results)
            call = kernel_rates.call(line, match[1], operands, results, num_edges)
            if call is not None:
                calls[call] += 1
                call_bytes += sum(tensor.nbytes for tensor in (*operands, *results))
    return dots, calls, call_bytes


def compiled_dots(text: str) -> Counter[Dot]:
    """The matrix products of a compiled program; none where they are calls of a library."""
    defined = {
        match[1]: Tensor(tuple(map(int, filter(None, match[3].split(",")))), match[2])
        for match in _DEFINED.finditer(text)
    }
    dots: Counter[Dot] = Counter()
    for line in text.splitlines():
        match, out = _COMPILED_DOT.search(line), _DEFINED.search(line)
        if match and out and "batch_dims" not in line:
            left, right = defined[match[1]], defined[match[2]]
            if len(left.shape) == len(right.shape) == 2:
                axes = int(match[3]), int(match[4])
                dots[Dot(left, right, axes, defined[out[1]])] += 1
    return dots


def weight_gradients(text: str) -> Counter[Dot]:
    """The products of a lowered program that a kernel sums over rows."""
    calls = (match for match in _CALL.finditer(text) if match[1] == "weight_gradient")
    return Counter(Dot(x, g, (0, 0), out) for x, g, out, _ in (_tensors(c[2]) for c in calls))


def _tensors(text: str) -> list[Tensor]:
    found = []
    for match in _TENSOR.finditer(text):
        *sizes, dtype = match[1].split("x")
        found.append(Tensor(tuple(map(int, sizes)), dtype))
    return found


def random_bits(jaxpr: Any) -> Iterator[int]:
    """The numbers that a traced program draws."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "random_bits":
            yield from (math.prod(v.aval.shape) for v in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from random_bits(inner)


def dot_bytes(dot: Dot) -> int:
    """What a matrix product reads and writes."""
    return dot.left.nbytes + dot.right.nbytes + dot.out.nbytes


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
    """The least time of a compiled call, of 3 to 50 within some hundredths of a second; of one
    call that takes a second."""
    compiled = jax.jit(function).lower(*operands).compile()
    jax.block_until_ready(compiled(*operands))
    times: list[float] = []
    while len(times) < 50 and sum(times) < (_SECONDS if len(times) >= 3 else 1.0):
        before = clock()
        jax.block_until_ready(compiled(*operands))
        times.append(clock() - before)
    return float(np.min(times))
