"""Inference layer by layer: each layer of a model for all nodes, in batches of them, from all of
their neighbors."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

from jaxgnn._core import checks
from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.graph import Graph, NodeRows, graph_argument
from jaxgnn.graph._build.device_csr import transpose_order
from jaxgnn.graph._build.row_chunks import chunk_rows_on_device
from jaxgnn.graph._take import take_rows
from jaxgnn.nn import GNN
from jaxgnn.ops import CBSR
from jaxgnn.train.loaders.host_features import HostFeatures

Rows = Array | CBSR | HostFeatures
"""What a layer reads the rows of nodes from."""


class NodeBatches(NamedTuple):
    """How the nodes of a graph are cut into batches, one after the other; static.

    Attributes:
        nodes: the most nodes of a batch.
        edges: the most edges that end at a batch's nodes.
        senders: the most senders of these edges beside the batch's nodes.
        count: how many batches.
    """

    nodes: int
    edges: int
    senders: int
    count: int

    @classmethod
    def of(cls, graph: Graph, batch_size: int) -> NodeBatches:
        """Those of a graph, which must not be traced.

        A batch also ends before it has more than 1.25 times the edges that `batch_size` nodes have
        on average, and more than the longest row: one hub does not make all batches large.
        """
        offsets = np.asarray(graph.row_offsets).astype(np.int64)
        senders = np.asarray(graph.senders)
        nodes, edges = graph.num_nodes, graph.num_edges
        batch_size = min(batch_size, nodes)
        longest = int(np.diff(offsets).max(initial=0))
        most = min(edges, max(longest, -(-5 * edges * batch_size // (4 * max(nodes, 1)))))
        first, count, largest, others = 0, 0, 0, 0
        while first < nodes:
            end = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
            end = min(end, first + batch_size)
            row = senders[offsets[first] : offsets[end]]
            there = np.zeros(nodes, bool)
            there[row] = True
            there[first:end] = False
            largest, others = max(largest, row.size), max(others, int(there.sum()))
            first, count = end, count + 1
        return cls(batch_size, largest, others, count)


class _Batch(NamedTuple):
    """Some nodes, and all edges that end there.

    Attributes:
        graph: its receivers are the nodes and a place of padding, the first of the senders.
        places: the node of each sender, -1 for padding.
        edges: the edge of the whole graph of each edge, -1 for padding.
        end: the node after the last.
    """

    graph: Graph
    places: Int[Array, " senders"]
    edges: Int[Array, " edges"]
    end: Int[Array, ""]


def layerwise_inference(
    model: GNN,
    graph: Graph,
    features: Float[ArrayLike, "num_nodes *batch in_features"] | CBSR | HostFeatures,
    weights: Shaped[ArrayLike, "num_edges *rest"] | None = None,
    *,
    batch_size: int = 65536,
) -> Float[Array, "num_nodes *batch out_features"]:
    """A model's outputs for all nodes, from all neighbors: one layer after the other.

    Equal to `model(graph, features, weights)` after `model.eval()` but for rounding, and made so
    that no more than a layer's input and output is held for all nodes, and for a batch of nodes
    what the layer computes between: with its neighbors' rows, and for attention the projections of
    these. One program, in which every batch has the same shapes.

    Dropout and `"dropedge"` are off, and batch normalization takes its running statistics, whatever
    the model's mode.

    Args:
        model: any model of `jaxgnn.nn`, without a sample of the edges but `"dropedge"`.
        graph: a square graph, not traced.
        features: of the nodes; of `HostFeatures` a batch reads its rows, so that the device never
            holds the features of all nodes.
        weights: as in the model's call.
        batch_size: the nodes of a batch. A batch has fewer where they have very many edges.

    Raises:
        TypeError: an argument has a wrong type, or `graph` is traced.
        ValueError: a rectangular graph, features or weights that do not fit it, or a model that
            aggregates a sample.

    Source: Hamilton et al., "Inductive representation learning on large graphs" (NeurIPS 2017),
    algorithm 1; as PyG's and DGL's examples evaluate a model that was trained on mini-batches.
    """
    if not isinstance(model, GNN):
        got = type(model).__name__
        raise TypeError(
            f"model: expected one of jaxgnn.nn's models, got {got}: evaluate one of your own as "
            "model(graph, features)"
        )
    graph = graph_argument(graph)
    if isinstance(graph.row_offsets, Tracer):
        raise TypeError("graph: expected a graph that is not traced, outside jax.jit")
    if not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got {graph}")
    batch_size = checks.integer(batch_size, "batch_size", 1, 2**31 - 2)
    if not isinstance(features, HostFeatures | CBSR):
        features = jnp.asarray(features)
    if len(features.shape) < 2 or (features.shape[0], features.shape[-1]) != (
        graph.num_nodes,
        model.in_features,
    ):
        raise ValueError(
            f"features: expected the shape ({graph.num_nodes}, ..., {model.in_features}), got "
            f"{features.shape}"
        )
    if weights is not None:
        weights = jnp.asarray(weights)
        if weights.shape[:1] != (graph.num_edges,):
            raise ValueError(
                f"weights: expected the shape ({graph.num_edges}, ...), got {weights.shape}"
            )
    for sample in (conv.sample for conv in model.convs if hasattr(conv, "sample")):
        if sample.samples and sample.strategy != "dropedge":
            given = "sample_rate" if sample.sample_size is None else "sample_size"
            raise ValueError(f"model: expected one that aggregates all edges, got a {given}")
    graphdef, state = nnx.split(model)
    batches = NodeBatches.of(graph, batch_size)
    out = _compiled(graphdef, batches, state, graph, features, weights)
    if isinstance(features, HostFeatures):
        features.keep_until(out)
    return out


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(
    graphdef: Any, batches: NodeBatches, state: Any, graph: Graph, features: Rows, weights: Any
) -> Array:
    model = nnx.merge(graphdef, state, copy=True)
    model.eval()
    return outputs_by_layer(model, batches, graph, features, weights)


def outputs_by_layer(
    model: GNN,
    batches: NodeBatches,
    graph: Graph,
    features: Rows,
    weights: Shaped[Array, "num_edges *rest"] | None = None,
) -> Float[Array, "num_nodes *batch out_features"]:
    """`layerwise_inference` of a model in evaluation mode, as a part of a program."""
    x: Any = features
    if graph.num_nodes == 0:
        return model(graph, x.take(np.zeros(0, np.int32)) if isinstance(x, HostFeatures) else x)
    if model.linear_in is not None:
        x = _map_nodes(model, batches, graph.num_nodes, x)
    joined = spare = None
    for i in range(model.num_layers):
        out, joined = _layer(model, batches, graph, weights, i, x, joined, spare)
        x, spare = out, None if x is features else x
    assert joined is not None
    return joined[: graph.num_nodes]


def _map_nodes(model: GNN, batches: NodeBatches, num_nodes: int, x: Rows) -> Any:
    """The input layer, of each node alone."""

    def rows(first: Array) -> Any:
        nodes = first + jnp.arange(batches.nodes, dtype=jnp.int32)
        return model._before_layers(_take(x, jnp.where(nodes < num_nodes, nodes, -1)))

    def body(out: Any, first: Array) -> tuple[Any, None]:
        return _write(out, first, rows(first)), None

    firsts = jnp.arange(0, num_nodes, batches.nodes, dtype=jnp.int32)
    out = _buffer(jax.eval_shape(rows, firsts[0]), num_nodes)
    return jax.lax.scan(body, out, firsts)[0]


def _layer(
    model: GNN,
    batches: NodeBatches,
    graph: Graph,
    weights: Array | None,
    i: int,
    x: Any,
    joined: Array | None,
    spare: Any,
) -> tuple[Any, Array]:
    """The rows of all nodes after a layer, none after the last, and what `jumping` joins; `spare`
    has rows that nothing reads any more."""
    conv, last = model.convs[i], i == model.num_layers - 1
    # What the edges of a batch do not tell of its senders.
    node_scale = getattr(conv, "node_scale", None)
    scale = None if node_scale is None else node_scale(graph, weights, x.dtype)
    keeps = model.jumping in ("cat", "max")

    def rows(first: Array, joined: Array | None) -> tuple[Any, Array | None, Array]:
        batch = _batch(batches, graph, first)
        call = {}
        if scale is not None:
            call["scale"] = jax.tree.map(lambda values: take_rows(values, batch.places), scale)
        of_edges = None if weights is None else take_rows(weights, batch.edges)
        taken = _take(x, batch.places)
        out = model._layer(i, batch.graph, taken, of_edges, **call)
        out = jax.tree.map(lambda rows: rows[: batches.nodes], out)
        if keeps or last:
            before = None if joined is None else _slice(joined, first, batches.nodes)
            return None if last else out, model._join(i, before, out), batch.end
        return out, None, batch.end

    out, new, _ = jax.eval_shape(rows, jnp.int32(0), joined)
    kind = None if joined is None else (joined.shape[1:], joined.dtype)
    in_place = new is None or kind == (new.shape[1:], new.dtype)
    written = joined if in_place else _buffer(new, graph.num_nodes, spare if last else None)

    def body(carry: Any, _: None) -> tuple[Any, None]:
        first, out, written = carry
        after, new, end = rows(first, written if in_place else joined)
        if new is not None:
            # Rows beyond the batch's are another's, which may have to be read again.
            inside = first + jnp.arange(batches.nodes, dtype=jnp.int32) < end
            old = _slice(written, first, batches.nodes)
            inside = inside.reshape(-1, *[1] * (new.ndim - 1))
            written = _write(written, first, jnp.where(inside, new, old))
        return (end, out if after is None else _write(out, first, after), written), None

    start = (jnp.int32(0), _buffer(out, graph.num_nodes, spare), written)
    return jax.lax.scan(body, start, None, length=batches.count)[0][1:]


def _batch(batches: NodeBatches, graph: Graph, first: Int[Array, ""]) -> _Batch:
    """The batch that begins with this node."""
    num_nodes, offsets = graph.num_nodes, graph.row_offsets
    begin = offsets[first]
    most = jnp.minimum(batches.edges, graph.num_edges - begin).astype(begin.dtype)
    end = jnp.searchsorted(offsets, begin + most, side="right") - 1
    end = jnp.minimum(end.astype(jnp.int32), jnp.minimum(first + batches.nodes, num_nodes))

    edge = jnp.arange(batches.edges, dtype=jnp.int32)
    there = edge < offsets[end] - begin
    edges = jnp.where(there, begin + edge.astype(begin.dtype), -1)
    senders = jnp.where(there, take_rows(graph.senders, edges), -1)
    node = jnp.arange(num_nodes, dtype=jnp.int32)
    met = jnp.zeros(num_nodes, bool).at[jnp.where(there, senders, num_nodes)].set(True, mode="drop")
    met = met & ((node < first) | (node >= end))
    rank = jnp.cumsum(met, dtype=jnp.int32) - 1
    others = jnp.full(batches.senders, -1, jnp.int32)
    others = others.at[jnp.where(met, rank, batches.senders)].set(node, mode="drop")

    # The places: the batch's nodes and one of padding, the other senders and one of padding.
    row = first + jnp.arange(batches.nodes + 1, dtype=jnp.int32)
    padding = jnp.full(1, -1, jnp.int32)
    places = jnp.concatenate([jnp.where(row < end, row, -1), others, padding])
    own = (senders >= first) & (senders < end)
    columns = jnp.where(own, senders - first, batches.nodes + 1 + take_rows(rank, senders))
    columns = jnp.where(there, columns, places.shape[0] - 1)
    starts = (offsets[jnp.minimum(row, end)] - begin).astype(jnp.int32)
    return _Batch(
        _graph(jnp.append(starts, jnp.int32(batches.edges)), columns, places.shape[0]),
        places,
        edges,
        end,
    )


def _graph(
    row_offsets: Int[Array, " receivers+1"], senders: Int[Array, " edges"], num_senders: int
) -> Graph:
    """The rectangular graph; its transpose is dropped from programs that only go forward."""
    num_receivers, num_edges = row_offsets.shape[0] - 1, senders.shape[0]
    transpose_offsets, permutation = transpose_order(senders, num_senders)
    return Graph(
        row_offsets=row_offsets,
        senders=senders,
        row_chunks=chunk_rows_on_device(row_offsets, num_edges),
        transpose_row_offsets=transpose_offsets,
        transpose_receivers=csr_row_ids(row_offsets, num_edges)[permutation],
        transpose_permutation=permutation,
        transpose_row_chunks=chunk_rows_on_device(transpose_offsets, num_edges),
        edge_permutation=None,
        self_loops=None,
        num_senders=num_senders,
        num_receivers=num_receivers,
        num_edges=num_edges,
        symmetric=False,
    )


def _take(x: Any, nodes: Int[Array, " places"]) -> Any:
    """The rows of these nodes; of -1 any that a kernel can read."""
    if isinstance(x, HostFeatures):
        return x.take(nodes)
    if isinstance(x, CBSR):
        return jax.tree.map(lambda rows: rows[jnp.maximum(nodes, 0)], x)
    return NodeRows(x, nodes)


def _buffer(rows: Any, num_nodes: int, spare: Any = None) -> Any:
    """Room for such rows of all nodes, and of a batch more, so that none is cut; that of `spare`,
    which is not read any more, if it fits. XLA would make room for all layers at once."""
    shapes = jax.tree.map(
        lambda of: jax.ShapeDtypeStruct((num_nodes + of.shape[0], *of.shape[1:]), of.dtype), rows
    )
    if jax.tree.structure(shapes) == jax.tree.structure(spare) and all(
        one.shape == other.shape and one.dtype == other.dtype
        for one, other in zip(jax.tree.leaves(shapes), jax.tree.leaves(spare), strict=True)
    ):
        return spare
    return jax.tree.map(lambda of: jnp.zeros(of.shape, of.dtype), shapes)


def _slice(rows: Array, first: Array, count: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(rows, first, count)


def _write(out: Any, first: Array, rows: Any) -> Any:
    return jax.tree.map(
        lambda out, rows: jax.lax.dynamic_update_slice_in_dim(out, rows, first, 0), out, rows
    )
