"""Gather and Aggregate: where an expression meets the operations that compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxgnn._core.platform import Impl, chosen, kernels_available
from jaxgnn.algebra import _reference, _rules
from jaxgnn.algebra._edges import Edges, same_graph
from jaxgnn.algebra._moves import moved
from jaxgnn.algebra._rules import Wanted
from jaxgnn.algebra.operators import edge_values, scatter
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.spmm import Reduce
from jaxgnn.ops._core import checks


def gather(
    edges: Edges,
    reduce: Reduce = "sum",
    *,
    fuse: bool = True,
    recompute: bool = True,
    impl: Impl = None,
) -> Float[Array, "num_receivers *features"]:
    r"""Gather: $y_i = \mathrm{reduce}_{e \to i} \, m_e$, by a fused operation where one fits.

    A receiver without edges gets 0. `explain` says what runs. What no rule fits is computed on the
    edges; backward then computes it once more, so that nothing of the edges' size is kept but the
    arrays that `edge_values` was given. All derivatives and transformations of the operations hold.

    Args:
        edges: $m$.
        reduce: `"sum"`, `"mean"`, `"max"` or `"min"`.
        fuse: whether to move work to the nodes and to look for a fused operation; without, the
            expression is evaluated on the edges as it was written.
        recompute: whether backward computes values on the edges once more; without, they are kept.
        impl: `None` (our kernels where the platform has them, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, *features]`, under the name that `recompute_edges` keeps.

    Raises:
        TypeError: `edges` are no values on edges.
        ValueError: `reduce` or `impl` is unknown.

    Source: Zhang et al., "Understanding GNN Computational Graph" (MLSys 2022): the operators in
    section 3, reorganisation, fusion and recomputation in sections 4 to 6.
    """
    wanted = _wanted(edges, reduce, recompute, impl)
    plan = _rules.plan(wanted) if fuse else _rules.reference(wanted, fuse=False)
    return checkpoint_name(plan.run(), _reference.NODES)


def aggregate(
    graph: Graph,
    u: Float[Array, "num_senders *features"] | None = None,
    v: Float[Array, "num_receivers *features"] | None = None,
    e: Float[Array, "num_edges *features"] | None = None,
    *,
    message: Callable[..., Edges] = lambda edges: edges,
    reduce: Reduce = "sum",
    **options: Any,
) -> Float[Array, "num_receivers *features"]:
    r"""Aggregate: Scatter, ApplyEdge and Gather in one,
    $y_i = \mathrm{reduce}_{e \to i} \, f(u_j, v_i, e_e)$.

    Args:
        graph: the graph.
        u, v, e: features of the senders, the receivers and the edges, of which `message` gets those
            that there are, as values on edges.
        message: $f$, an expression; the copy if not given.
        reduce: as `gather`'s, like the further options.

    Raises:
        As `scatter`, `edge_values` and `gather` do.
    """
    given = [scatter(graph, u)] if u is not None else []
    given += [scatter(graph, v=v)] if v is not None else []
    given += [edge_values(graph, e)] if e is not None else []
    if not given:
        raise ValueError("u, v, e: expected at least one of them, got none")
    return gather(message(*given), reduce, **options)


def evaluate(
    edges: Edges, *, recompute: bool = True, impl: Impl = None
) -> Float[Array, "num_edges *features"]:
    """The values themselves, an array with a row for each edge: scores, to look at or to rank by.

    Dot products of the two ends run as `sddmm`. Backward computes what lies between once more.

    Raises:
        TypeError: `edges` are no values on edges.
        ValueError: `impl` is unknown.
    """
    edges = moved(_wanted(edges, "sum", recompute, impl).edges)

    def run() -> Array:
        return _reference.on_edges(edges, impl, fuse=True)

    return checkpoint_name(_reference.recomputed(run) if recompute else run(), _reference.EDGES)


def explain(
    edges: Edges,
    reduce: Reduce = "sum",
    *,
    fuse: bool = True,
    recompute: bool = True,
    impl: Impl = None,
) -> str:
    """What `gather` with the same arguments would run, in one line; nothing is computed."""
    wanted = _wanted(edges, reduce, recompute, impl)
    texts = []

    def look() -> None:
        plan = _rules.plan(wanted) if fuse else _rules.reference(wanted, fuse=False)
        texts.append(plan.text)

    jax.eval_shape(look)  # what plans prepare on the nodes is traced and dropped
    plain = chosen(impl) == "jax" or not kernels_available()
    return f"{texts[0]} (in plain JAX)" if plain else texts[0]


def _wanted(edges: Edges, reduce: Reduce, recompute: bool, impl: Impl) -> Wanted:
    same_graph([edges], "edges")
    checks.choice(reduce, "reduce", ("sum", "mean", "max", "min"))
    chosen(impl)
    return Wanted(edges, reduce, edges.dtype, recompute, impl)
