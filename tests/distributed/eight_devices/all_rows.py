"""Parts that need nearly all rows of each other, and send them without picking."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import Graph, gat_attention, maxk_spmm, spmm
from jaxgnn.distributed import partition, shard
from jaxgnn.nn import MaxK
from tests.distributed.eight_devices.layouts import waits_for_exchange
from tests.distributed.eight_devices.support import close, collectives, mesh, raises
from tests.support.sharded_steps import all_to_all_bytes


def check_all_rows(parts=4):
    """Values, gradients and collectives are those of one device; owned rows are never rounded."""
    rng = np.random.default_rng(3)
    edges = rng.integers(0, 61, (2, 1500))
    edges[0, :200] = edges[1, :200]  # self-loops
    graph = Graph.from_edges(*edges, num_nodes=61)
    owner = rng.permutation(np.arange(61, dtype=np.int32) % parts)
    sparser = Graph.from_edges(*edges[:, :300], num_nodes=61)
    owners = types.SimpleNamespace(parts=parts, owner=owner)
    split = functools.partial(shard, mesh=mesh(parts), rows="x", partition=owners)
    assert split(sparser).sends is not None
    x = rng.standard_normal((61, 8)).astype(np.float32)
    score = rng.standard_normal((61, 1)).astype(np.float32)

    def run(graph, x, score):
        def outputs(x, score):
            sparse = MaxK(3).sparse(x, graph=graph)
            attended = gat_attention(graph, x[:, None, :], score, score, self_loops=True)
            return spmm(graph, x, reduce="mean"), maxk_spmm(graph, sparse), attended

        out, pullback = jax.vjp(outputs, x, score)
        return out, pullback(jax.tree.map(jnp.sin, out))

    run = jax.jit(run)
    want = jax.tree.leaves(run(graph, x, score))
    in_one, in_two = split(graph, overlap=False), split(graph, overlap=True)
    for sharded in (in_one, dataclasses.replace(in_two, graph=in_one.graph)):
        assert sharded.sends is None and sharded.pair_rows == sharded.num_senders // parts
        assert "all rows of each part by one all_to_all" in sharded.explain()
        places = sharded.scatter(x), sharded.scatter(score)
        for got, expected in zip(jax.tree.leaves(run(sharded, *places)), want, strict=True):
            close(sharded.gather(got), expected)

    def tangent(graph, x):
        return jax.jvp(functools.partial(spmm, graph), (x,), (jnp.cos(x),))[1]

    for sharded in (in_one, in_two):
        close(sharded.gather(jax.jit(tangent)(sharded, sharded.scatter(x))), tangent(graph, x))
        loss = jax.grad(lambda x, graph: jnp.sum(spmm(graph, x) ** 2))
        compiled = jax.jit(loss).lower(sharded.scatter(x), sharded).compile()
        assert collectives(compiled) == {"all-to-all": 2}
        if jax.default_backend() == "cpu":  # a GPU's program has its collectives in two halves
            bytes_of_rows = (parts - 1) * sharded.pair_rows * 8 * 4
            assert all_to_all_bytes(compiled) == 2 * bytes_of_rows
    # No kernel packs: the only product waits for the rows, of two graphs the halo's alone.
    for sharded, expected in ((in_one, [True]), (in_two, [False, True])):
        if jax.default_backend() != "cpu":
            break
        text = jax.jit(spmm).lower(sharded, sharded.scatter(x)).compile().as_text()
        assert sorted(waits_for_exchange(text)) == expected, text
    _check_rounding(split, graph, x, owner)


def _check_rounding(split, graph, x, owner):
    """On the wire alone: with weights of 0 on what crosses, nothing is rounded, either way."""
    senders = np.asarray(graph.senders)
    receivers = np.repeat(np.arange(graph.num_receivers), np.diff(np.asarray(graph.row_offsets)))
    within = (owner[senders] == owner[receivers]).astype(np.float32)
    rounded = split(graph, exchange_dtype="bfloat16")
    assert rounded.sends is None

    def both(graph, x, weights):
        out, pullback = jax.vjp(lambda x: spmm(graph, x, weights), x)
        return out, pullback(out)[0]

    want = both(graph, x, within)
    places = rounded.scatter(x), rounded.scatter_edges(within, in_graph_order=True)
    for got, expected in zip(both(rounded, *places), want, strict=True):
        close(rounded.gather(got), expected)


def check_dealt_windows():
    """Parts of whole windows: the entries are those of the whole graph's, and no more."""
    rng = np.random.default_rng(1)
    senders, receivers = rng.integers(0, 40, (2, 18000))
    group = rng.integers(0, 32, 18000) * 40  # of nodes that share senders
    graph = Graph.from_edges(senders + group, receivers + group, num_nodes=1280, deduplicate=True)
    graph = graph.with_windows(width=1024)  # of 16 receivers
    split = partition(graph, 4, method="windows")
    rows = np.asarray(graph.windows.rows)
    owners = np.append(split.owner, -1)[rows]
    assert ((owners == owners.max(axis=1, keepdims=True)) | (rows < 0)).all()
    sharded = shard(graph, mesh(4), rows="x", partition="windows")
    masks = np.asarray(sharded.graph.windows.masks)
    entries = masks.any(axis=-1).sum(axis=1)
    assert entries.sum() == graph.windows.senders.size
    work = entries + np.bincount(split.owner, np.diff(np.asarray(graph.row_offsets)))
    assert work.max() <= 1.01 * work.mean() and split.statistics.node_balance == 1
    x = rng.standard_normal((1280, 16)).astype(np.float32)
    out = maxk_spmm(sharded, MaxK(4).sparse(sharded.scatter(x), graph=sharded))
    close(sharded.gather(out), maxk_spmm(graph, MaxK(4).sparse(x)))
    raises("graph.with_windows()", partition, Graph.from_edges([0], [1]), 2, method="windows")
