"""A training step of every model in every layout, against one device's."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn.distributed import shard
from jaxgnn.nn import (
    AGNN,
    APPNP,
    GAT,
    GCN,
    GIN,
    GNN,
    MLP,
    EdgeConv,
    EdgeConvNet,
    GATv2,
    GraphSAGE,
    MaxK,
    MoNet,
    PNAConv,
    Transformer,
)
from tests.distributed.eight_devices.support import (
    close,
    collectives,
    in_float64,
    mesh,
    random_graph,
    with_both,
)


def make_step(definition, nodes):
    @jax.jit
    def step(parameters, state, graph, x, weights, target, mask):
        def loss(parameters, x):
            model = nnx.merge(definition, parameters, state, copy=True)
            error = jnp.where(mask[:, None], model(graph, x, weights) - target, 0)
            return jnp.sum(error**2) / nodes, nnx.state(model, nnx.BatchStat)

        (value, statistics), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(
            parameters, x
        )
        gradients, dx = gradients
        moved = jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients)
        return (value, gradients, statistics), dx, moved

    return step


def failures_of(
    make,
    layouts,
    exchanges,
    edges_width=None,
    overlap=False,
    counts=(),
    **options,
):
    """Of a model's step of training in each layout, against one device's, and its collectives.

    `exchanges`: the `all_to_all` of a layer's aggregation, forward and backward together, by rows
    and by features.
    `edges_width`: of the features of the edges; 0 for weights.
    `overlap`: as of `shard`; `None`: edges in two graphs and in one.
    `counts`: numbers of devices; by default all.
    """
    nodes, edges = 61, 500
    graph, rng = random_graph(nodes, edges, 1)
    x = rng.standard_normal((nodes, 6)).astype(np.float32)
    shape = (edges, edges_width) if edges_width else (edges,)
    user_weights = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    target = rng.standard_normal((nodes, 3)).astype(np.float32)
    if "activation" in options:
        options["activation"] = MaxK(options["activation"])
    model = make(6, 16, 3, num_layers=2, rngs=nnx.Rngs(0), **options)
    definition, parameters, state = nnx.split(model, nnx.Param, ...)
    step = make_step(definition, nodes)
    weighted = edges_width is not None
    weights = graph.sort_edge_data(user_weights) if weighted else None
    arguments = (parameters, state, graph, x, weights, target, np.ones(nodes, bool))
    want = step(*arguments)
    # On GPUs kernels and layouts add in orders of their own, and with XLA's optimizations products
    # on the CPU do, so that both have errors.
    ordered = jax.default_backend() == "cpu" and jax.config.read("jax_disable_most_optimizations")
    exact = [] if ordered else [in_float64(step, *arguments)]

    def check(layout, parts):
        axes = {"rows": "r", "features": "c"} if layout == "both" else {layout: "x"}
        if "rows" in axes:
            axes["overlap"] = overlap is not False
        sharded = shard(graph, mesh(parts, both=layout == "both"), **axes)
        if overlap is None and "rows" in axes:
            sharded = with_both(sharded, graph, parts, axes)
        data = [
            sharded.scatter(x),
            sharded.scatter_edges(user_weights) if weighted else None,
            sharded.scatter(target),
            sharded.node_mask,
        ]
        moved, placed = sharded.replicate((parameters, state))
        before = step._cache_size()
        compiled = step.lower(moved, placed, sharded, *data).compile()
        got = step(moved, placed, sharded, *data)
        jax.tree.map(close, got[0], want[0], *(each[0] for each in exact))
        close(sharded.gather(got[1]), want[1], *(each[1] for each in exact))
        step(got[2], placed, sharded, *data)
        assert step._cache_size() == before + 1, "a second compilation"
        found = collectives(compiled)
        assert set(found) <= {"all-to-all", "all-reduce"}, (make, layout, found)
        meant = sum(exchanges) if layout == "both" else exchanges[layout == "features"]
        if parts > 1:
            assert found["all-to-all"] in 2 * np.atleast_1d(meant), (make, layout, found)

    for layout, parts in itertools.product(layouts, counts or (jax.device_count(),)):
        if layout != "rows" and options.get("heads", 0) % parts:
            continue
        try:
            check(layout, parts)
        except AssertionError as error:
            name = f"{make.__name__} by {layout} on {parts}"
            error.add_note(f"{name}, overlap {overlap}, {options}")
            yield error


def check_models(models, counts=()):
    """Every model in every layout; the failures together, each with its model and layout."""
    failures = [
        error
        for make, layouts, exchanges, options in models
        for error in failures_of(make, layouts, exchanges, counts=counts, **options)
    ]
    if failures:
        raise ExceptionGroup("models that differ from one device's", failures)


def _edge_mlp(before, after, *, rngs, **types_):
    inner = MLP([2 * before, 8, after], norm="batch", rngs=rngs, **types_)
    return EdgeConv(before, after, aggr="mean", mlp=inner, rngs=rngs)


def _pna(before, after, **options):
    of_degrees = {"scalers": ["identity", "linear"], "degree_histogram": np.array([1, 5, 9])}
    return PNAConv(before, after, aggregators=["mean", "max", "std"], **of_degrees, **options)


def _appnp(before, after, **options):
    del before, after, options
    return APPNP(2, 0.1)


MODELS = (
    (GraphSAGE, ("rows", "features", "both"), (2, 4), {"norm": "batch"}),
    (GCN, ("rows", "features"), (2, 4), {"edges_width": 0, "norm": "batch"}),
    (GIN, ("rows", "features"), (2, 4), {"norm": "batch"}),
    (GAT, ("rows",), (2, 0), {"heads": 4, "edges_width": 3, "edge_dim": 3}),
    (GAT, ("features", "both"), (2, 10), {"heads": 8, "edges_width": 3, "edge_dim": 3}),
    (GATv2, ("rows", "features"), (2, 6), {"heads": 8}),
    (GATv2, ("rows", "features"), (2, 8), {"heads": 8, "edges_width": 3, "edge_dim": 3}),
    (Transformer, ("rows", "features"), (2, 8), {"heads": 8}),
    (Transformer, ("rows",), (2, 0), {"heads": 4, "edges_width": 3, "edge_dim": 3}),
    (AGNN, ("rows",), (2, 0), {}),
    (MoNet, ("rows",), (2, 0), {}),
    (EdgeConvNet, ("rows", "features", "both"), (2, 4), {}),
    # The backward pass computes values on edges again: XLA may keep the rows that it exchanged.
    (GNN, ("rows",), ((2, 3), 0), {"conv": _edge_mlp}),
    (GNN, ("rows",), (6, 0), {"conv": _pna}),
    (GIN, ("rows",), ((2, 3), 0), {"norm": "batch", "edges_width": 3, "edge_dim": 3}),
    (GNN, ("rows", "features"), (2, 4), {"conv": _appnp, "input_layer": True, "jumping": "last"}),
    (GraphSAGE, ("rows",), (3, 0), {"activation": 4, "input_layer": True, "residual": True}),
    (GCN, ("rows",), (3, 0), {"activation": 4, "input_layer": True, "edges_width": 0}),
    (GIN, ("rows",), (3, 0), {"activation": 4, "input_layer": True, "norm": "batch"}),
    (GAT, ("rows",), (2, 0), {"activation": 4, "heads": 2, "jumping": "cat"}),
)
"""Models, their layouts, the exchanges of a layer by rows and by features, and options; an integer
is the k of MaxK."""

OVERLAPPED = (
    (GraphSAGE, ("rows", "both"), (2, 4), {"norm": "batch", "overlap": True}),
    (GraphSAGE, ("rows",), (2, 0), {"edges_width": 0, "overlap": True}),
    (GCN, ("rows", "both"), (2, 4), {"edges_width": 0, "overlap": True}),
    (GIN, ("rows",), (2, 0), {"norm": "batch", "overlap": True}),
    (
        GNN,
        ("rows",),
        (2, 0),
        {"conv": _appnp, "input_layer": True, "jumping": "last", "overlap": True},
    ),
    (GraphSAGE, ("rows",), (3, 0), {"activation": 4, "input_layer": True, "overlap": True}),
    (
        GCN,
        ("rows",),
        (3, 0),
        {"activation": 4, "input_layer": True, "edges_width": 0, "overlap": True},
    ),
    (GAT, ("rows",), (2, 0), {"heads": 4, "edges_width": 3, "edge_dim": 3, "overlap": None}),
    (GNN, ("rows",), (6, 0), {"conv": _pna, "overlap": None}),
)
"""The same with edges in two graphs: alone, and beside one of all edges."""


EACH_BY_ROWS = tuple(
    {
        (make, options.get("conv"), "activation" in options and make is GraphSAGE): (
            *(make, ("rows",), exchanges, options),
        )
        for make, layouts, exchanges, options in reversed(MODELS)
        if "rows" in layouts
    }.values()
)
"""Every model once, and one with MaxK."""


SOME = (
    (GraphSAGE, ("rows",), (2, 4), {"norm": "batch", "overlap": True}),
    (GraphSAGE, ("both",), (2, 4), {}),
    (
        GCN,
        ("rows",),
        (3, 0),
        {"norm": "batch", "activation": 4, "input_layer": True, "edges_width": 0},
    ),
    (GAT, ("rows",), (2, 4), {"heads": 4, "edges_width": 3, "edge_dim": 3}),
)
"""What runs by default."""
