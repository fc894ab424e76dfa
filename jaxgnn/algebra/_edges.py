"""Values on edges, not computed yet: the algebra's expressions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn._core.arguments import as_integer, unwrap
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.ops import CBSR

Function = Callable[..., Any]
"""Of arrays with a row for each edge (or for each node), each row by itself."""

Normalization = Literal["softmax", "sum", "mean", "max", "min"]


def _no_array(*parts: Any) -> Any:
    raise TypeError("expressions over edges have no parts")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Edges:
    """Values of the edges of a graph, to be computed by `gather` or `evaluate`.

    `+`, `-`, `*` and `/` take two of them, of the same graph, or one and a scalar. Feature axes are
    aligned from the first: of two operands the one with fewer axes is a weight of its edge (and
    head), and the result has the other's dtype. With equally many axes the dtypes must be equal.
    Integers and booleans, as of a comparison, are promoted as by `jax.numpy`.

    Attributes:
        graph: whose edges.
        features: the axes after that of the edges.
        dtype: of the values.
    """

    graph: Graph
    features: tuple[int, ...]
    dtype: np.dtype

    @property
    def text(self) -> str:
        """The expression as text, for `explain`."""
        raise NotImplementedError

    __array_ufunc__ = None  # NumPy's arrays leave the arithmetic to this class

    def __add__(self, other: Any) -> Edges:
        return _arithmetic("+", jnp.add, self, other)

    def __radd__(self, other: Any) -> Edges:
        return _arithmetic("+", jnp.add, other, self)

    def __sub__(self, other: Any) -> Edges:
        return _arithmetic("-", jnp.subtract, self, other)

    def __rsub__(self, other: Any) -> Edges:
        return _arithmetic("-", jnp.subtract, other, self)

    def __mul__(self, other: Any) -> Edges:
        return _arithmetic("*", jnp.multiply, self, other)

    def __rmul__(self, other: Any) -> Edges:
        return _arithmetic("*", jnp.multiply, other, self)

    def __truediv__(self, other: Any) -> Edges:
        return _arithmetic("/", jnp.divide, self, other)

    def __rtruediv__(self, other: Any) -> Edges:
        return _arithmetic("/", jnp.divide, other, self)

    def __neg__(self) -> Edges:
        return scale(self, -1)

    def __init_subclass__(cls, **options: Any) -> None:
        # The functions of jax.numpy and jax.nn flatten their arguments before they look at them.
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_node(cls, cls.__array__, _no_array)

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError(
            f"{self!r} is no array: algebra.apply_edge(function, edges) applies a function such as "
            "jax.nn.sigmoid, algebra.linear(edges, kernel) a matrix, algebra.evaluate(edges) "
            "computes the values"
        )

    # An array's other operators, with the same error.
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __abs__ = __getitem__ = __array__
    __lt__ = __le__ = __gt__ = __ge__ = __array__

    def __repr__(self) -> str:
        return f"Edges({self.text}, features={self.features}, dtype={self.dtype})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NodeGather(Edges):
    """The rows of the nodes at one end, gathered to the edges.

    `all_used`: every row is one that some edge has.
    """

    x: Array
    sender: bool
    label: str
    all_used: bool = False

    @property
    def text(self) -> str:
        return self.label


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SparseGather(Edges):
    """The sparse rows of the senders, gathered to the edges."""

    rows: CBSR
    label: str

    @property
    def text(self) -> str:
        return self.label


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EdgeInput(Edges):
    """An array with a row for each edge."""

    values: Array

    @property
    def text(self) -> str:
        return "e"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Applied(Edges):
    """A function of the edges' rows, each by itself; rules know some by name and parameters.

    `template` formats the operands' texts.
    """

    name: str
    template: str
    function: Function
    operands: tuple[Edges, ...]
    parameters: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        return self.template.format(*(operand.text for operand in self.operands))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SegmentNormalize(Edges):
    """Values normalized over each receiver's edges: a softmax, or divided by a reduction."""

    method: Normalization
    operand: Edges

    @property
    def text(self) -> str:
        name = "softmax" if self.method == "softmax" else f"normalize by {self.method}"
        return f"{name}({self.operand.text})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dropout(Edges):
    """Values times dropout's mask, a function of the edge's place and the head.

    `drop_below` and `philox_key` are `rate` and `dropout_rng` as the mask's generator takes them.
    """

    operand: Edges
    rate: float
    dropout_rng: Any
    drop_below: int
    philox_key: Array

    @property
    def text(self) -> str:
        return f"dropout({self.operand.text})"


def node_gather(graph: Graph, x: Array, sender: bool, label: str) -> NodeGather:
    return NodeGather(graph, x.shape[1:], x.dtype, x, sender, label)


def sparse_gather(graph: Graph, rows: CBSR, label: str) -> SparseGather:
    return SparseGather(graph, rows.shape[1:], rows.dtype, rows, label)


