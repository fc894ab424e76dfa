"""What a training step does, read from its lowered and its compiled program."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxgnn.train.planning import kernel_rates
from jaxgnn.train.planning.kernel_rates import Call, Tensor

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
_MOVED = re.compile(
    r" (gather|scatter)\((%[\w.-]+), %[\w.-]+(?:, (%[\w.-]+))?\).*? "
    r"(?:slice_sizes|update_window_dims)={([\d,]*)}"
)
_CALL = re.compile(r"stablehlo\.custom_call @jaxgnn_(\w+)\(.* : (\(.*)")
_COMPILED_CALL = re.compile(r'custom_call_target="jaxgnn_(\w+)"')
NEGATIVES = "jaxgnn.negative_edges"
"""The scope of what draws pairs without an edge."""


class Dot(NamedTuple):
    """A matrix product, and the axes that it sums over."""

    left: Tensor
    right: Tensor
    axes: tuple[int, int]
    out: Tensor


class Moved(NamedTuple):
    """Rows that XLA takes from a table of `size` rows by index, or adds to its rows."""

    kind: str
    rows: int
    width: int
    size: int
    dtype: str

    @property
    def nbytes(self) -> int:
        """Read and written, without the index."""
        each = 2 if self.kind == "gather" else 3
        return each * Tensor((self.rows, self.width), self.dtype).nbytes


def work(text: str, num_edges: int) -> tuple[Counter[Dot], Counter[Call], int]:
    """The matrix products and kernels of a lowered program, and the bytes of these kernels.

    Kernels over windows are of all edges, `num_edges`; of others the operands say how many.

    Kernels neither over edges nor `maxk` nor dropout's mask are not among them: they count by
    their bytes.
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


def merged(calls: Counter[Call], compiled: str) -> dict[Call, float]:
    """How often the compiled program has each call of the lowered one: XLA makes one of equal
    calls, as of those that a gradient recomputes. Of one name all are taken to be as many."""
    kept = Counter(_COMPILED_CALL.findall(compiled))
    named: Counter[str] = Counter()
    for call, count in calls.items():
        named[call.name] += count
    return {
        call: count * min(kept[call.name] / named[call.name], 1.0) if kept[call.name] else count
        for call, count in calls.items()
    }


def compiled_dots(text: str) -> Counter[Dot]:
    """The matrix products of a compiled program; none where they are calls of a library."""
    defined = _definitions(text)
    dots: Counter[Dot] = Counter()
    for line in text.splitlines():
        match, out = _COMPILED_DOT.search(line), _DEFINED.search(line)
        if match and out and "batch_dims" not in line:
            left, right = defined[match[1]], defined[match[2]]
            if len(left.shape) == len(right.shape) == 2:
                axes = int(match[3]), int(match[4])
                dots[Dot(left, right, axes, defined[out[1]])] += 1
    return dots


def moved_rows(text: str) -> Counter[Moved]:
    """The rows that a compiled program gathers and scatters, but for what draws negatives."""
    defined = _definitions(text)
    found: Counter[Moved] = Counter()
    for line in text.splitlines():
        match, out = _MOVED.search(line), _DEFINED.search(line)
        if match is None or out is None or NEGATIVES in line:
            continue
        kind, table, updates, numbers = match.groups()
        axes = [int(number) for number in numbers.split(",") if number]
        rows = defined[out[1]] if kind == "gather" else defined[updates]
        sizes = axes if kind == "gather" else [rows.shape[axis] for axis in axes]
        width, table = math.prod(sizes), defined[table]
        if width and math.prod(rows.shape):
            count = math.prod(rows.shape) // width
            found[Moved(kind, count, width, math.prod(table.shape) // width, rows.dtype)] += 1
    return found


def _definitions(text: str) -> dict[str, Tensor]:
    return {
        match[1]: Tensor(tuple(map(int, filter(None, match[3].split(",")))), match[2])
        for match in _DEFINED.finditer(text)
    }


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
