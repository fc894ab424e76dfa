"""The operators up to the edges' values: Scatter, ApplyEdge, ReduceScatter, and ApplyVertex."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.algebra._edges import (
    Applied,
    Dropout,
    EdgeInput,
    Edges,
    Normalization,
    SegmentNormalize,
    apply,
    node_gather,
    result_dtype,
    same_graph,
    sparse_gather,
    wide_dtype,
)
from jaxgnn.algebra._recognize import Operators, recognize
from jaxgnn.algebra._reference import NODES
from jaxgnn.graph import Graph, graph_argument
from jaxgnn.ops import CBSR
from jaxgnn.ops._attention.gat_rule import leaky_relu as _leaky_relu
from jaxgnn.ops._core import dropout_arguments
from jaxgnn.ops._core.sparse_rows import sparse_rows_argument
from jaxgnn.ops._projection.project import add_bias


@overload
def scatter(graph: Graph, u: Float[Array, "num_senders *features"] | CBSR) -> Edges: ...
@overload
def scatter(
    graph: Graph, u: None = None, *, v: Float[Array, "num_receivers *features"]
) -> Edges: ...
@overload
def scatter(graph: Graph, u: Array | CBSR, v: Array) -> tuple[Edges, Edges]: ...
def scatter(graph: Graph, u: Any = None, v: Any = None) -> Any:
    r"""Scatter: $m_e = u_j$ or $m_e = v_i$ for each edge $e = (j \to i)$; with both, the pair.

    The rows of nodes are broadcast to their edges; the reduction to nodes is `gather`.

    Args:
        graph: the graph.
        u: features of the senders, `[num_senders, ...]`; a `CBSR` of that shape is sparse, and
            stays so in operations that take one.
        v: features of the receivers, `[num_receivers, ...]`.

    Raises:
        TypeError: `graph` is no `Graph`, or a dtype is not floating.
        ValueError: a shape does not fit, or there is neither `u` nor `v`.

    Source: Zhang et al., "Understanding GNN Computational Graph" (MLSys 2022), section 3, as the
    other operators.
    """
    graph_argument(graph)
    ends = []
    if isinstance(u, CBSR):
        u = sparse_rows_argument(u, "u")
        if len(u.shape) < 2 or u.shape[0] != graph.num_senders:
            raise ValueError(
                f"u: expected the shape ({graph.num_senders}, ...), a row for each sender, "
                f"got {u.shape}"
            )
        ends.append(sparse_gather(graph, u, "u"))
    elif u is not None:
        u = checks.floating_rows(u, "u", graph.num_senders, "sender")
        ends.append(node_gather(graph, u, True, "u"))
    if v is not None:
        v = checks.floating_rows(v, "v", graph.num_receivers, "receiver")
        ends.append(node_gather(graph, v, False, "v"))
    if not ends:
        raise ValueError(
            "u, v: expected features of the senders, the receivers or both, got neither"
        )
    return ends[0] if len(ends) == 1 else tuple(ends)


def edge_values(graph: Graph, values: Float[Array, "num_edges *features"]) -> Edges:
    """An array over the edges as an operand of expressions.

    It is in the graph's edge order, not the user's (`Graph.sort_edge_data`).

    Raises:
        TypeError: `graph` is no `Graph`, or `values` are not floating.
        ValueError: `values` do not have a row for each edge.
    """
    graph_argument(graph)
    values = checks.floating_rows(values, "values", graph.num_edges, "edge")
    return EdgeInput(graph, values.shape[1:], values.dtype, values)


def apply_edge(function: Callable[..., Array], *edges: Edges) -> Edges:
    r"""ApplyEdge: $m'_e = f(m_e, n_e, \dots)$.

    Args:
        function: $f$, of arrays with a row for each edge to an array of such rows. It acts on each
            row by itself, is pure, and takes any number of rows: of values from one end it is
            computed on the nodes. Arrays over the edges come as `edge_values`, not by closure.
            One that squeezes a last axis of 1, is a LeakyReLU (whose derivative at 0 is then the
            slope), an exponential, or multiplies two operands is recognized, and fused as
            `segment_normalize`, `leaky_relu`, `*` and `weighted_sum` are.
        edges: $m$, $n$, ..., on the edges of one graph.

    Raises:
        TypeError: `function` cannot be called, or one of `edges` is no value on edges.
        ValueError: different graphs, or a result without a row for each row.
    """
    checks.function(function, "function")
    same_graph(edges, "apply_edge")
    known = recognize(function, edges, Operators(leaky_relu, weighted_sum))
    if known is not None:
        return known
    name = getattr(function, "__name__", type(function).__name__)
    template = f"{name}({', '.join(['{}'] * len(edges))})"
    return apply("apply_edge", function, edges, template=template)


def leaky_relu(edges: Edges, negative_slope: float = 0.2) -> Edges:
    r"""LeakyReLU as a function that rules know; $-\infty$ stays, so that it masks.

    Raises:
        TypeError: `edges` are no values on edges, or `negative_slope` is no number.
        ValueError: `negative_slope` is not finite.
    """
    slope = checks.number(negative_slope, "negative_slope", -math.inf, math.inf)
    return apply("leaky_relu", lambda x: _leaky_relu(x, slope), [edges], (slope,))


def linear(
    edges: Edges,
    kernel: Float[Array, "features out_features"],
    bias: Float[Array, " out_features"] | None = None,
) -> Edges:
    r"""$m'_e = m_e W + b$ on the last axis, as a function that rules know to be linear.

    It is hoisted from the edges to the nodes: before the scatter, or deferred behind a sum or mean,
    whichever has the narrower rows.

    Raises:
        TypeError: `edges` are no values on edges, or a dtype is not floating.
        ValueError: a shape does not fit.

    Source: section 4 ("propagation postponed") of the same paper.
    """
    same_graph([edges], "linear")
    kernel = checks.floating(kernel, "kernel")
    if kernel.ndim != 2 or kernel.shape[:1] != edges.features[-1:]:
        width = edges.features[-1] if edges.features else "features"
        raise ValueError(f"kernel: expected the shape ({width}, out_features), got {kernel.shape}")
    if bias is not None:
        bias = checks.floating(bias, "bias")
        if bias.shape != kernel.shape[1:]:
            raise ValueError(f"bias: expected the shape {kernel.shape[1:]}, got {bias.shape}")
    return linear_map(edges, kernel, bias)


def linear_map(edges: Edges, kernel: Array, bias: Array | None) -> Applied:
    """`linear` of checked operands."""

    def function(x: Array) -> Array:
        x = x.astype(result_dtype(x.dtype, kernel.dtype))
        out = x @ kernel.astype(x.dtype)
        return out if bias is None else add_bias(out, bias)

    return apply("linear", function, [edges], (kernel, bias))


def concat(*edges: Edges) -> Edges:
    """The values concatenated on the last axis; the axes before it are equal.

    Raises:
        TypeError: something else than values on edges.
        ValueError: none, values of several graphs, or axes before the last differ.
    """
    same_graph(edges, "concat")
    if not all(e.features and e.features[:-1] == edges[0].features[:-1] for e in edges):
        shapes = ", ".join(str(e.features) for e in edges)
        raise ValueError(f"concat: expected equal features but for the last axis, got {shapes}")
    return apply("concat", lambda *rows: jnp.concatenate(rows, axis=-1), edges)


def dot(a: Edges, b: Edges | Float[Array, "*features"]) -> Edges:
    r"""$m_e = \langle a_e, b_e \rangle$ over the last axis, summed in float32 (or float64).

    With an array of the shape of a row, such as an attention's vector of each head, it is
    $\langle a_e, b \rangle$. That is a linear map, and is hoisted to the nodes as `linear` is.

    Raises:
        TypeError: `a` is no value on edges, or `b` neither that nor a floating array.
        ValueError: features or dtypes that differ, or values without features.
    """
    if not isinstance(b, Edges):
        same_graph([a], "dot")
        vector = checks.floating(b, "b")
        if not a.features or vector.shape != a.features:
            raise ValueError(
                f"dot: expected an array of the shape {a.features} of a row, got {vector.shape}"
            )
        return dot_with_vector(a, vector)
    same_graph([a, b], "dot")
    if not a.features or a.features != b.features or a.dtype != b.dtype:
        raise ValueError(
            f"dot: expected equal features and dtypes, got {a.features} {a.dtype} and "
            f"{b.features} {b.dtype}"
        )
    return apply("dot", _dot, [a, b])


def _dot(a: Array, b: Array) -> Array:
    dtype = result_dtype(a.dtype, b.dtype)
    wide = wide_dtype(dtype)
    return jnp.sum(a.astype(wide) * b.astype(wide), axis=-1).astype(dtype)


def dot_with_vector(edges: Edges, vector: Array) -> Applied:
    """`dot` with a checked array."""
    parameters = (vector,)
    return apply("dot_with_vector", lambda x: _dot(x, vector[None]), [edges], parameters, "dot({})")


def weighted_sum(coefficients: Edges, edges: Edges) -> Edges:
    r"""$m_e = \sum_k w_{ek} \, x_{ek}$ over the first feature axis, as MoNet's over its kernels.

    Args:
        coefficients: $w$, of the features `(kernels,)`.
        edges: $x$, of the features `(kernels, ...)`, whose dtype the result has.

    Raises:
        TypeError: an operand is no value on edges.
        ValueError: features that do not fit.
    """
    same_graph([coefficients, edges], "weighted_sum")
    if len(coefficients.features) != 1 or edges.features[:1] != coefficients.features:
        raise ValueError(
            "weighted_sum: expected the features (kernels,) and (kernels, ...), got "
            f"{coefficients.features} and {edges.features}"
        )

    def function(w: Array, x: Array) -> Array:
        dtype = result_dtype(x.dtype, w.dtype)
        wide = wide_dtype(dtype)
        w = w.astype(wide).reshape(w.shape + (1,) * (x.ndim - 2))
        return jnp.sum(w * x.astype(wide), axis=1).astype(dtype)

    return apply("weighted_sum", function, [coefficients, edges])


def gaussian(
    edges: Edges, mu: Float[Array, "kernels dims"], inv_sigma: Float[Array, "kernels dims"]
) -> Edges:
    r"""Gaussians of coordinates, as a function that rules know: `[dims]` to `[kernels]`.

    $$w_{ek} = \exp \Big( -\tfrac{1}{2} \sum_d \big( (p_{ed} - \mu_{kd}) \, s_{kd} \big)^2 \Big)$$

    Computed in float32 (or float64).

    Args:
        edges: the coordinates $p$, of the features `(dims,)`.
        mu: the kernels' means.
        inv_sigma: $s$, the inverses of their standard deviations.

    Raises:
        TypeError: `edges` are no values on edges, or a dtype is not floating.
        ValueError: a shape does not fit.

    Source: Monti et al., "Geometric deep learning on graphs and manifolds using mixture model
    CNNs" (CVPR 2017), equation 11.
    """
    same_graph([edges], "gaussian")
    mu, inv_sigma = checks.floating(mu, "mu"), checks.floating(inv_sigma, "inv_sigma")
    if len(edges.features) != 1 or mu.ndim != 2 or mu.shape[1:] != edges.features:
        raise ValueError(
            f"mu: expected the shape (kernels, dims) for features (dims,), got {mu.shape} and "
            f"{edges.features}"
        )
    if inv_sigma.shape != mu.shape:
        raise ValueError(f"inv_sigma: expected the shape {mu.shape}, got {inv_sigma.shape}")

    def function(x: Array) -> Array:
        dtype = accumulation_dtype(x.dtype)
        means, scales = (array.astype(dtype)[None] for array in (mu, inv_sigma))
        distances = (x.astype(dtype)[:, None, :] - means) * scales
        weights = jnp.exp(-0.5 * jnp.sum(distances * distances, axis=-1))
        return weights.astype(result_dtype(x.dtype, mu.dtype))

    return apply("gaussian", function, [edges], (mu, inv_sigma))


def segment_normalize(edges: Edges, method: Normalization = "softmax") -> Edges:
    r"""ReduceScatter of the paper: each value divided by a reduction over its receiver's edges.

    $$m'_e = \frac{m_e}{\mathrm{reduce}_{e' \to i} \, m_{e'}}, \qquad
      \mathrm{softmax}: \; m'_e = \frac{\exp m_e}{\sum_{e' \to i} \exp m_{e'}}$$

    with `"sum"`, `"mean"`, `"max"` or `"min"` as the reduction. A softmax's values of $-\infty$ are
    masked, and have the weight 0. Of integers and booleans the results are in float32.

    Raises:
        TypeError: `edges` are no values on edges.
        ValueError: `method` is unknown.
    """
    same_graph([edges], "segment_normalize")
    checks.choice(method, "method", ("softmax", "sum", "mean", "max", "min"))
    dtype = result_dtype(edges.dtype, accumulation_dtype(edges.dtype))
    return SegmentNormalize(edges.graph, edges.features, dtype, method, edges)


def dropout(edges: Edges, rate: float, dropout_rng: Any = None) -> Edges:
    """Weights `[num_edges, ...]` dropped with this rate, the others scaled so that the mean stays.

    The mask is `gat_attention`'s: a function of the key, the edge's place and the head.

    Raises:
        TypeError: `edges` are no values on edges, the rate is no number, or the key is none.
        ValueError: the rate is not in [0, 1), or there is one and no key.
    """
    same_graph([edges], "dropout")
    rate = checks.number(rate, "rate", 0, 1)
    drop_below, philox_key = dropout_arguments(rate, dropout_rng)
    if philox_key is None:
        return edges
    dtype = result_dtype(edges.dtype, accumulation_dtype(edges.dtype))
    return Dropout(
        edges.graph, edges.features, dtype, edges, rate, dropout_rng, drop_below, philox_key
    )


def apply_vertex(function: Callable[..., Any], *nodes: Any) -> Any:
    r"""ApplyVertex: $f(x, \dots)$ of arrays over the nodes, under the name that `recompute_edges`
    keeps.

    Raises:
        TypeError: `function` cannot be called.
    """
    checks.function(function, "function")
    return jax.tree.map(lambda x: checkpoint_name(x, NODES), function(*nodes))