def apply(
    name: str,
    function: Function,
    operands: Sequence[Edges],
    parameters: tuple[Any, ...] = (),
    template: str = "",
) -> Applied:
    """`function` of the rows; raises as it does, and where it changes the number of rows."""
    graph = same_graph(operands, name)
    # Not the number of edges or of nodes: a function that needs those does not act row by row.
    rows = graph.num_edges + max(graph.num_senders, graph.num_receivers) + 1
    try:
        out = jax.eval_shape(
            function, *(jax.ShapeDtypeStruct((rows, *e.features), e.dtype) for e in operands)
        )
    except Exception as error:
        error.add_note(f"{name}: the function gets rows of edges or of nodes, any number of them")
        raise
    if getattr(out, "shape", ())[:1] != (rows,):
        got = getattr(out, "shape", type(out).__name__)
        raise ValueError(f"{name}: expected a row for each of {rows} rows, got {got}")
    template = template or f"{name}({', '.join(['{}'] * len(operands))})"
    features, operands = out.shape[1:], tuple(operands)
    return Applied(graph, features, out.dtype, name, template, function, operands, parameters)


def same_graph(operands: Sequence[Any], name: str) -> Graph:
    """The graph of all operands."""
    for operand in operands:
        if not isinstance(operand, Edges):
            hint = (
                ": wrap an array over the edges in edge_values" if hasattr(operand, "shape") else ""
            )
            raise TypeError(f"{name}: expected values on edges, got {type(operand).__name__}{hint}")
        ours, theirs = operands[0].graph, operand.graph
        # Copies that differ in what speeds them up share these.
        if ours.row_offsets is not theirs.row_offsets or ours.senders is not theirs.senders:
            raise ValueError(f"{name}: expected values on the edges of one graph, got two graphs'")
    if not operands:
        raise ValueError(f"{name}: expected values on edges, got none")
    return operands[0].graph


def scale(edges: Edges, factor: Any) -> Applied:
    """The edges' values times one scalar."""
    scalar = _as_scalar("*", factor, edges.dtype)

    def function(x: Array) -> Array:
        dtype = result_dtype(x.dtype, scalar)
        # A scalar such as the inverse of a small divisor may be out of float16's range.
        wide = wide_dtype(dtype)
        return (x.astype(wide) * scalar.astype(wide)).astype(dtype)

    return apply("scale", function, [edges], (scalar,), f"({_scalar_text(factor)} * {{}})")


def binary(function: Function, a: Array, b: Array) -> Array:
    """`function` with axes aligned from the first; the one with more has the floating dtype."""
    if a.ndim == b.ndim and a.dtype == b.dtype:
        return function(a, b)
    if a.ndim == b.ndim and is_floating(a.dtype) and is_floating(b.dtype):
        raise TypeError(
            f"expected equal dtypes of values with equally many axes, got {a.dtype} and {b.dtype}"
        )
    large, small = (a, b) if a.ndim > b.ndim else (b, a)
    dtype = result_dtype(large.dtype, small.dtype)
    wide = wide_dtype(dtype)
    a, b = (x.astype(wide).reshape(x.shape + (1,) * (large.ndim - x.ndim)) for x in (a, b))
    out = function(a, b)
    return out.astype(dtype) if is_floating(dtype) else out  # integers' quotients are floating


def is_floating(dtype: np.dtype) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def result_dtype(dtype: np.dtype, other: Any) -> np.dtype:
    """A floating `dtype` stays; another is promoted with the dtype or array `other`."""
    if is_floating(dtype):
        return dtype
    with jax.numpy_dtype_promotion("standard"):
        return np.dtype(jnp.result_type(dtype, other))


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """The accumulation dtype of a floating one; another is its own."""
    return accumulation_dtype(dtype) if is_floating(dtype) else dtype


def _arithmetic(sign: str, function: Function, a: Any, b: Any) -> Edges:
    a, b = (x if isinstance(x, Edges) else unwrap(x) for x in (a, b))
    edges, other = (a, b) if isinstance(a, Edges) else (b, a)
    if not _is_scalar(other):
        template = f"({{}} {sign} {{}})"
        return apply(sign, lambda a, b: binary(function, a, b), [a, b], template=template)
    if jnp.iscomplexobj(other):
        raise TypeError(f"edges {sign} scalar: expected a real number, got {other}")
    if sign == "*":
        return scale(edges, other)
    scalar = _as_scalar(sign, other, edges.dtype)
    if sign == "/" and edges is a and is_floating(edges.dtype):
        # In the dtype of the sums: the inverse of a number of 16 bits has more digits.
        return scale(edges, 1 / scalar.astype(accumulation_dtype(edges.dtype)))

    def with_scalar(x: Array) -> Array:
        dtype = result_dtype(x.dtype, scalar)
        value, number = x.astype(dtype), scalar.astype(dtype)
        return function(value, number) if edges is a else function(number, value)

    left, right = ("{}" if operand is edges else _scalar_text(operand) for operand in (a, b))
    return apply("with scalar", with_scalar, [edges], template=f"({left} {sign} {right})")


def _as_scalar(sign: str, value: Any, of: np.dtype) -> Array:
    """An operand of values of the dtype `of`; of floating ones an integer may be beyond 32 bits."""
    whole = not isinstance(value, Array) and as_integer(value) is not None
    dtype = accumulation_dtype(of) if whole and is_floating(of) else None
    try:
        return jnp.asarray(value, dtype)
    except OverflowError:
        kind = dtype or jax.dtypes.canonicalize_dtype(int)
        raise ValueError(
            f"edges {sign} scalar: expected a number within {kind}, got {value}"
        ) from None


def _scalar_text(scalar: Any) -> str:
    return str(scalar) if isinstance(scalar, int | float) else "scalar"


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.ndarray | Array) and jnp.ndim(value) == 0
