"""Attention and other operations of an edge's two ends, against one device's."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import (
    CBSR,
    cosine_attention,
    dot_attention,
    edge_conv,
    gat_attention,
    gather_edges,
    gatv2_attention,
    gaussian_spmm,
    sddmm,
    segment_reduce,
    segment_softmax,
)
from jaxgnn.distributed import shard
from jaxgnn.ops._attention.gat_attention import gat_attention_with_weights
from tests.distributed.eight_devices.support import close, mesh, partitions, random_graph


def attend(graph, nodes, edges, att, beta):
    """Operations of an edge's two ends, and all their gradients."""

    def outputs(nodes, edges, att, beta):
        q, k, v = nodes
        p, r = q[..., 0], k[..., 1]
        columns = jnp.broadcast_to(jnp.asarray([1, 4, 6], jnp.uint8), (*v.shape[:2], 3))
        out = [
            gat_attention(graph, CBSR(v[..., :3], columns, 8), p, r, edges[..., 0]),
            gat_attention(graph, v, p, r, edges[..., 0], self_loops=True, loop_bias=r),
            gatv2_attention(graph, k, q, att, edges[..., 0], edge=edges),
            dot_attention(graph, q, k, v, key_scale=p, self_loops=True),
            dot_attention(graph, q, k, CBSR(v[..., :3], columns, 8), key_scale=p, self_loops=True),
            cosine_attention(graph, v, beta, self_loops=True),
            edge_conv(graph, k, q),
            edge_conv(graph, v, q, reduce="sum"),
        ]
        if getattr(graph, "features", None) is None:
            mu, inv_sigma = att.reshape(-1, 2)[:4], att.reshape(-1, 2)[-4:]
            pseudo = edges[:, 0, :2], (q[:, 0, :2], k[:, 0, 2:])
            score = sddmm(graph, q, k)
            _, by_edge, by_loop = gat_attention_with_weights(graph, v, p, r, self_loops=True)
            out += [
                segment_reduce(graph, by_edge[:, :, None] * edges),
                by_loop,
                gaussian_spmm(graph, v[:, 0], mu, inv_sigma, pseudo[0], reduce="mean"),
                gaussian_spmm(graph, v[:, 0], mu, inv_sigma, pseudo[1], activation="tanh"),
                segment_reduce(graph, segment_softmax(graph, score)[:, :, None] * edges),
                segment_reduce(graph, gather_edges(graph, k, q, "mul"), "max"),
            ]
        return out

    out, pullback = jax.vjp(outputs, nodes, edges, att, beta)
    ones = [jnp.ones_like(y) if y.shape[0] == nodes[0].shape[0] else None for y in out]
    mask = getattr(graph, "node_mask", None)
    if mask is not None:  # rows of padding have no gradient
        ones = [jnp.where(mask.reshape(-1, *[1] * (y.ndim - 1)), y, 0) for y in ones]
    return out, pullback(ones)


attend = jax.jit(attend)


def check_attention(nodes, edges, parts):
    graph, rng = random_graph(nodes, edges)
    normal = rng.standard_normal
    rows = [normal((nodes, parts, 4)).astype(np.float32) for _ in range(3)]
    features = normal((edges, parts, 4)).astype(np.float32)
    att = normal((parts, 4)).astype(np.float32)
    beta = np.float32(1.5)
    arguments = rows, graph.sort_edge_data(features), att, beta
    want, (drows, dfeatures, *dothers) = attend(graph, *arguments)
    layouts = [{"features": "x"}] + [
        {"rows": "x", "partition": p} for p in partitions(nodes, parts, rng)
    ]
    for layout in layouts:
        sharded = shard(graph, mesh(parts), **layout)
        placed = [sharded.scatter(x) for x in rows], sharded.scatter_edges(features)
        got, (srows, sfeatures, *sothers) = attend(sharded, *placed, att, beta)
        known = np.asarray(sharded.edge_of_place) >= 0
        sfeatures = np.asarray(sfeatures)[known]
        if "rows" in layout:
            close(sfeatures, np.asarray(dfeatures)[np.asarray(sharded.edge_of_place)[known]])
            for got_row, row in zip(srows, drows, strict=True):
                close(sharded.gather(got_row), row)
            jax.tree.map(close, sothers, dothers)
        for y, expected in zip(got, want, strict=False):
            close(sharded.gather(y), expected)
