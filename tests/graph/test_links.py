"""Splits of links and negatives: free of leaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, negative_edges, transform
from jaxgnn.graph._build import csr
from jaxgnn.graph._transforms.links import _decode, _encode
from tests.support.strategies import edge_lists, examples

SHARES = st.sampled_from([0.0, 0.1, 0.3, 0.45])


def ends(graph: Graph) -> list[tuple[int, int]]:
    rows = csr.row_ids(np.asarray(graph.row_offsets))
    return list(zip(np.asarray(graph.senders).tolist(), rows.tolist(), strict=True))


def links(part, label) -> list[tuple[int, int]]:
    chosen = part.labels == label
    return list(zip(part.senders[chosen].tolist(), part.receivers[chosen].tolist(), strict=True))


def pairs(edges) -> list[tuple[int, int]]:
    return [(min(edge), max(edge)) for edge in edges]


def check_split(graph: Graph, split, val: float, test: float, disjoint: float) -> None:
    whole = {edge for edge in ends(graph) if edge[0] != edge[1]}
    joined = set(pairs(whole))
    loops = [edge for edge in ends(graph) if edge[0] == edge[1]]
    positive = [set(pairs(links(part, 1))) for part in split]
    assert [len(positive[1]), len(positive[2])] == [round(s * len(joined)) for s in (val, test)]
    if disjoint:
        rest = len(joined) - len(positive[1]) - len(positive[2])
        assert len(positive[0]) == round(disjoint * rest)
    # Each pair, in both directions and all its repetitions, in one part alone.
    messages = [ends(part.graph) for part in split]
    assert not set(pairs(messages[0])) & (positive[1] | positive[2])
    assert not set(pairs(messages[1])) & (positive[1] | positive[2])
    assert not set(pairs(messages[2])) & positive[2]
    assert not positive[1] & positive[2]
    everything = [*messages[2], *(e for e in ends(graph) if pairs([e])[0] in positive[2])]
    assert sorted(everything) == sorted(ends(graph))
    assert set(messages[1]) | {e for e in whole if pairs([e])[0] in positive[1]} == set(messages[2])
    if disjoint:
        assert not set(pairs(messages[0])) & positive[0]
    else:
        assert split.train.graph is split.val.graph
        assert positive[0] == set(pairs(messages[0])) - set(pairs(loops))
    for part in split:
        found = links(part, 1)
        assert len(set(found)) == len(found) and set(found) <= whole
        # The edges of a directed graph are links each, those of a symmetric one once a pair.
        of_pair = sum(pairs([edge])[0] in set(pairs(found)) for edge in whole)
        assert len(found) == (len(set(pairs(found))) if graph.symmetric else of_pair)
        kept = np.asarray(ends(graph)).reshape(-1, 2)[part.edges]
        np.testing.assert_array_equal(kept, np.asarray(ends(part.graph)).reshape(-1, 2))
        assert [edge for edge in ends(part.graph) if edge[0] == edge[1]] == loops
        permutation = np.asarray(graph.edge_permutation)[part.edges]
        np.testing.assert_array_equal(part.graph.edge_permutation, permutation)
        part.graph.validate()
    # Negatives: no edge in either direction, none twice, none in two parts, one a positive.
    assert not links(split.train, 0)
    negative = [pairs(links(part, 0)) for part in split[1:]]
    drawn = negative[0] + negative[1]
    assert len(drawn) == len(set(drawn)) and not set(drawn) & joined
    assert all(low < high for low, high in drawn)
    for part, found in zip(split[1:], negative, strict=True):
        assert len(found) == len(links(part, 1))


@examples(40)
@given(
    edges=edge_lists(square=True),
    undirected=st.booleans(),
    val=SHARES,
    test=SHARES,
    disjoint=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 99),
)
def test_no_link_leaks(edges, undirected, val, test, disjoint, seed):
    graph = edges.graph()
    if undirected:
        graph, _ = transform.to_undirected(graph)
    options = {"seed": seed, "disjoint_train": disjoint}
    proper = {edge for edge in ends(graph) if edge[0] != edge[1]}
    free = graph.num_nodes * (graph.num_nodes - 1) // 2 - len(set(pairs(proper)))
    try:
        split = transform.link_split(graph, val, test, **options)
    except ValueError as error:
        assert "too dense" in str(error) and free < len(proper)
        return
    check_split(graph, split, val, test, disjoint)
    again = transform.link_split(graph, val, test, **options)
    for one, other in zip(split, again, strict=True):
        np.testing.assert_array_equal(one.senders, other.senders)


def test_pairs_are_numbered_up_to_the_largest_ids():
    one = np.array([0, 1, 5, 2**31 - 2, 0, 2**31 - 3], np.int32)
    other = np.array([1, 2, 0, 2**31 - 1, 2**31 - 1, 2**31 - 2], np.int32)
    codes = _encode(one, other)
    lower, higher = _decode(codes)
    np.testing.assert_array_equal(lower, np.minimum(one, other))
    np.testing.assert_array_equal(higher, np.maximum(one, other))
    np.testing.assert_array_equal(_encode(*_decode(np.arange(300))), np.arange(300))


def test_negatives_are_uniform_over_the_free_pairs():
    graph = Graph.from_edges([0, 1, 2, 3, 4], [1, 2, 3, 4, 5], num_nodes=6, undirected=True)
    counts: dict = {}
    for seed in range(300):
        for pair in links(transform.link_split(graph, 0.4, 0.2, seed=seed).val, 0):
            counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 10  # 15 pairs, 5 with an edge
    assert min(counts.values()) >= 30 and max(counts.values()) <= 95  # 60 each, deviation 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.5, 0.5), "val, test: expected shares that sum to less than 1, got 0.5, 0.5"),
        ((-0.1, 0.5), "val: expected a finite number from 0 to less than 1, got -0.1"),
        ((0.3, 0.3), "expected at least 4 pairs of nodes without an edge.*got 0: it is too dense"),
    ],
)
def test_refusals_of_shares_and_of_dense_graphs(arguments, message):
    complete = Graph.from_edges([0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3], undirected=True)
    with pytest.raises(ValueError, match=message):
        transform.link_split(complete, *arguments, seed=0)


def random_graph(square: bool) -> Graph:
    rng = np.random.default_rng(3)
    senders, receivers = rng.integers(0, 12, 60), rng.integers(0, 12 if square else 9, 60)
    if square:
        return Graph.from_edges(senders, receivers, num_nodes=12)
    return Graph.from_edges(senders, receivers, num_senders=12, num_receivers=9)


@pytest.mark.parametrize("square", [True, False])
def test_negative_edges_are_none_and_anew_for_each_key(square):
    graph = random_graph(square)
    edges, num = set(ends(graph)), 4000

    @jax.jit
    def draw(graph, key):
        return {
            "uniform": negative_edges(graph, num, key),
            "structured": negative_edges(graph, num, key, "structured"),
            "degree": negative_edges(graph, num, key, "degree"),
            "each": negative_edges(graph, graph.num_edges, key, "structured"),
        }

    drawn, other = draw(graph, jax.random.key(0)), draw(graph, jax.random.key(1))
    for name, found in drawn.items():
        senders, receivers, mask = map(np.asarray, found)
        assert mask.all() and senders.dtype == np.int32, name
        got = set(zip(senders.tolist(), receivers.tolist(), strict=True))
        assert not got & edges, name
        assert not square or (senders != receivers).all()
        assert (np.asarray(other[name].receivers) != receivers).mean() > 0.3
    free = {
        (j, i)
        for j in range(graph.num_senders)
        for i in range(graph.num_receivers)
        if (j, i) not in edges and not (square and i == j)
    }
    # Uniform over all that are free.
    pairs_drawn, counts = np.unique(np.stack(drawn["uniform"][:2]).T, axis=0, return_counts=True)
    assert len(pairs_drawn) == len(free)
    expected = num / len(free)
    assert ((counts - expected) ** 2 / expected).sum() < 1.5 * len(free)
    # By an edge's sender: in its place, or as often as it has edges.
    np.testing.assert_array_equal(drawn["each"].senders, graph.senders)
    out = np.bincount(np.asarray(graph.senders), minlength=12) / graph.num_edges
    shares = np.bincount(np.asarray(drawn["structured"].senders), minlength=12) / num
    np.testing.assert_allclose(shares, out, atol=0.04)
    # By degree: the two degrees' product, among the pairs that are free.
    degrees = np.diff(np.asarray(graph.row_offsets)) / graph.num_edges
    product = np.zeros((12, graph.num_receivers))
    for j, i in free:
        product[j, i] = out[j] * degrees[i]
    got = np.zeros_like(product)
    np.add.at(got, (drawn["degree"].senders, drawn["degree"].receivers), 1 / num)
    np.testing.assert_allclose(got, product / product.sum(), atol=0.012)


def test_negative_edges_of_full_rows_and_of_no_edges():
    star = Graph.from_edges([0, 0, 0, 1], [1, 2, 0, 0], num_nodes=3)
    found = negative_edges(star, star.num_edges, jax.random.key(0), "structured")
    np.testing.assert_array_equal(found.mask, np.asarray(star.senders) != 0)
    empty = Graph.from_edges([], [], num_nodes=3)
    batch = jax.vmap(lambda key: negative_edges(empty, 50, key))(
        jax.random.split(jax.random.key(0), 2)
    )
    assert batch.mask.all() and (batch.senders != batch.receivers).all()
    assert set(np.asarray(batch.senders).ravel()) == {0, 1, 2}
    assert (
        negative_edges(Graph.from_edges([], [], num_nodes=0), 0, jax.random.key(0)).mask.size == 0
    )
    with pytest.raises(ValueError, match="graph: expected edges with method='degree', got none"):
        negative_edges(empty, 1, jax.random.key(0), "degree")
    with pytest.raises(ValueError, match="graph: expected nodes that form a pair"):
        negative_edges(Graph.from_edges([], [], num_nodes=1), 1, jax.random.key(0))
    with pytest.raises(ValueError, match="method: expected one of 'uniform', 'structured'"):
        negative_edges(empty, 1, jax.random.key(0), "random")
    assert jnp.all(negative_edges(random_graph(False), 5, jax.random.key(2)).receivers < 9)
