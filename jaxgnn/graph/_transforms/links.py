"""`link_split`: the edges of a graph as links to learn, to select on and to test."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxgnn._core import checks
from jaxgnn.graph._build import csr
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._transforms.host_edges import host_edges, rebuild

_PASSED, _LEARNED, _VAL, _TEST = range(4)


class LinkPart(NamedTuple):
    """Links to score, and the graph that a model may see meanwhile.

    Attributes:
        graph: the edges to pass messages over.
        edges: the place of each of them in the graph that was split: `weights[edges]` are its
            weights.
        senders, receivers: the ends of the links: positives first, then as many negatives; none of
            these for training, which draws its own (`negative_edges`).
        labels: 1 and 0.
    """

    graph: Graph
    edges: Int[np.ndarray, " num_edges"]
    senders: Int[np.ndarray, " links"]
    receivers: Int[np.ndarray, " links"]
    labels: Float[np.ndarray, " links"]


class LinkSplit(NamedTuple):
    """What `link_split` returns: a `LinkPart` each; `val.graph` has all edges of training."""

    train: LinkPart
    val: LinkPart
    test: LinkPart


def link_split(
    graph: Graph, val: float, test: float, *, seed: int, disjoint_train: float = 0.0
) -> LinkSplit:
    r"""Splits the edges into links to learn from, to select on, and to test on.

    - Pairs of nodes are split, not edges: both directions of an edge, and its repetitions, are in
      one part. A symmetric graph's links are listed once, from the lower node to the higher.
    - Messages pass over the training edges in training and validation, and over those and the
      validation's in the test. Self-loops are edges of all three, and never links.
    - Validation and test get a negative for each positive, drawn uniformly without replacement from
      the pairs that no edge of the whole graph joins, in either direction. No pair is in both.
    - Training gets none: `negative_edges(split.val.graph, ...)` draws new ones in each step, and
      knows the training edges alone.

    It runs on the host, in O(E log E). Deterministic in `seed`.

    Args:
        graph: a square graph.
        val, test: shares of the pairs that edges join, from 0; together less than 1.
        seed: of the split.
        disjoint_train: share of the training pairs that are links and pass no messages in training;
            0: all are links and pass messages.

    Raises:
        TypeError: no `Graph`, or one that is traced.
        ValueError: a rectangular graph, shares out of range, or a graph that is too dense: with
            fewer pairs of nodes without an edge than negatives.

    Source: the parts are those of PyG's `RandomLinkSplit`.
    """
    senders, receivers, _ = host_edges(graph, None, square=True)
    val, test = checks.number(val, "val", 0, 1), checks.number(test, "test", 0, 1)
    disjoint_train = checks.number(disjoint_train, "disjoint_train", 0, 1)
    if val + test >= 1:
        raise ValueError(f"val, test: expected shares that sum to less than 1, got {val}, {test}")
    rng = np.random.default_rng(checks.integer(seed, "seed", 0, 2**63 - 1))
    proper = np.flatnonzero(senders != receivers)
    codes, pair = np.unique(_encode(senders[proper], receivers[proper]), return_inverse=True)
    part_of_pair = _draw_parts(codes.size, val, test, disjoint_train, rng)
    part = np.full(senders.size, _PASSED, np.int8)
    part[proper] = part_of_pair[pair]
    # The links: an edge of each pair and direction, or of a symmetric graph of each pair.
    listed = senders != receivers
    listed &= csr.first_of_equal(senders, receivers)
    if graph.symmetric:
        listed &= senders < receivers
    learned = _LEARNED if disjoint_train else _PASSED
    positives = [np.flatnonzero(listed & (part == number)) for number in (learned, _VAL, _TEST)]
    ends = _draw_negatives(graph, codes, positives[1].size + positives[2].size, rng)
    counts = [0, positives[1].size, positives[2].size]
    parts, first = [], 0
    train_graph, train_edges = _kept(graph, senders, receivers, part <= _LEARNED)
    for number, (own, count) in enumerate(zip(positives, counts, strict=True)):
        if number == 1 or (number == 0 and not disjoint_train):
            passed, edges = train_graph, train_edges
        else:
            passed, edges = _kept(graph, senders, receivers, part <= (_PASSED, 0, _VAL)[number])
        parts.append(
            LinkPart(
                passed,
                edges,
                np.concatenate([senders[own], ends[0][first : first + count]]),
                np.concatenate([receivers[own], ends[1][first : first + count]]),
                np.concatenate([np.ones(own.size, np.float32), np.zeros(count, np.float32)]),
            )
        )
        first += count
    return LinkSplit(*parts)


def _draw_parts(
    num_pairs: int, val: float, test: float, disjoint_train: float, rng: np.random.Generator
) -> Int[np.ndarray, " pairs"]:
    parts = np.full(num_pairs, _PASSED, np.int8)
    order = rng.permutation(num_pairs)
    num_val, num_test = round(val * num_pairs), round(test * num_pairs)
    num_learned = round(disjoint_train * (num_pairs - num_val - num_test))
    parts[order[:num_val]] = _VAL
    parts[order[num_val : num_val + num_test]] = _TEST
    parts[order[num_val + num_test :][:num_learned]] = _LEARNED
    return parts


def _draw_negatives(
    graph: Graph, codes: Int[np.ndarray, " pairs"], count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of nodes without an edge, none twice, in one direction each."""
    n = graph.num_receivers
    free = n * (n - 1) // 2 - codes.size
    if count > free:
        raise ValueError(
            f"graph: expected at least {count} pairs of nodes without an edge, for the negatives "
            f"of validation and test, got {free}: it is too dense for these shares"
        )
    ranks = rng.choice(free, count, replace=False) if count else np.zeros(0, np.int64)
    # codes[i] - i free pairs come before the i-th pair with an edge.
    before = np.searchsorted(codes - np.arange(codes.size), ranks, side="right")
    lower, higher = _decode(ranks + before)
    if graph.symmetric:
        return lower, higher
    turned = rng.random(count) < 0.5
    return np.where(turned, higher, lower), np.where(turned, lower, higher)


def _encode(one: np.ndarray, other: np.ndarray) -> Int[np.ndarray, " pairs"]:
    """Numbers the pairs of two nodes: 0 and 1, 0 and 2, 1 and 2, 0 and 3, ..."""
    higher, lower = np.maximum(one, other).astype(np.int64), np.minimum(one, other)
    return higher * (higher - 1) // 2 + lower


def _decode(codes: Int[np.ndarray, " pairs"]) -> tuple[np.ndarray, np.ndarray]:
    higher = ((1 + np.sqrt(1 + 8 * codes.astype(np.float64))) / 2).astype(np.int64)
    higher -= higher * (higher - 1) // 2 > codes  # the root is rounded
    higher += higher * (higher + 1) // 2 <= codes
    lower = codes - higher * (higher - 1) // 2
    return lower.astype(np.int32), higher.astype(np.int32)


def _kept(
    graph: Graph, senders: np.ndarray, receivers: np.ndarray, keep: np.ndarray
) -> tuple[Graph, np.ndarray]:
    """The graph of some of the edges, between the same nodes, and which these are."""
    edges = np.flatnonzero(keep)
    kept, _ = rebuild(graph, senders[edges], receivers[edges], None, edges)
    return kept, edges.astype(kept.row_offsets.dtype)
