"""Row-wise kernels without derivatives, and how a batch folds into them.

Every kernel walks the rows of a compressed structure: a graph, its transpose, or the edges of
each node. Here they are called on arrays of fixed rank, features `[nodes, heads, width]` and edge
values `[edges, heads]`, and `vmap` becomes one call on a wider array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from jaxgnn import _csr, _ffi
from jaxgnn.graph import Graph

REDUCE = {"sum": 0, "mean": 1, "max": 2, "min": 3}


class Rows(NamedTuple):
    """A row structure.

    Attributes:
        offsets: edges of row $i$ are `offsets[i]:offsets[i + 1]`.
        columns: which entry each edge reads; `None` for its own.
        splits: parts of the long rows (see `Graph.splits`).
        order: the graph's edge at each place; `None` where that is the place itself.
        schedule: the order in which a GPU takes the rows; `None` for that of their numbers.
    """

    offsets: Int[Array, " rows+1"]
    columns: Int[Array, " edges"] | None
    splits: Int[Array, "parts 2"]
    order: Int[Array, " edges"] | None
    schedule: Int[Array, " rows"] | None = None

    @property
    def num_rows(self) -> int:
        return self.offsets.shape[0] - 1


def structure(rows: Rows) -> list[Array]:
    """What every kernel takes of the rows: an array without elements stands for an absent one."""
    return [rows.offsets, or_empty(rows.columns), rows.splits]


def ordered_structure(rows: Rows) -> list[Array]:
    """The same, and the order in which a GPU takes the rows."""
    return [*structure(rows), or_empty(rows.schedule)]


def or_empty(numbers: Int[Array, " _"] | None) -> Int[Array, " _"]:
    """The numbers, or an array without elements, which is made here also where they are one:
    compiling an argument without elements under `shard_map` crashes jaxlib 0.11."""
    return jnp.zeros(0, jnp.int32) if numbers is None or numbers.size == 0 else numbers


def neighbours(graph: Graph, *, transpose: bool) -> Rows:
    """Senders of each receiver, or with `transpose` receivers of each sender."""
    if transpose:
        return Rows(
            graph.transpose_row_offsets,
            graph.transpose_receivers,
            graph.transpose_splits,
            graph.transpose_permutation,
            graph.transpose_row_order,
        )
    return Rows(graph.row_offsets, graph.senders, graph.splits, None, graph.row_order)


def edges_of(graph: Graph, *, by_sender: bool) -> Rows:
    """The edges that end at each receiver, or with `by_sender` that start at each sender."""
    if by_sender:
        return Rows(
            graph.transpose_row_offsets,
            graph.transpose_permutation,
            graph.transpose_splits,
            graph.transpose_permutation,
        )
    return Rows(graph.row_offsets, None, graph.splits, None)


def in_row_order(rows: Rows, values: Array | None) -> Array | None:
    """Edge values from the graph's edge order into that of the rows."""
    return values if values is None or rows.order is None else values[rows.order]


def in_graph_order(rows: Rows, values: Array) -> Array:
    """Edge values from the order of the rows into the graph's."""
    if rows.order is None:
        return values
    # A permutation: every place is written once, so the result does not depend on any order.
    return jnp.zeros_like(values).at[rows.order].set(values, unique_indices=True)


def reduce_rows(
    rows: Rows,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
    reduce: str,
) -> Float[Array, "rows heads width"]:
    r"""$y_{ihd} = \mathrm{reduce}_e \, w_{eh} x_{c(e)hd}$ over the edges of row $i$.

    `weights` are in the order of the rows and in the accumulation dtype.
    """
    (out,) = _reduce(rows, x, weights, reduce, ties=False)
    return out


def reduce_and_count_rows(
    rows: Rows,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
    reduce: str,
) -> tuple[Float[Array, "rows heads width"], Float[Array, "rows heads width"]]:
    """The same for `"max"` or `"min"`, and how many edges attained it: 0 where it is NaN."""
    out, counts = _reduce(rows, x, weights, reduce, ties=True)
    return out, counts


def _reduce(
    rows: Rows, x: Array, weights: Array | None, reduce: str, *, ties: bool
) -> tuple[Array, ...]:
    """The result, and with `ties` their numbers, of its shape and dtype."""
    target, count = ("jaxgnn_spmm_ties", 2) if ties else ("jaxgnn_spmm", 1)

    def kernel(rows: Rows, features: list[Array], edges: list[Array]) -> tuple[Array, ...]:
        (x,) = features
        _, heads, width = x.shape
        accumulator = _ffi.accumulation_dtype(x.dtype)
        flat = heads * width
        *out, _ = _ffi.call(
            target,
            [
                *ordered_structure(rows),
                _flat(x),
                _optional(edges, 0, accumulator),
            ],
            [((rows.num_rows, flat), x.dtype)] * count
            + [((count * rows.splits.shape[0], flat), accumulator)],
            reduce=REDUCE[reduce],
            split_length=_split_length(rows, _edge_count(rows, x)),
        )
        return tuple(result.reshape(rows.num_rows, heads, width) for result in out)

    return _foldable(kernel)(rows, [x], [] if weights is None else [weights])


