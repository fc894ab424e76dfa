"""Sums, means and extrema in every layout, against one device's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import segment_reduce, spmm
from jaxgnn.distributed import shard
from tests.distributed.eight_devices.support import (
    close,
    collectives,
    mesh,
    partitions,
    raises,
    random_graph,
    with_both,
)


def check_operation(nodes, edges, parts):
    graph, rng = random_graph(nodes, edges)
    x = rng.standard_normal((nodes, 5)).astype(np.float32)
    user_weights = rng.standard_normal(edges).astype(np.float32)
    weights = graph.sort_edge_data(user_weights)
    cotangent = rng.standard_normal((nodes, 5)).astype(np.float32)

    def both(graph, x, weights, cotangent):
        def outputs(x, weights):
            return [
                spmm(graph, x),
                spmm(graph, x, weights, reduce="mean"),
                spmm(graph, x, weights),
                spmm(graph, x, reduce="max"),
            ]

        out, pullback = jax.vjp(outputs, x, weights)
        (alone,) = jax.vjp(lambda x: spmm(graph, x, weights), x)[1](cotangent)
        return out, alone, pullback([cotangent] * len(out))

    both = jax.jit(both)
    want, alone, (dx, dw) = both(graph, x, weights, cotangent)
    layouts = [{"features": "x"}] + [
        {"rows": "x", "partition": p, "overlap": overlap}
        for p in partitions(nodes, parts, rng)
        for overlap in (False, True)
    ]
    for layout in layouts:
        sharded = shard(graph, mesh(parts), **layout)
        if layout.get("overlap"):  # for the extremum
            sharded = with_both(sharded, graph, parts, layout)
        placed = sharded.scatter(x), sharded.scatter_edges(user_weights)
        out, salone, (sdx, sdw) = both(sharded, *placed, sharded.scatter(cotangent))
        compare = np.testing.assert_array_equal if "features" in layout else close
        for got, expected in zip(out, want, strict=True):
            assert not np.asarray(got)[~np.asarray(sharded.node_mask)].any(), "padding leaked"
            compare(sharded.gather(got), expected)
        compare(sharded.gather(salone), alone)
        close(sharded.gather(sdx), dx)
        known = np.asarray(sharded.edge_of_place) >= 0
        close(np.asarray(sdw)[known], np.asarray(dw)[np.asarray(sharded.edge_of_place)[known]])
        assert (not known.all()) or sdw.shape == dw.shape
        explained = sharded.explain(5)
        assert f"layout {sharded.layout} over {parts}" in explained and "padding" in explained


def check_no_columns_and_keys():
    """Rows without columns, and random keys of nodes."""
    graph, _ = random_graph(9, 30)
    keys = jax.random.split(jax.random.key(0), 9)
    for layout in ({"rows": "x"}, {"features": "x"}):
        sharded = shard(graph, mesh(2), **layout)
        empty = sharded.scatter(np.ones((9, 2, 0), np.float32))
        for out in (spmm(sharded, empty), spmm(sharded, empty, transpose=True)):
            assert out.shape == (sharded.num_senders, 2, 0)

        def there_and_back(keys, sharded=sharded):
            return sharded.gather(sharded.scatter(keys))

        for back in (there_and_back(keys), jax.jit(there_and_back)(keys)):
            np.testing.assert_array_equal(jax.random.key_data(back), jax.random.key_data(keys))
    # By features a graph without edges has one of padding.
    graph = random_graph(5, 0)[0]
    for layout in ({"rows": "x"}, {"features": "x"}):
        sharded = shard(graph, mesh(2), **layout)
        out = spmm(sharded, sharded.scatter(np.ones((5, 3), np.float32)), transpose=True)
        assert out.shape == (sharded.num_senders, 3) and not out.any()
        # Lists are data, too, not trees of numbers.
        assert sharded.scatter_edges([], in_graph_order=True).shape == (sharded.num_edges,)
        places = list(range(sharded.num_senders))
        np.testing.assert_array_equal(sharded.gather(places), sharded.place_of_node)


def check_transpose(*more_layouts):
    """Sums and means at the senders, with gradients; by rows they travel back."""
    graph, rng = random_graph(21, 90)
    x = rng.standard_normal((21, 2, 3)).astype(np.float32)
    user_weights = rng.standard_normal((90, 2)).astype(np.float32)
    cotangent = rng.standard_normal((3, 21, 2, 3)).astype(np.float32)
    edges = functools.partial(segment_reduce, by="senders")

    def transposed(graph, x, weights, cotangent, by_edges):
        def outputs(x, weights):
            sums = [
                spmm(graph, x, weights, transpose=True),
                spmm(graph, x, reduce="mean", transpose=True),
            ]
            if not by_edges:
                return [*sums, jnp.zeros_like(x)]
            reduced = edges(graph, weights) + edges(graph, weights, "mean")
            return [*sums, jnp.broadcast_to(reduced[..., None], x.shape)]

        out, pullback = jax.vjp(outputs, x, weights)
        return out, pullback(list(cotangent))

    transposed = jax.jit(transposed, static_argnums=4)
    wants = [
        transposed(graph, x, graph.sort_edge_data(user_weights), cotangent, by_edges)
        for by_edges in (False, True)
    ]
    for layout, overlap in (*more_layouts, ({"rows": "x"}, False)):
        by_edges = len(layout) == 1
        sharded = shard(graph, mesh(4, both=len(layout) == 2), overlap=overlap, **layout)
        # Rows and values of padding count nowhere.
        places = jnp.where(sharded.node_mask[:, None, None], sharded.scatter(x), 7)
        weights = jnp.where(sharded.edge_mask[:, None], sharded.scatter_edges(user_weights), 7)
        cotangents = jnp.stack([sharded.scatter(each) for each in cotangent])
        out, (dx, dw) = transposed(sharded, places, weights, cotangents, by_edges)
        want, (want_dx, want_dw) = wants[by_edges]
        for got, expected in zip((*out, dx), (*want, want_dx), strict=True):
            assert not np.asarray(got)[~np.asarray(sharded.node_mask)].any(), "padding leaked"
            close(sharded.gather(got), expected)
        known = np.asarray(sharded.edge_of_place) >= 0
        edge_of_place = np.asarray(sharded.edge_of_place)[known]
        close(np.asarray(dw)[known], np.asarray(want_dw)[edge_of_place])
    compiled = jax.jit(functools.partial(spmm, transpose=True)).lower(sharded, places).compile()
    assert collectives(compiled) == {"all-to-all": 1}
    half = sharded.scatter(np.full((21, 1), 60000, np.float16))
    means = np.asarray(sharded.gather(spmm(sharded, half, reduce="mean", transpose=True)))
    assert means.dtype == np.float16 and set(np.unique(means)) == {0, 60000}
    raises("expected False for 'max'", spmm, sharded, places, reduce="max", transpose=True)
    raises("by: expected 'receivers' for 'min'", edges, sharded, weights, "min")
    both = shard(graph, mesh(4, both=True), rows="r", features="c")
    weights = both.scatter_edges(user_weights)
    raises("segment_reduce by senders expected a graph sharded by rows", edges, both, weights)
