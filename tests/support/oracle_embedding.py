"""The embedding of two sampled hops, one node after the other in float64."""

import jax
import numpy as np

from jaxgnn import sampled_edges


def drawn(graph, nodes, key, size, replace):
    """(nodes, weights' edges) that each node draws; without neighbors itself, with the edge -1."""
    edges, counts = sampled_edges(
        graph, sample_size=size, strategy="random", key=key, replace=replace, rows=nodes
    )
    senders, out = np.asarray(graph.senders), []
    for node, row, count in zip(nodes, np.asarray(edges), np.asarray(counts), strict=True):
        taken = row[:count]
        if count == 0 and node >= 0:
            taken = np.full(size if replace else 1, -1)
        out.append([(int(node) if e < 0 else int(senders[e]), int(e)) for e in taken])
    return out


def normalized(v):
    length = np.sqrt((v * v).sum())
    return v / length if length > 0 else v


def brute_force_embedding(
    graph, x, params, key, *, num_children, num_leaves, sources=None, aggr="mean", replace=True,
    weights=None,
):  # fmt: skip
    """From the equation and the lists of what is drawn; the activation is ReLU."""
    x, w1, wa1, w2, wa2 = (
        np.asarray(a, np.float64)
        for a in (x, *(params[name] for name in ("Wf1", "Wa1", "Wf2", "Wa2")))
    )

    def reduce(pairs, rows):
        if not pairs:
            return np.zeros(rows.shape[-1])
        factors = [1 if weights is None or e < 0 else float(weights[e]) for _, e in pairs]
        messages = np.asarray(factors)[:, None] * rows
        return getattr(messages, aggr)(axis=0)

    def layer(itself, around):
        return normalized(np.maximum(np.concatenate([itself, around]), 0))

    sources = np.arange(graph.num_receivers) if sources is None else np.asarray(sources)
    out = []
    keys = [jax.random.fold_in(key, hop) for hop in (0, 1)]
    children = drawn(graph, sources, keys[0], num_children, replace)
    places = np.full((len(sources), num_children), -1)
    for place, pairs in enumerate(children):
        places[place, : len(pairs)] = [node for node, _ in pairs]
    leaves = drawn(graph, places.reshape(-1), keys[1], num_leaves, replace)
    for place, (source, pairs) in enumerate(zip(sources, children, strict=True)):
        if source < 0:
            out.append(np.zeros(w2.shape[1] + wa2.shape[1]))
            continue
        hidden = []
        for i, (child, _) in enumerate(pairs):
            found = leaves[place * num_children + i]
            around = reduce(found, x[[leaf for leaf, _ in found]])
            hidden.append(layer(x[child] @ w1, around @ wa1))
        of_source = layer(x[source] @ w1, reduce(pairs, x[[child for child, _ in pairs]]) @ wa1)
        out.append(layer(of_source @ w2, reduce(pairs, np.asarray(hidden)) @ wa2))
    return np.asarray(out)