def select_rows(
    rows: Rows,
    x: Float[Array, "_ heads width"],
    y: Float[Array, "_ heads width"],
    weights: Float[Array, "edges heads"] | None,
    values: Float[Array, "columns heads width"],
    scale: Float[Array, "edges heads"] | None,
    *,
    along: bool,
) -> Float[Array, "rows heads width"]:
    r"""Sums `scale * values` over those edges of a row that attained the extremum.

    An edge did where $w_{eh} x_{jhd} = y_{ihd}$, $x$ being what was reduced and $y$ the result.
    With `along` the rows are those of $y$ and `values` lie beside $x$; else the transpose: the
    rows are those of $x$ and `values` lie beside $y$. Without `weights` and `scale`, of which there
    are both or neither, they are 1.
    """

    def kernel(rows: Rows, features: list[Array], edges: list[Array]) -> Array:
        x, y, values = features
        _, heads, width = x.shape
        flat = heads * width
        accumulator = _ffi.accumulation_dtype(x.dtype)
        out, _ = _ffi.call(
            "jaxgnn_spmm_extremum",
            [
                *structure(rows),
                _flat(x),
                _flat(y),
                _optional(edges, 0, accumulator),
                _flat(values),
                _optional(edges, 1, accumulator),
            ],
            [((rows.num_rows, flat), x.dtype), ((rows.splits.shape[0], flat), accumulator)],
            transpose=0 if along else 1,
            split_length=_split_length(rows, _edge_count(rows, x)),
        )
        return out.reshape(rows.num_rows, heads, width)

    edges = [v for v in (weights, scale) if v is not None]
    return _foldable(kernel)(rows, [x, y, values], edges)


def dot_rows(
    rows: Rows,
    a: Float[Array, "rows heads width"],
    b: Float[Array, "columns heads width"],
    pattern: tuple[Array, Array, Array | None] | None = None,
) -> Float[Array, "edges heads"]:
    r"""$s_{eh} = \sum_d a_{r(e)hd} b_{c(e)hd}$ in the accumulation dtype and the rows' order.

    With `pattern = (x, y, weights)` only the terms that attained the extremum (`select_rows`,
    along the rows) count.
    """
    weights = None if pattern is None else pattern[2]

    def kernel(rows: Rows, features: list[Array], edges: list[Array]) -> Array:
        a, b, *rest = features
        assert rows.columns is not None
        _, heads, _ = a.shape
        accumulator = _ffi.accumulation_dtype(a.dtype)
        operands = [*structure(rows), _flat(a), _flat(b)]
        target = "jaxgnn_sddmm"
        if rest:
            target = "jaxgnn_sddmm_extremum"
            operands += [_flat(rest[0]), _flat(rest[1]), _optional(edges, 0, accumulator)]
        (out,) = _ffi.call(
            target,
            operands,
            [((rows.columns.shape[0], heads), accumulator)],
            heads=heads,
            split_length=_split_length(rows, rows.columns.shape[0]),
        )
        return out

    features = [a, b] + ([] if pattern is None else list(pattern[:2]))
    edges = [] if weights is None else [weights]
    return _foldable(kernel, edges_out=True)(rows, features, edges)


def node_dots(
    a: Float[Array, "nodes heads width"], b: Float[Array, "nodes heads width"]
) -> Float[Array, "nodes heads"]:
    """The dot product of each node's rows in the accumulation dtype, without derivatives.

    On the CPU by a kernel, each node an edge to itself: XLA would write the products out there.
    """
    if jax.default_backend() == "cpu":
        offsets = jnp.arange(a.shape[0] + 1, dtype=jnp.int32)
        return dot_rows(Rows(offsets, offsets[:-1], jnp.zeros((0, 2), jnp.int32), None), a, b)
    dtype = _ffi.accumulation_dtype(a.dtype)
    # A kernel of its own: one that writes the sums into a longer record takes XLA twice as long.
    return jax.lax.optimization_barrier(jnp.sum(a.astype(dtype) * b.astype(dtype), axis=-1))


