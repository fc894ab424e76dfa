"""Node features brought to the edges."""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.incidence import EdgeEnd, broadcast_to_edges
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.parts import over_parts
from jaxgnn.ops._core.rows import ends_of


@jax.named_scope("jaxgnn.gather_edges")
@over_parts({"senders": "senders", "receivers": "receivers"}, "edges")
def gather_edges(
    graph: Graph,
    senders: Float[Array, "num_senders *features"] | None = None,
    receivers: Float[Array, "num_receivers *features"] | None = None,
    op: Literal["copy", "add", "sub", "mul", "concat"] = "copy",
    *,
    impl: Impl = None,
) -> Float[Array, "num_edges *features"]:
    r"""Combines the features of the two ends of every edge.

    $$m_e = u_j \circ v_i \quad \text{for each edge } e = (j \to i)$$

    with $u$ the senders' and $v$ the receivers' features and $\circ$ one of `add`, `sub`
    ($u_j - v_i$), `mul`, `concat` (on the last axis, $u_j$ first); `copy` takes one of them.
    The gradient is a row-wise sum without atomics, where that of a plain gather is a scatter.

    Args:
        graph: the graph; the result is in its edge order, not the user's
            (`Graph.unsort_edge_data`).
        senders: $u$; may be left out for `copy`.
        receivers: $v$; may be left out for `copy`. `copy` takes exactly one of the two.
        op: how to combine them.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Raises:
        TypeError: `graph` is no `Graph`, or the dtypes are not floating or differ.
        ValueError: a shape does not fit, an operand is missing, or `op` or `impl` is unknown.
    """
    checks.graph_argument(graph)
    checks.choice(op, "op", ("copy", "add", "sub", "mul", "concat"))
    given = [name for name, x in (("senders", senders), ("receivers", receivers)) if x is not None]
    if len(given) != (1 if op == "copy" else 2):
        needed = "exactly one of senders and receivers" if op == "copy" else "both"
        raise ValueError(f"op={op!r}: expected {needed}, got {' and '.join(given) or 'neither'}")
    impl = chosen(impl)
    u = v = None
    if senders is not None:
        u = checks.floating_rows(senders, "senders", graph.num_senders, "sender")
    if receivers is not None:
        v = checks.floating_rows(receivers, "receivers", graph.num_receivers, "receiver")
    if u is not None and v is not None:
        if u.dtype != v.dtype:
            raise TypeError(f"receivers: expected the dtype of senders, {u.dtype}, got {v.dtype}")
        cut = -1 if op == "concat" else None
        if u.ndim != v.ndim or u.shape[1:cut] != v.shape[1:cut] or (cut and u.ndim < 2):
            raise ValueError(
                "receivers: expected the feature axes of senders"
                f"{' but the last' if cut else ''}, {u.shape[1:]}, got {v.shape[1:]}"
            )
    u_edges = None if u is None else _take(graph, u, True, impl)
    v_edges = None if v is None else _take(graph, v, False, impl)
    if u_edges is None or v_edges is None:
        out = v_edges if u_edges is None else u_edges
        assert out is not None
        return out
    if op == "concat":
        return jnp.concatenate([u_edges, v_edges], axis=-1)
    return {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply}[op](u_edges, v_edges)


def _take(graph: Graph, x: Array, sender: bool, impl: Impl) -> Array:
    shape = (graph.num_edges, *x.shape[1:])
    if x.size == 0 or graph.num_edges == 0:
        return ffi.zeros(shape, x.dtype, graph, x)
    if impl == "jax":
        # The derivative of the gather is a sum.
        wide = x.astype(accumulation_dtype(x.dtype))
        return wide[ends_of(graph, senders=sender)].astype(x.dtype)
    graph, x = ffi.unify_varying(graph, x)
    with config.use(impl=impl):
        edges: Array = broadcast_to_edges(
            EdgeEnd(sender), graph, x.reshape(x.shape[0], math.prod(x.shape[1:]))
        )
    return edges.reshape(shape)
