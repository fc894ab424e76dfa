"""GAT, EdgeConv and MoNet by the algebra, in the stages of "Understanding GNN Computational Graph"
(Zhang et al., MLSys 2022): as written, reorganized, fused, recomputed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from benchmarks.baselines.jax_models import Apply, Layer, stacked
from benchmarks.harness import plan
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.setting import Arrays, Setting
from benchmarks.ours.operations import preprocessed
from jaxgnn import Graph
from jaxgnn import algebra as al
from jaxgnn.algebra import Edges


@dataclasses.dataclass(frozen=True)
class Stage:
    """What a stage leaves to the algebra.

    Attributes:
        on_edges: the projections stand on the edges, as the layer is written.
        fuse, recompute: as of `jaxgnn.algebra.gather`.
        stored: the values of edges that a fused backward pass would compute again are stored.
    """

    on_edges: bool = False
    fuse: bool = False
    recompute: bool = False
    stored: bool = False


STAGES = {
    plan.WRITTEN: Stage(on_edges=True),
    plan.REORGANIZED: Stage(),
    plan.UNFUSED: Stage(recompute=True),
    plan.STORED: Stage(fuse=True, stored=True),
    plan.RECOMPUTED: Stage(fuse=True, recompute=True),
}


def model_of(setting: Setting, stored: StoredGraph) -> tuple[Apply, Graph, dict[str, Any]]:
    """The model in its stage, its graph with the attention's self-loops, and what that took."""
    stage, layer = STAGES[setting.impl], _LAYERS[setting.model]
    graph = Graph.from_csr(*stored.rows(loops=setting.model in plan.LOOPED_MODELS))
    graph = dataclasses.replace(graph, edge_permutation=None)
    graph, facts = preprocessed(jax.device_put(graph), "with_row_schedule")
    own: Layer = functools.partial(layer, stage)  # pyright: ignore[reportAssignmentType]
    return functools.partial(stacked, own, setting), graph, facts


def _gat(stage: Stage, own: Arrays, graph: Graph, x: Array, setting: Setting) -> Array:
    heads, features = own["attention_senders"].shape
    source, target = own["attention_senders"], own["attention_receivers"]
    if stage.on_edges:
        # [x_i, x_j] projected on the edges; a function keeps the heads' axis.
        u, v = (
            al.apply_edge(lambda h: h.reshape(h.shape[0], heads, features), projected)
            for projected in (al.linear(e, own["linear.kernel"]) for e in al.scatter(graph, x, x))
        )
        scores = al.dot(v, target) + al.dot(u, source)
    else:
        h = (x @ own["linear.kernel"]).reshape(x.shape[0], heads, features)
        u = al.scatter(graph, h)
        p, q = ((h * vector).sum(axis=-1) for vector in (source, target))
        left, right = al.scatter(graph, p, q)
        scores = left + right
    weights = al.segment_normalize(al.leaky_relu(scores))
    out = _gather(stage, _kept(stage, graph, weights) * u, "sum")
    return out.reshape(out.shape[0], -1) + own["bias"]


def _edge_conv(stage: Stage, own: Arrays, graph: Graph, x: Array, setting: Setting) -> Array:
    kernel, bias = own["linear.kernel"], own["linear.bias"]
    if stage.on_edges:
        u, v = al.scatter(graph, x, x)
        messages = al.linear(al.concat(v, u - v), kernel, bias)
    else:
        first, second = jnp.split(kernel, 2)
        theta, phi = x @ second, x @ (first - second) + bias
        u, v = al.scatter(graph, theta, phi)
        messages = u + v
    return _gather(stage, _kept(stage, graph, messages), "max")


def _monet(stage: Stage, own: Arrays, graph: Graph, x: Array, setting: Setting) -> Array:
    kernels, features = own["conv.mu"].shape[0], own["conv.bias"].shape[0]
    inv_sigma = jax.lax.rsqrt(own["conv.sigma"] ** 2 + 1e-15)
    first, second = own["linear.kernel"]

    def place(degrees: Array) -> Array:
        return jax.lax.rsqrt(jnp.maximum(degrees, 1).astype(x.dtype))[:, None]

    source, target = place(graph.out_degrees), place(graph.in_degrees)
    if stage.on_edges:
        at_senders, at_receivers = al.scatter(graph, source, target)
        ends = al.concat(at_receivers, at_senders)
        places = al.linear(ends, own["linear.kernel"], own["linear.bias"])
        u = al.linear(al.scatter(graph, x), own["conv.linear.kernel"])
        u = al.apply_edge(lambda h: h.reshape(h.shape[0], kernels, features), u)
    else:
        left, right = al.scatter(graph, source * second, target * first + own["linear.bias"])
        places = left + right
        h = (x @ own["conv.linear.kernel"]).reshape(x.shape[0], kernels, features)
        u = al.scatter(graph, h)
    weights = al.gaussian(al.apply_edge(jnp.tanh, places), own["conv.mu"], inv_sigma)
    out = _gather(stage, al.weighted_sum(_kept(stage, graph, weights), u), "mean")
    return out + x @ own["conv.linear_root.kernel"] + own["conv.bias"]


def _kept(stage: Stage, graph: Graph, edges: Edges) -> Edges:
    """The values, computed and stored where the stage says so."""
    if not stage.stored:
        return edges
    return al.edge_values(graph, al.evaluate(edges, recompute=False))


def _gather(stage: Stage, edges: Edges, reduce: Any) -> Array:
    return al.gather(edges, reduce, fuse=stage.fuse, recompute=stage.recompute)


_LAYERS: dict[str, Callable[..., Array]] = {"gat": _gat, "edgeconv": _edge_conv, "monet": _monet}
