"""GraphSAGE's embedding of two sampled hops, in one operation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, UInt32

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.derivative import with_derivative_of
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, chosen
from jaxgnn._core.uninitialized import uninitialized
from jaxgnn.graph import Graph
from jaxgnn.ops._core import checks
from jaxgnn.ops._sampling.embedding_batch import (
    HopKeys,
    Plan,
    Rows,
    Tables,
    Weights,
    draw_batch,
    embed_drawn,
    hop_keys,
    project,
)
from jaxgnn.ops._sampling.host_embedding import embed_from_host
from jaxgnn.ops._sampling.host_rows import HostMatrix
from jaxgnn.ops._sampling.neighbors import Aggregation, Draw, Operands, operands
from jaxgnn.ops._sampling.sage_layer import Into, LayerInputs
from jaxgnn.ops._sampling.sample import LARGEST_SAMPLE, MOST_PLACES, first_place, receivers


@jax.named_scope("jaxgnn.sage_embedding")
def sage_embedding(
    graph: Graph,
    features: Float[Array, "num_nodes features"] | HostMatrix,
    params: Mapping[str, Any] | Any,
    key: Array,
    *,
    num_children: int = 10,
    num_leaves: int | None = None,
    sources: Int[ArrayLike, " sources"] | None = None,
    aggr: Aggregation = "mean",
    activation: Callable[[Array], Array] = jax.nn.relu,
    replace: bool = True,
    weights: Float[Array, " num_edges"] | None = None,
    batch_size: int = 65536,
    axis_name: str | None = None,
    impl: Impl = None,
) -> Float[Array, "sources width"]:
    r"""Embeds nodes by two GraphSAGE layers over sampled neighbors, with rows of length 1.

    With $n(v) = v / |v|$, 0 where $v = 0$, each source $s$ draws children $c \in C(s)$ among its
    neighbors and each child leaves $l \in L(c)$ among its own:

    $$h_c = n(\sigma([x_c W_{f1} ; \mathrm{aggr}_{l \in L(c)} x_l \, W_{a1}]))$$
    $$h_s = n(\sigma([x_s W_{f1} ; \mathrm{aggr}_{c \in C(s)} x_c \, W_{a1}]))$$
    $$z_s = n(\sigma([h_s W_{f2} ; \mathrm{aggr}_{c \in C(s)} h_c \, W_{a2}]))$$

    A node without neighbors draws itself. The leaves are summed where they are drawn and never
    listed, but with `"max"`, or with `weights` and float16 features. Products with $W_{f1}$ and
    $W_{a1}$ are made once a node where that takes less work. The backward pass draws again.

    Children are those that `sampled_edges` with `strategy="random"` draws for `rows=sources` with
    the key `fold_in(key, 0)`, leaves those for all sources' children, -1 where there are fewer,
    with `fold_in(key, 1)`. So what a source draws depends on its place in `sources` and not on
    `batch_size`. Places of leaves count modulo $2^{32}$.

    Args:
        graph: the graph, square; neighbors are a node's senders.
        features: `[num_nodes, F]`; or `jaxgnn.train.HostFeatures`, whose rows a CPU draws and
            reduces where they are: of a child's leaves their sum alone is moved to the device.
            The result is the same but for rounding. Not under `jit`; `params` may be
            differentiated.
        params: a mapping or an object with `Wf1` `[F, f1]`, `Wa1` `[F, a1]`, `Wf2`
            `[f1 + a1, f2]` and `Wa2` `[f1 + a1, a2]`, which are cast to the dtype of `features`.
        key: a JAX key. A training step has a fresh one.
        num_children: children of a source, from 1 to 4,096.
        num_leaves: leaves of a child; `None`: `num_children`.
        sources: the nodes to embed, repeats allowed, each with draws of its own; -1, or where the
            values are traced any number out of range, is padding. `None`: all nodes.
        aggr: `"mean"`, `"sum"` or `"max"`.
        activation: $\sigma$, elementwise.
        replace: draw with replacement. Without, a node takes all of its edges if they are fewer.
        weights: `[num_edges]` in the graph's edge order (`Graph.sort_edge_data`); multiply the rows
            that are aggregated. A mean is still divided by the number of draws. A node that draws
            itself has weight 1.
        batch_size: how many sources are embedded at once, which bounds the memory: about
            `batch_size * num_children * (f1 + a1)` numbers. On a CPU these stay in the cache with
            512 or so, which is faster; a gradient's time grows with nodes times batches.
        axis_name: within `jax.shard_map`, the axis of the mesh over which `sources` are split, each
            device with as many; graph and features are on all of them. Each source draws what it
            draws on one device with all sources.
        impl: `None` (our kernels where the platform has them, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[sources, f2 + a2]` in the dtype of `features`. Padding is 0.

    Raises:
        TypeError: `graph` is no `Graph`, or an argument has a wrong type.
        ValueError: the graph is not square, a shape does not fit, a number is out of range, or
            `axis_name` without `sources` or with features in host memory.
        RuntimeError: features in host memory, and JAX has no CPU backend.

    Source: Hamilton et al., "GraphSAGE" (NeurIPS 2017), algorithm 1 and appendix A; the two fused
    hops: Gunrock's GraphSAGE application (2018).
    """
    checks.graph_argument(graph)
    if not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got {graph}")
    of_host = isinstance(features, HostMatrix)
    x: Any = features
    if of_host:
        if features.shape[0] != graph.num_senders:
            raise ValueError(
                f"features: expected {graph.num_senders} rows, one for each node, got "
                f"{features.shape[0]}"
            )
    else:
        x = checks.floating_rows(features, "features", graph.num_senders, "node")
    if len(x.shape) != 2:
        raise ValueError(f"features: expected the shape (num_nodes, F), got {x.shape}")
    matrices = _matrices(params, x)
    key = checks.key(key, "key")
    num_children = checks.integer(num_children, "num_children", 1, LARGEST_SAMPLE)
    if num_leaves is None:
        num_leaves = num_children
    num_leaves = checks.integer(num_leaves, "num_leaves", 1, LARGEST_SAMPLE)
    checks.choice(aggr, "aggr", ("mean", "sum", "max"))
    checks.boolean(replace, "replace")
    if not callable(activation):
        raise TypeError(f"activation: expected a function, got {activation!r}")
    batch_size = checks.integer(batch_size, "batch_size", 1, MOST_PLACES)
    if weights is not None:
        weights = checks.edge_weights(weights, graph.num_edges, ())
        weights = weights.astype(accumulation_dtype(x.dtype))
    if axis_name is not None and (sources is None or of_host):
        reason = "without sources" if sources is None else "with features in host memory"
        raise ValueError(f"axis_name: expected None {reason}, got {axis_name!r}")
    if sources is None:
        sources = jnp.arange(graph.num_senders, dtype=jnp.int32)
    nodes = receivers(sources, graph.num_senders, "sources")
    assert nodes is not None
    batch_size = min(batch_size, max(1, nodes.shape[0]))
    if batch_size * num_children * num_leaves > MOST_PLACES:
        raise ValueError(
            f"batch_size: expected fewer than 2^31 leaves in a batch, got {batch_size} x "
            f"{num_children} x {num_leaves}"
        )
    impl = chosen(impl)
    width = matrices.Wf2.shape[1] + matrices.Wa2.shape[1]
    if nodes.shape[0] == 0 or width == 0 or graph.num_senders == 0:
        return ffi.zeros((nodes.shape[0], width), x.dtype, graph, x, matrices, nodes, weights)
    fewer_nodes = graph.num_senders < nodes.shape[0] * (num_children + 1)
    narrower = matrices.Wa1.shape[1] <= x.shape[1]
    plan = Plan(
        Draw(aggr, replace),
        num_children,
        num_leaves,
        activation,
        project_self=fewer_nodes,
        project_neighbors=fewer_nodes and narrower and aggr != "max",
    )
    with config.use(impl=impl):
        if of_host:
            # Only the reduced rows reach the device: nothing is made of all nodes there.
            plan = plan._replace(project_self=False, project_neighbors=False)
            return embed_from_host(plan, graph, x, matrices, weights, key, nodes, batch_size)
        first = jnp.uint32(0)
        if axis_name is not None:
            first = first_place(nodes.shape[0], axis_name)
        return _embed(plan, graph, x, matrices, weights, key, nodes, first, batch_size)


def _matrices(params: Any, x: Array | HostMatrix) -> Weights:
    """The four matrices, checked, in the dtype of the features."""
    found = []
    for name in Weights._fields:
        value = params.get(name) if isinstance(params, Mapping) else getattr(params, name, None)
        if value is None:
            raise ValueError(f"params: expected Wf1, Wa1, Wf2 and Wa2, got none of name {name}")
        matrix = checks.floating(value, f"params.{name}")
        hidden = sum(m.shape[1] for m in found[:2])
        rows = x.shape[1] if len(found) < 2 else hidden
        if matrix.ndim != 2 or matrix.shape[0] != rows:
            raise ValueError(
                f"params.{name}: expected the shape ({rows}, width), got {matrix.shape}"
            )
        found.append(matrix)
    return Weights(*(matrix.astype(x.dtype) for matrix in found))


def _embed(
    plan: Plan,
    graph: Graph,
    x: Array,
    matrices: Weights,
    weights: Array | None,
    key: Array,
    nodes: Int[Array, " sources"],
    first: UInt32[Array, ""],
    batch_size: int,
) -> Array:
    """The embeddings of sources whose places are numbered from `first` on."""
    graph, x, matrices, weights, nodes, first = ffi.unify_varying(
        graph, x, matrices, weights, nodes, first
    )
    given = operands(graph, weights)
    # Products of numbers in float16's range may be beyond it.
    dtype = accumulation_dtype(x.dtype) if x.dtype == jnp.float16 else x.dtype
    tables = Tables(
        x,
        project(x, matrices.Wf1).astype(dtype) if plan.project_self else x,
        project(x, matrices.Wa1).astype(dtype) if plan.project_neighbors else x,
    )

    one = jax.checkpoint(functools.partial(_embed_batch, plan))
    total = nodes.shape[0]
    count = -(-total // batch_size)
    operands_of_one = given, tables, matrices, hop_keys(key), first, nodes
    if count == 1:
        return one(*operands_of_one)

    def into_one_array(given: Operands, tables: Tables, matrices: Weights, *rest: Any) -> Array:
        """The last batch ends with the sources, and embeds some of those before it again: so no
        result is padded, and copied without the padding."""
        keys, first, nodes = rest

        def embed(state: tuple[Array, Array]) -> tuple[Array, Array]:
            i, out = state
            start = jnp.minimum(i * jnp.int32(batch_size), jnp.int32(total - batch_size))
            batch = jax.lax.dynamic_slice(nodes, (start,), (batch_size,))
            place = first + start.astype(jnp.uint32)
            of_batch = keys, place, batch, Into(out, start)
            return i + 1, _embed_batch(plan, given, tables, matrices, *of_batch)

        width = matrices.Wf2.shape[1] + matrices.Wa2.shape[1]
        state = jnp.int32(0), uninitialized((total, width), tables.features)
        return jax.lax.while_loop(lambda state: state[0] < count, embed, state)[1]

    def by_map(given: Operands, tables: Tables, matrices: Weights, *rest: Any) -> Array:
        keys, first, nodes = rest
        padded = jnp.pad(nodes, (0, count * batch_size - total), constant_values=-1)
        firsts = first + jnp.arange(count, dtype=jnp.uint32) * jnp.uint32(batch_size)
        batches = (firsts, padded.reshape(count, batch_size))
        out = jax.lax.map(lambda batch: one(given, tables, matrices, keys, *batch), batches)
        return out.reshape(count * batch_size, -1)[:total]

    return with_derivative_of(by_map, into_one_array)(*operands_of_one)


def _embed_batch(
    plan: Plan,
    given: Operands,
    tables: Tables,
    matrices: Weights,
    keys: HopKeys,
    first: UInt32[Array, ""],
    nodes: Int[Array, " batch"],
    into: Into | None = None,
) -> Float[Array, "rows width"]:
    """The embedding of the sources from place `first` on, which draw by their place in all; with
    `into` the array with these rows."""
    drawn = draw_batch(plan, given, tables.neighbors, keys, first, nodes)

    def rows(nodes: Array, around: Array) -> Rows:
        inputs = LayerInputs(nodes, tables.features, around, matrices.Wf1, matrices.Wa1)
        return Rows(inputs, tables.itself)

    children = rows(drawn.children, drawn.around_children)
    sources = rows(nodes, drawn.around_sources)
    return embed_drawn(plan, matrices, children, sources, drawn.weights, into)
