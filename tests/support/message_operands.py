"""Operands of messages: arrays of the nodes and edges, as symbolic values, and in NumPy by edge."""

from types import SimpleNamespace

import numpy as np

from jaxgnn.algebra import edge_values, scatter
from tests.support.oracle import draw_array, edges

SENDERS, RECEIVERS, NUM_EDGES, WIDTH, HEADS = 9, 7, 41, 4, 2


def operands():
    rng = np.random.default_rng(1)
    shapes = {
        "x": (SENDERS, WIDTH),
        "y": (RECEIVERS, WIDTH),
        "h": (SENDERS, HEADS, 3),
        "p": (SENDERS, HEADS),
        "q": (RECEIVERS, HEADS),
        "w": (NUM_EDGES,),
        "z": (NUM_EDGES, WIDTH),
        "b": (NUM_EDGES, HEADS),
        "narrow": (2 * WIDTH, 3),
        "wide": (WIDTH, 6),
        "bias": (3,),
        "r": (RECEIVERS, HEADS, 3),
        "ends": (2 * WIDTH, 1),
        "column": (6, 1),
        "one": (1,),
        "head_ends": (HEADS, 6),
        "att": (HEADS, 3),
        "mu": (HEADS, 3),
        "inv": (HEADS, 3),
        "centers": (3, WIDTH),
        "scales": (3, WIDTH),
    }
    return {name: draw_array(rng, shape, "float32") for name, shape in shapes.items()}


def symbolic(graph, arrays):
    """The operands as values on edges: of the senders, the receivers, the edges."""
    given = dict(arrays)
    ends = {"x": "u", "h": "u", "p": "u", "y": "v", "q": "v", "r": "v"}
    for name, array in arrays.items():
        if name in ends:
            given[name] = scatter(graph, **{ends[name]: array})
        elif name in "wzb":
            given[name] = edge_values(graph, array)
    return SimpleNamespace(**given)


def dense(graph, arrays):
    """The same in NumPy: a float64 row for each edge."""
    senders, receivers = edges(graph)
    given = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    given |= {name: given[name][senders] for name in "xhp"}
    given |= {name: given[name][receivers] for name in "yqr"}
    return SimpleNamespace(**given, receivers=receivers)


def reduced(graph, messages, reduce):
    out = np.zeros((graph.num_receivers, *messages.shape[1:]))
    receivers = edges(graph)[1]
    for row in np.unique(receivers):
        out[row] = getattr(np, reduce)(messages[receivers == row], axis=0)
    return out