def _foldable(kernel: Any, *, edges_out: bool = False) -> Any:
    """Gives `kernel(rows, features, edges)` its `vmap` rule: the batch becomes width or heads.

    Unbatched edge values hold for every example, so the batch widens the features; batched ones
    differ by example, as they differ by head, so it multiplies the heads. Batched graphs (of one
    shape) run one after the other.
    """

    def rule(call, axis_size, in_batched, rows, features, edges):
        rows_batched, features_batched, edges_batched = in_batched
        if any(jax.tree.leaves(rows_batched)):
            return one_by_one(call, in_batched, (rows, features, edges))

        axis = 1 if edges_out or any(edges_batched) else 2

        wide = [
            fold(f, b, axis_size, axis) for f, b in zip(features, features_batched, strict=True)
        ]
        if axis == 1:
            edges = [fold(e, b, axis_size, 1) for e, b in zip(edges, edges_batched, strict=True)]
        out = call(rows, wide, edges)
        return jax.tree.map(lambda a: unfold(a, axis_size, axis), out)

    return with_vmap_rule(kernel, rule)


def foldable_heads(kernel: Any) -> Any:
    """The same for `kernel(rows, arrays)`, all of whose arrays and results have their heads at
    axis 1 and treat each for itself: the batch multiplies the heads."""

    def rule(call, axis_size, in_batched, rows, arrays):
        rows_batched, arrays_batched = in_batched
        if any(jax.tree.leaves(rows_batched)):
            return one_by_one(call, in_batched, (rows, arrays))
        wide = jax.tree.map(lambda a, b: fold(a, b, axis_size, 1), arrays, arrays_batched)
        return jax.tree.map(lambda a: unfold(a, axis_size, 1), call(rows, wide))

    return with_vmap_rule(kernel, rule)


def with_vmap_rule(kernel: Any, rule: Any) -> Any:
    """Gives `kernel` its `vmap` rule, `rule(call, axis_size, in_batched, *operands)`.

    The rule calls `call`, which is what is returned here, and its results are all batched. It is
    not asked about a batch of no examples: rules divide by their number.
    """
    call = custom_vmap(kernel)

    def of_any_size(axis_size, in_batched, *operands):
        if axis_size == 0:
            out = _no_examples(call, in_batched, operands)
        else:
            out = rule(call, axis_size, in_batched, *operands)
        return out, jax.tree.map(lambda _: True, out)

    call.def_vmap(of_any_size)
    return call


def sequential(kernel: Any) -> Any:
    """Gives `kernel` the rule of one example after the other."""

    def rule(call, axis_size, in_batched, *operands):
        del axis_size
        return one_by_one(call, in_batched, operands)

    return with_vmap_rule(kernel, rule)


def _no_examples(call: Any, in_batched: Any, operands: Any) -> Any:
    """The results of `call` for a batch of none."""

    def one(array: Array, batched: bool) -> Any:
        return jax.ShapeDtypeStruct(array.shape[1:] if batched else array.shape, array.dtype)

    results = jax.eval_shape(call, *jax.tree.map(one, operands, tuple(in_batched)))
    return jax.tree.map(lambda r: _ffi.zeros((0, *r.shape), r.dtype, operands), results)


def fold(array: Array, batched: bool, size: int, axis: int) -> Array:
    """Multiplies an axis by the batch, before it; what is not batched holds for every example."""
    if not batched:
        array = jnp.broadcast_to(array, (size, *array.shape))
    shape = array.shape[1:]
    array = jnp.moveaxis(array, 0, axis)
    return array.reshape(*shape[:axis], size * shape[axis], *shape[axis + 1 :])


def unfold(array: Array, size: int, axis: int) -> Array:
    """The inverse, the batch at the first axis."""
    shape = array.shape
    split = array.reshape(*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :])
    return jnp.moveaxis(split, axis, 0)


def one_by_one(call: Any, in_batched: Any, operands: Any) -> Any:
    """`call` on one example after the other; operands that are not batched hold for all."""
    leaves, treedef = jax.tree.flatten(operands)
    batched = jax.tree.leaves(in_batched)
    moving = [leaf for leaf, b in zip(leaves, batched, strict=True) if b]

    def one(moving):
        moving = iter(moving)
        mixed = [next(moving) if b else leaf for leaf, b in zip(leaves, batched, strict=True)]
        return call(*jax.tree.unflatten(treedef, mixed))

    return jax.lax.map(one, moving)


def _flat(x: Array) -> Array:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2])


def _optional(edges: list[Array], place: int, dtype: Any) -> Array:
    return edges[place] if len(edges) > place else jnp.zeros((0, 0), dtype)


def _edge_count(rows: Rows, x: Array) -> int:
    """Number of edges; with `columns` absent each row of `x` is one."""
    return x.shape[0] if rows.columns is None else rows.columns.shape[0]


def _split_length(rows: Rows, edges: int) -> int:
    return _csr.split_length(edges, rows.num_rows)
