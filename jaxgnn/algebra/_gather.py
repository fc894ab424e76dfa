"""Gather and Aggregate: where an expression meets the operations that compute it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn._core.platform import Impl, chosen, kernels_available
from jaxgnn.algebra import _reference, _rules
from jaxgnn.algebra._edges import Edges, same_graph
from jaxgnn.algebra._hoist import hoist_to_nodes
from jaxgnn.algebra._operators import edge_values, scatter
from jaxgnn.algebra._plans import Recompute, Request, recompute_policy
from jaxgnn.algebra._sparse import densified
from jaxgnn.graph import Graph, own_closure
from jaxgnn.ops import CBSR
from jaxgnn.ops._aggregation.spmm import Reduce


def gather(
    edges: Edges,
    reduce: Reduce = "sum",
    *,
    fuse: bool = True,
    recompute: Recompute = "cost",
    budget: int | None = None,
    impl: Impl = None,
) -> Float[Array, "num_receivers *features"]:
    r"""Gather: $y_i = \mathrm{reduce}_{e \to i} \, m_e$, by a fused operation where one fits.

    The values on edges are reduced to the receivers, what PyG and JAX call a scatter. A receiver
    without edges gets 0. `explain` says what runs. What no rule fits is computed on the edges and
    recomputed in the backward pass, so that no O(E) intermediates are stored but the arrays that
    `edge_values` was given, and what is costly to recompute. All derivatives and transformations of
    the operations hold.

    Args:
        edges: $m$.
        reduce: `"sum"`, `"mean"`, `"max"` or `"min"`.
        fuse: whether to hoist work to the nodes and to look for a fused operation; without, the
            expression is evaluated on the edges as written.
        recompute: what the backward pass recomputes of the values on the edges. `"cost"`: all but
            those for which this takes more than 4 operations a byte, as products with a matrix of
            more than 8 rows in float32; `True`: all; `False`: none, they are stored.
        budget: with `"cost"` the bytes that such values may take, in place of the rule: those that
            cost most a byte are kept, as long as they fit.
        impl: `None` (our kernels where the platform has them, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, *features]`, under the name that `recompute_edges` keeps.

    Raises:
        TypeError: `edges` are no floating values on edges, `fuse` is no boolean, or a budget no
            integer.
        ValueError: `reduce`, `recompute` or `impl` is unknown, or a budget is negative or without
            `"cost"`.

    Source: Zhang et al., "Understanding GNN Computational Graph" (MLSys 2022): the operators in
    section 3, reorganization, fusion and recomputation in sections 4 to 6.
    """
    request = _gather_request(edges, reduce, fuse, recompute, budget, impl)
    plan = _rules.plan(request) if fuse else _rules.reference(request, fuse=False)
    return checkpoint_name(plan.run(), _reference.NODES)


def aggregate(
    graph: Graph,
    u: Float[Array, "num_senders *features"] | CBSR | None = None,
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
            that there are, as values on edges. `e` is in the graph's edge order, not the user's
            (`Graph.sort_edge_data`).
        message: $f$, an expression; the copy if not given.
        reduce: as `gather`'s, like the further options.

    Raises:
        TypeError: `message` cannot be called.
        TypeError, ValueError: as `scatter`, `edge_values` and `gather` do.
    """
    checks.function(message, "message")
    inputs = [scatter(graph, u)] if u is not None else []
    inputs += [scatter(graph, v=v)] if v is not None else []
    inputs += [edge_values(graph, e)] if e is not None else []
    if not inputs:
        raise ValueError("u, v, e: expected at least one of them, got none")
    return gather(message(*inputs), reduce, **options)


def evaluate(
    edges: Edges, *, recompute: Recompute = "cost", budget: int | None = None, impl: Impl = None
) -> Float[Array, "num_edges *features"]:
    """The values themselves, an array with a row for each edge: scores, to look at or to rank by.

    Dot products of the two ends run as `sddmm`. The backward pass recomputes intermediates,
    as `recompute` says.

    Args:
        edges: the values.
        recompute, budget, impl: as of `gather`.

    Returns:
        `[num_edges, *features]`, under the name `EDGES`.

    Raises:
        TypeError: `edges` are no values on edges, or a budget is no integer.
        ValueError: `recompute` or `impl` is unknown, or a budget is negative or without `"cost"`.
    """
    request = _request(edges, "sum", recompute, budget, impl)
    edges = hoist_to_nodes(densified(edges, impl).edges)

    def run() -> Array:
        return _reference.on_edges(edges, impl, fuse=True)

    if recompute:
        policy, _ = recompute_policy(request, [edges])
        return checkpoint_name(_reference.recomputed(run, policy), _reference.EDGES)
    return checkpoint_name(run(), _reference.EDGES)


def explain(
    edges: Edges,
    reduce: Reduce = "sum",
    *,
    fuse: bool = True,
    recompute: Recompute = "cost",
    budget: int | None = None,
    impl: Impl = None,
) -> str:
    """What `gather` with the same arguments would run; nothing is computed.

    The first line has the operations. The further ones, indented, are the rewritings: what was
    moved to the nodes, and what the backward pass recomputes or reads back.

    Raises:
        TypeError, ValueError: as `gather` does.
    """
    request = _gather_request(edges, reduce, fuse, recompute, budget, impl)
    texts = []

    def trace() -> None:
        with own_closure():
            plan = _rules.plan(request) if fuse else _rules.reference(request, fuse=False)
        texts.extend((plan.text, plan.notes))

    jax.eval_shape(trace)  # what plans prepare on the nodes is traced and dropped
    plain = chosen(impl) == "jax" or not kernels_available()
    text, notes = texts
    return "\n  ".join((f"{text} (in plain JAX)" if plain else text, *notes))


def _gather_request(
    edges: Edges, reduce: Reduce, fuse: bool, recompute: Recompute, budget: int | None, impl: Impl
) -> Request:
    request = _request(edges, reduce, recompute, budget, impl)
    checks.floating_dtype(edges.dtype, "edges")
    checks.boolean(fuse, "fuse")
    return request


def _request(
    edges: Edges, reduce: Reduce, recompute: Recompute, budget: int | None, impl: Impl
) -> Request:
    same_graph([edges], "edges")
    checks.choice(reduce, "reduce", ("sum", "mean", "max", "min"))
    if not isinstance(recompute, bool | str) or recompute not in (True, False, "cost"):
        raise ValueError(f"recompute: expected 'cost', True or False, got {recompute!r}")
    if budget is not None:
        budget = checks.integer(budget, "budget", 0, sys.maxsize)
        if recompute != "cost":
            raise ValueError(f"budget: expected recompute='cost' with it, got {recompute}")
    chosen(impl)
    return Request(edges, reduce, edges.dtype, recompute, budget, impl)
