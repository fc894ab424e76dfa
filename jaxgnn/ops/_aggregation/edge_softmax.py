r"""The softmax of edge scores over each receiver, and its derivative.

On a CPU a kernel normalizes a row while its scores are in the cache; elsewhere it is composed of
reductions. With the weights $\alpha$ its derivative is
$d\alpha_e = \alpha_e \, (ds_e - \sum_{e' \to i} \alpha_{e'} \, ds_{e'})$.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.custom_jvp import custom_jvp
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import foldable_heads
from jaxgnn._core.linear_call import is_zero, linear_call
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.gather_edges import gather_edges
from jaxgnn.ops._aggregation.incidence import EdgeEnd, broadcast_to_edges, reduce_to_nodes
from jaxgnn.ops._aggregation.segment_reduce import segment_reduce
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, edges_of

_TARGET = "jaxgnn_edge_softmax"
_RECEIVERS = EdgeEnd(sender=False)


def edge_softmax(
    graph: Graph,
    scores: Float[Array, "num_edges heads"],
    loops: Float[Array, "nodes heads"] | None = None,
    *,
    impl: Impl = None,
) -> tuple[Float[Array, "num_edges heads"], Float[Array, "nodes heads"] | None]:
    """`segment_softmax` in the dtype of the scores, and of added self-loops if there are any.

    Those are at the nodes that are both a sender and a receiver, the first ones; `loops` are their
    scores.
    """
    impl = chosen(impl)
    if loops is not None or impl == "jax" or scores.size == 0 or graph.num_receivers == 0:
        return _compose(graph, scores, loops, impl=impl)
    graph, scores = ffi.unify_varying(graph, scores)
    with config.use(impl=impl):
        return _normalized(graph, scores), None


@custom_jvp
def _normalized(
    graph: Graph, scores: Float[Array, "num_edges heads"]
) -> Float[Array, "num_edges heads"]:
    def kernel(rows: Rows, scores: Array) -> Array:
        partials = rows.chunks.table.shape[0], 2 * scores.shape[1]
        results = [(scores.shape, scores.dtype), (partials, scores.dtype)]
        return row_call(_TARGET, rows, [scores], results, scheduled=False)[0]

    def by_kernel(graph: Graph, scores: Array) -> Array:
        rows = edges_of(graph, by_sender=False)
        out: Array = foldable_heads(kernel)(rows, scores)
        return out

    def composed(graph: Graph, scores: Array) -> Array:
        return _compose(graph, scores, None, impl=None)[0]

    return dispatch((_TARGET,), by_kernel, composed, graph, scores, platforms=("cpu",))


def _jvp(primals, tangents):
    graph, scores = primals
    alpha = _normalized(graph, scores)
    if is_zero(tangents[1]):
        return alpha, jnp.zeros_like(alpha)
    centered = linear_call(_center, _center_transpose, (graph, alpha), tangents[1], alpha)
    return alpha, alpha * centered


def _center(residuals: tuple[Graph, Array], values: Array) -> Array:
    """The values without their mean at the receiver, weighted by alpha."""
    graph, alpha = residuals
    return values - _total(graph, alpha * values)


def _center_transpose(residuals: tuple[Graph, Array], cotangent: Array) -> Array:
    graph, alpha = residuals
    return cotangent - alpha * _total(graph, cotangent)


def _total(graph: Graph, values: Array) -> Array:
    """The sum over the edges of an edge's receiver."""
    return broadcast_to_edges(_RECEIVERS, graph, reduce_to_nodes(_RECEIVERS, graph, values))


_normalized.defjvp(_jvp, symbolic_zeros=True)


def _compose(
    graph: Graph,
    scores: Float[Array, "num_edges heads"],
    loops: Float[Array, "nodes heads"] | None,
    *,
    impl: Impl,
) -> tuple[Float[Array, "num_edges heads"], Float[Array, "nodes heads"] | None]:
    """The same of reductions and gathers."""
    # Subtracting the maximum changes only the rounding: no derivative passes through it.
    largest = segment_reduce(graph, jax.lax.stop_gradient(scores), "max", impl=impl)
    lowest = jnp.full_like(largest, -jnp.inf)
    largest = jnp.where(graph.in_degrees[:, None] > 0, largest, lowest)
    if loops is not None:
        largest = combine_first(jnp.maximum, largest, jax.lax.stop_gradient(loops))
    # Masked rows: 0, without NaN from the difference of two infinities.
    largest = jnp.where(largest == -jnp.inf, jnp.zeros_like(largest), largest)
    exponentials = jnp.exp(scores - gather_edges(graph, receivers=largest, impl=impl))
    total = segment_reduce(graph, exponentials, impl=impl)
    if loops is not None:
        loops = jnp.exp(loops - largest[: loops.shape[0]])
        total = combine_first(jnp.add, total, loops)
    total = jnp.where(total == 0, jnp.ones_like(total), total)
    edges = exponentials / gather_edges(graph, receivers=total, impl=impl)
    return edges, None if loops is None else loops / total[: loops.shape[0]]


def combine_first(combine: Callable[[Array, Array], Array], array: Array, first: Array) -> Array:
    """`array`, its first rows combined with `first`, which may be all of them.

    `array.at[:n]` of all rows is a scatter by an index without elements, and compiling that under
    `shard_map` over several CPU devices crashes jaxlib 0.11.
    """
    count = first.shape[0]
    if count == array.shape[0]:
        return combine(array, first)
    return jnp.concatenate([combine(array[:count], first), array[count:]])
