"""Transforms against dense NumPy and against PyTorch Geometric."""

import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, batch, transform
from jaxgnn.graph._build import csr as _csr
from tests.support.strategies import dense_adjacency, edge_lists, examples

FEW = examples(25)


@st.composite
def weighted_graphs(draw, *, square=True):
    """A graph, weights in its edge order, and the same as the user gave them."""
    edges = draw(edge_lists(square=square))
    graph = edges.graph()
    columns = draw(st.sampled_from([(), (2,)]))
    seed = draw(st.integers(0, 999))
    user = np.random.default_rng(seed).uniform(0.5, 2.0, (edges.senders.size, *columns))
    user = user.astype(np.float32)
    return graph, user[np.asarray(graph.edge_permutation)], edges, user


def ends(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(graph.senders), _csr.row_ids(np.asarray(graph.row_offsets))


def rows(graph: Graph, weights) -> list[tuple]:
    """The edges with their weights, sorted: for comparison whatever the order of equal edges."""
    senders, receivers = ends(graph)
    weights = np.asarray(weights)
    return sorted(zip(receivers.tolist(), senders.tolist(), weights.tolist(), strict=True))


def check_user_edges(before: Graph, after: Graph, edges) -> None:
    """`edge_permutation` still names the user's edges, -1 those that were added."""
    senders, receivers = ends(after)
    users = np.asarray(after.edge_permutation)
    own = users >= 0
    np.testing.assert_array_equal(edges.senders[users[own]], senders[own])
    np.testing.assert_array_equal(edges.receivers[users[own]], receivers[own])
    assert before.is_square == after.is_square
    assert (before.num_senders, before.num_receivers) == (after.num_senders, after.num_receivers)


@FEW
@given(data=weighted_graphs(), fill_value=st.sampled_from([1.0, 0.25]))
def test_add_self_loops(data, fill_value):
    graph, weights, edges, user = data
    looped, new = transform.add_self_loops(graph, weights, fill_value=fill_value)
    check_user_edges(graph, looped, edges)
    nodes = np.arange(graph.num_receivers)
    expected = Graph.from_edges(
        np.concatenate([edges.senders, nodes]),
        np.concatenate([edges.receivers, nodes]),
        num_nodes=nodes.size,
    )
    loops = np.full((nodes.size, *user.shape[1:]), fill_value, np.float32)
    assert rows(looped, new) == rows(
        expected, np.concatenate([user, loops])[np.asarray(expected.edge_permutation)]
    )
    assert transform.add_self_loops(graph)[1] is None
    for add in (transform.add_self_loops, transform.add_remaining_self_loops):
        with pytest.raises(ValueError, match=r"fill_value: expected weights with it, got 0\.25"):
            add(graph, fill_value=0.25)


@FEW
@given(data=weighted_graphs())
def test_add_remaining_self_loops(data):
    graph, weights, edges, user = data
    looped, new = transform.add_remaining_self_loops(graph, weights, fill_value=0.25)
    check_user_edges(graph, looped, edges)
    np.testing.assert_array_equal(looped.self_loops, np.ones(graph.num_receivers))
    senders, receivers = ends(looped)
    last = {int(v): e for e, v in enumerate(edges.senders) if v == edges.receivers[e]}
    for sender, receiver, weight in zip(senders, receivers, np.asarray(new), strict=True):
        if sender == receiver:
            expected = user[last[int(sender)]] if int(sender) in last else 0.25
            np.testing.assert_array_equal(weight, np.broadcast_to(expected, weight.shape))
    others = transform.remove_self_loops(graph, weights)
    assert rows(*transform.remove_self_loops(looped, new)) == rows(*others)


@FEW
@given(data=weighted_graphs())
def test_remove_self_loops(data):
    graph, weights, edges, user = data
    bare, new = transform.remove_self_loops(graph, weights)
    check_user_edges(graph, bare, edges)
    keep = edges.senders != edges.receivers
    expected = Graph.from_edges(
        edges.senders[keep], edges.receivers[keep], num_nodes=graph.num_receivers
    )
    assert rows(bare, new) == rows(expected, user[keep][np.asarray(expected.edge_permutation)])


REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def merged(pairs, user, reduce):
    """Oracle: one weight for each pair (receiver, sender), in order."""
    groups: dict = {}
    for pair, weight in zip(pairs, user.astype(np.float64), strict=True):
        groups.setdefault(pair, []).append(weight)
    return [(pair, REDUCTIONS[reduce](groups[pair], axis=0)) for pair in sorted(groups)]


@FEW
@given(
    data=weighted_graphs(square=None),
    reduce=st.sampled_from(list(REDUCTIONS)),
    undirected=st.booleans(),
)
def test_coalesce_and_to_undirected(data, reduce, undirected):
    graph, weights, edges, user = data
    pairs = list(zip(edges.receivers.tolist(), edges.senders.tolist(), strict=True))
    if undirected and graph.is_square:
        result, new = transform.to_undirected(graph, weights, reduce=reduce)
        pairs, user = pairs + [pair[::-1] for pair in pairs], np.concatenate([user, user])
        assert result.transpose_receivers is result.senders
        assert transform.to_undirected(graph)[1] is None
    else:
        result, new = transform.coalesce(graph, weights, reduce=reduce)
        check_user_edges(graph, result, edges)
        assert transform.coalesce(graph)[1] is None
    expected = merged(pairs, user, reduce)
    senders, receivers = ends(result)
    assert list(zip(receivers.tolist(), senders.tolist(), strict=True)) == [p for p, _ in expected]
    for weight, (_, value) in zip(np.asarray(new), expected, strict=True):
        np.testing.assert_allclose(weight, value, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_coalesce_sums_narrow_floats_in_float32(dtype):
    graph = Graph.from_edges(np.zeros(1000, int), np.zeros(1000, int))
    _, total = transform.coalesce(graph, jnp.full(1000, 0.5, dtype))
    assert total.dtype == dtype and float(total[0]) == 500.0


def test_coalesce_integers():
    graph = Graph.from_edges([0, 0, 1], [0, 0, 0])
    values = np.array([1, 2, 5], np.int32)
    assert transform.coalesce(graph, values)[1].tolist() == [3, 5]
    np.testing.assert_array_equal(transform.coalesce(graph, values, reduce="mean")[1], [1.5, 5])
    assert transform.coalesce(graph, values > 0)[1].tolist() == [2, 1]
    assert transform.coalesce(graph, values.astype(np.uint8) * 50)[1].tolist() == [150, 250]
    large = np.array([2**31 - 1, 1, 1], np.int32)
    with pytest.raises(ValueError, match="weights: expected results that int32 holds, got"):
        transform.coalesce(graph, large)
    with pytest.raises(ValueError, match="weights: expected results that uint32 holds, got"):
        transform.coalesce(graph, np.array([2**32 - 1, 1, 1], np.uint32))


@pytest.mark.parametrize("merge", [transform.coalesce, transform.to_undirected])
@pytest.mark.parametrize("reduce", ["max", "min", "sum"])
def test_merged_integers_have_the_dtype_of_traced_ones(merge, reduce):
    graph, values = Graph.from_edges([0, 0, 1, 2], [1, 1, 1, 0]), np.array([5, 1, 3, 9])
    for dtype in (np.uint32, np.int32, np.uint8, bool):
        weights = values.astype(dtype)
        if dtype == np.uint32 and reduce != "sum":
            weights += np.uint32(3 * 2**30)
        found = merge(graph, weights, reduce=reduce)[1]
        traced = jax.jit(lambda w: merge(graph, w, reduce=reduce)[1])(weights)
        assert found.dtype == traced.dtype == (np.uint32 if dtype == np.uint32 else np.int32)
        np.testing.assert_array_equal(found, traced)


def test_coalesce_integers_of_64_bits(x64):
    graph, one = Graph.from_edges([0, 0], [0, 0]), Graph.from_edges([0], [0])
    assert transform.coalesce(one, np.array([2**40]))[1].tolist() == [2**40]
    assert transform.to_undirected(graph, np.array([2**40, 1]))[1].tolist() == [2 * (2**40 + 1)]
    found = transform.coalesce(one, np.array([2**63], np.uint64))[1]
    assert found.dtype == np.uint64 and found.tolist() == [2**63]


def gcn_oracle(dense: np.ndarray) -> np.ndarray:
    degrees = dense.sum(axis=1)
    with np.errstate(divide="ignore"):
        scale = np.where(degrees == 0, 0, degrees**-0.5)
    return scale[:, None] * dense * scale[None, :]


@FEW
@given(data=weighted_graphs(), weighted=st.booleans(), loops=st.booleans(), compiled=st.booleans())
def test_gcn_norm(data, weighted, loops, compiled):
    graph, weights, _, _ = data
    weights = weights if weighted else None
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(_csr, "cpu_module", None)
        result, new = transform.gcn_norm(graph, weights, add_self_loops=loops, improved=True)
    if weights is None:
        weights = np.ones(graph.num_edges, np.float32)
    if loops:
        fill_value = 2.0 if weighted else 1.0
        graph, weights = transform.add_remaining_self_loops(graph, weights, fill_value=fill_value)
    assert result.num_edges == graph.num_edges
    before, after = (
        np.asarray(w)[:, None] if w.ndim == 1 else np.asarray(w) for w in (weights, new)
    )
    for column in range(before.shape[1]):
        np.testing.assert_allclose(
            dense_adjacency(result, after[:, column]),
            gcn_oracle(dense_adjacency(graph, before[:, column])),
            rtol=1e-5,
            atol=1e-6,
        )


def test_gcn_norm_by_hand():
    """Directed: both ends are normalized by their in-degree; node 0 has none, so gets 0."""
    graph = Graph.from_edges([0, 0, 1], [1, 2, 2])
    _, weights = transform.gcn_norm(graph, np.array([1.0, 3.0, 1.0]), add_self_loops=False)
    np.testing.assert_allclose(weights, [0, 0, 1 / np.sqrt(1 * 4)], rtol=1e-6)
    looped, weights = transform.gcn_norm(graph, fill_value=3.0)
    np.testing.assert_array_equal(looped.senders, [0, 0, 1, 0, 1, 2])
    degrees = np.array([3.0, 4.0, 5.0])
    expected = np.array([3, 1, 3, 1, 1, 3]) / np.sqrt(
        degrees[np.asarray(looped.senders)] * degrees[np.asarray(looped.receivers)]
    )
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_gcn_norm_negative_degree_is_nan():
    """PyG's rule to the letter: a negative degree has no root."""
    graph = Graph.from_edges([0, 1], [1, 0])
    _, weights = transform.gcn_norm(graph, np.array([-1.0, 1.0]), add_self_loops=False)
    assert np.isnan(np.asarray(weights)).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32])
def test_gcn_norm_dtypes(dtype):
    graph = Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1])
    weights = jnp.array([1, 2, 3, 4], dtype)
    _, exact = transform.gcn_norm(graph, jnp.array([1, 2, 3, 4], jnp.float32))
    _, found = transform.gcn_norm(graph, weights)
    assert found.dtype == (jnp.float32 if dtype == jnp.int32 else dtype)
    np.testing.assert_allclose(
        np.asarray(found, np.float32), exact, rtol=0.01 if found.dtype != jnp.float32 else 1e-7
    )


def test_gcn_norm_float64():
    graph = Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1])
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    assert transform.gcn_norm(graph, weights)[1].dtype == jnp.float32
    with jax.enable_x64(True):
        looped, found = transform.gcn_norm(graph, weights)
        assert found.dtype == jnp.float64
    _, ones = transform.add_remaining_self_loops(graph, weights)
    expected = gcn_oracle(dense_adjacency(looped, ones))
    np.testing.assert_allclose(dense_adjacency(looped, found), expected, rtol=1e-14)


def test_gcn_norm_in_parallel():
    """Enough edges for several threads, compiled and not."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(3000, size=(2, 200_000))
    receivers[:50_000] = 7
    csr = _csr.build(senders, receivers, num_nodes=3100)
    for dtype in (np.float32, np.float64):
        weights = rng.random(200_000).astype(dtype)
        found = _csr.gcn_normalize(csr.row_offsets, csr.senders, weights)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_csr, "cpu_module", None)
            expected = _csr.gcn_normalize(csr.row_offsets, csr.senders, weights)
        assert found.dtype == expected.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype == np.float32 else 1e-14)


@FEW
@given(data=weighted_graphs(square=None))
def test_mean_weights(data):
    graph = data[0]
    weights = transform.mean_weights(graph)
    assert weights.dtype == jnp.float32
    dense = dense_adjacency(graph)
    expected = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(dense_adjacency(graph, weights), expected, rtol=1e-6)


@FEW
@given(data=weighted_graphs(), method=st.sampled_from(["rcm", "degree"]))
def test_reorder(data, method):
    graph, weights, _, user = data
    renumbered, permutation = transform.reorder(graph, method)
    assert sorted(permutation.tolist()) == list(range(graph.num_receivers))
    dense = dense_adjacency(graph)
    np.testing.assert_array_equal(
        dense_adjacency(renumbered), dense[np.ix_(permutation, permutation)]
    )
    if method == "degree":
        assert np.all(np.diff(np.asarray(renumbered.in_degrees)) <= 0)
    # The weights follow, both ways that there are.
    same, moved = transform.permute_nodes(graph, permutation, weights)
    np.testing.assert_array_equal(same.senders, renumbered.senders)
    np.testing.assert_array_equal(moved, renumbered.sort_edge_data(user))


def test_rcm_finds_the_band():
    """A shuffled path comes out with neighbors next to each other."""
    order = np.random.default_rng(0).permutation(200)
    graph = Graph.from_edges(order[:-1], order[1:])
    renumbered, permutation = transform.reorder(graph, "rcm")
    bandwidth = np.abs(np.asarray(renumbered.senders) - np.asarray(renumbered.receivers)).max()
    assert bandwidth == 1
    assert permutation.dtype == np.int32


def test_transforms_without_edge_permutation():
    graph = Graph.from_edges([0, 1], [1, 2]).drop_edge_permutation()
    for result in (
        transform.add_self_loops(graph)[0],
        transform.to_undirected(graph)[0],
        transform.reorder(graph)[0],
    ):
        assert result.edge_permutation is None


@pytest.mark.parametrize("weights", [["a", "b"], [None, None], np.array([1j, 2.5])])
def test_errors_of_weights_that_are_no_real_numbers(weights):
    graph = Graph.from_edges([0, 1], [1, 0], num_nodes=2)
    for merges in (transform.coalesce, transform.to_undirected, transform.gcn_norm):
        with pytest.raises(TypeError, match=r"weights: expected .* numbers, got [<co]"):
            merges(graph, weights)
    if not np.iscomplexobj(weights):
        with pytest.raises(TypeError, match="weights: expected an array of numbers, got"):
            transform.add_self_loops(graph, weights)
    else:
        assert transform.remove_self_loops(graph, weights)[1].tolist() == [1j, 2.5]
        with pytest.raises(TypeError, match=r"^edge_data: expected real numbers where"):
            Graph.from_edges([0, 1], [1, 0], undirected=True, edge_data=weights)


def test_errors():
    graph = Graph.from_edges([0, 1], [1, 0])
    rectangular = Graph.from_edges([0], [0], num_senders=2, num_receivers=2)
    for function in (
        transform.add_self_loops,
        transform.add_remaining_self_loops,
        transform.remove_self_loops,
        transform.to_undirected,
        transform.gcn_norm,
        transform.reorder,
    ):
        with pytest.raises(ValueError, match="graph: expected a square graph, got the rect"):
            function(rectangular)
        with pytest.raises(TypeError, match=r"graph: expected a jaxgnn.Graph, got ndarray"):
            function(np.eye(2))
    with pytest.raises(ValueError, match=r"weights: expected one for each of the 2 .* \(3,\)"):
        transform.coalesce(graph, np.ones(3))
    with pytest.raises(ValueError, match=r"reduce: expected one of .* got 'mul'"):
        transform.coalesce(graph, reduce="mul")  # pyright: ignore
    for method in ("hub", np.arange(2)):
        with pytest.raises(ValueError, match="method: expected one of 'rcm', 'degree', got"):
            transform.reorder(graph, method)  # pyright: ignore
    with pytest.raises(ValueError, match="permutation: expected each of 0 to 1 once"):
        transform.permute_nodes(graph, [0, 0])
    with pytest.raises(ValueError, match=r"fill_value: expected an integer .* int32, got 0.5"):
        transform.add_self_loops(graph, np.ones(2, np.int32), fill_value=0.5)
    with pytest.raises(TypeError, match=r"graph: expected a jaxgnn.Graph, got int"):
        transform.mean_weights(5)  # pyright: ignore
    for value, dtype in ((np.nan, np.int32), (np.inf, np.int32), (-1, np.uint8), (2, bool)):
        with pytest.raises(ValueError, match=rf"fill_value: expected .* got {value}"):
            transform.add_self_loops(graph, np.ones(2, dtype), fill_value=value)
    with pytest.raises(TypeError, match="fill_value: expected a number, got '1'"):
        transform.add_self_loops(graph, np.ones(2), fill_value="1")  # pyright: ignore
    with pytest.raises(ValueError, match="fill_value: expected add_self_loops=True with it, got 9"):
        transform.gcn_norm(graph, np.ones(2), add_self_loops=False, fill_value=9)
    for option in ("improved", "add_self_loops"):
        with pytest.raises(TypeError, match=f"{option}: expected True or False, got 2"):
            transform.gcn_norm(graph, **{option: 2})  # pyright: ignore
    with pytest.raises(TypeError, match=r"transforms run outside jax.jit"):
        jax.jit(lambda g: transform.gcn_norm(g)[1])(graph)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("weights", transform.add_self_loops),
        ("weights", transform.gcn_norm),
        ("weights", lambda graph, values: graph.to_scipy(values)),
        ("weights", lambda graph, values: transform.laplacian_pe(graph, 1, values)),
        ("nodes", transform.subgraph),
        ("points", lambda _, values: transform.radius_graph(values, 1.0)),
        ("positions", transform.distance),
    ],
)
def test_lists_of_different_lengths(name, call):
    with pytest.raises(ValueError, match=f"{name}: expected an array, got lists of different"):
        call(Graph.from_edges([0, 1], [1, 0]), [[1], [1, 2]])


def test_traced_nodes():
    graph = Graph.from_edges([0, 1], [1, 0])
    with pytest.raises(TypeError, match=r"nodes: a graph is built of indices outside jax\.jit"):
        jax.jit(lambda nodes: transform.subgraph(graph, nodes)[0].senders)(jnp.arange(2))


def transforms_of(permutation):
    return [
        transform.gcn_norm,
        lambda g, w: transform.gcn_norm(g, w, improved=True),
        lambda g, w: transform.gcn_norm(g, w, add_self_loops=False),
        transform.add_self_loops,
        lambda g, w: transform.add_remaining_self_loops(g, w, fill_value=3.0),
        transform.remove_self_loops,
        *(
            lambda g, w, merge=merge, reduce=reduce: merge(g, w, reduce=reduce)
            for merge in (transform.coalesce, transform.to_undirected)
            for reduce in ("sum", "mean", "max", "min")
        ),
        lambda g, w: transform.permute_nodes(g, permutation, w),
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("columns", [(), (2,)])
def test_transforms_are_differentiable_in_the_weights(x64, columns):
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(7, size=(2, 30))
    graph, weights = Graph.from_edges(
        senders, receivers, num_nodes=8, edge_data=rng.random((30, *columns))
    )
    tangent = rng.standard_normal(weights.shape)
    for function in transforms_of(rng.permutation(8)):

        def values(w, function=function):
            return function(graph, w)[1]

        @jax.jit
        def compiled(w, tangent, values=values):
            step = 1e-6 * tangent
            value, slope = jax.jvp(values, (w,), (tangent,))
            difference = (values(w + step) - values(w - step)) / 2e-6
            return values(w), value, slope, difference, jax.vjp(values, w)[1](slope)[0]

        expected = values(weights)
        jitted, value, slope, difference, back = compiled(weights, tangent)
        np.testing.assert_allclose(jitted, expected, rtol=1e-12)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(slope, difference, rtol=0, atol=1e-7 * np.abs(slope).max())
        np.testing.assert_allclose((back * tangent).sum(), (slope**2).sum(), rtol=1e-12)


def test_gcn_norm_has_finite_derivatives_at_degree_0(x64):
    graph = Graph.from_edges([0], [1], num_nodes=3)
    gradient = jax.grad(lambda w: transform.gcn_norm(graph, w, add_self_loops=False)[1].sum())(
        jnp.ones(1)
    )
    assert np.isfinite(gradient).all()


def test_gcn_norm_is_pygs_with_its_gradient(x64):
    torch = pytest.importorskip("torch")
    pyg = pytest.importorskip("torch_geometric.nn.conv.gcn_conv")
    rng = np.random.default_rng(1)
    index, weights = rng.integers(9, size=(2, 40)), rng.random(40)
    index = np.unique(index, axis=1)
    index, weights = index[:, index[0] != index[1]], weights[: (index[0] != index[1]).sum()]
    graph, ours = Graph.from_edge_index(index, num_nodes=9, edge_data=weights)
    scale = rng.standard_normal((9, 9))

    def loss(w):
        looped, normalized = transform.gcn_norm(graph, w)
        return jnp.sum(normalized * scale[looped.senders, looped.receivers])

    theirs = torch.tensor(weights, requires_grad=True)
    new, normalized = pyg.gcn_norm(torch.from_numpy(index), theirs, 9)
    total = (normalized * torch.from_numpy(scale)[new[0], new[1]]).sum()
    total.backward()
    value, gradient = jax.value_and_grad(loss)(ours)
    np.testing.assert_allclose(value, total.item(), rtol=1e-13)
    np.testing.assert_allclose(graph.unsort_edge_data(gradient), theirs.grad, atol=1e-13)


# PyTorch Geometric.


def sorted_edges(index, weights):
    """PyG's answer in our edge order."""
    index, weights = index.numpy(), weights.numpy()
    order = np.lexsort((index[0], index[1]))
    return index[:, order], weights[order]


def compare_with_pyg(senders, receivers, num_nodes, user):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_geometric")
    from torch_geometric import utils
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    index, values = torch.tensor(np.stack([senders, receivers])), torch.tensor(user)
    graph = Graph.from_edges(senders, receivers, num_nodes=num_nodes)
    weights = graph.sort_edge_data(user)

    def check(ours, theirs):
        expected_index, expected = sorted_edges(*theirs)
        np.testing.assert_array_equal(np.stack(ends(ours[0])), expected_index)
        np.testing.assert_allclose(ours[1], expected, rtol=2e-6)

    for improved in (False, True):
        for loops in (False, True):
            options = {"improved": improved, "add_self_loops": loops}
            theirs = gcn_norm(index, values, num_nodes, **options)
            check(transform.gcn_norm(graph, weights, **options), theirs)
            theirs = gcn_norm(index, None, num_nodes, dtype=torch.float32, **options)
            ours = transform.gcn_norm(graph, **options)
            check(ours, theirs)
    check(
        transform.add_remaining_self_loops(graph, weights, fill_value=0.5),
        utils.add_remaining_self_loops(index, values, 0.5, num_nodes),
    )
    for reduce in REDUCTIONS:
        check(
            transform.to_undirected(graph, weights, reduce=reduce),
            utils.to_undirected(index, values, num_nodes, reduce),
        )
        check(
            transform.coalesce(graph, weights, reduce=reduce),
            utils.coalesce(index, values, num_nodes, reduce),
        )


@FEW
@given(edges=edge_lists(square=True), seed=st.integers(0, 999))
def test_against_pyg(edges, seed):
    size = edges.senders.size
    user = np.random.default_rng(seed).uniform(0.5, 2.0, size).astype(np.float32)
    senders, receivers = edges.senders.astype(np.int64), edges.receivers.astype(np.int64)
    compare_with_pyg(senders, receivers, edges.num_receivers, user)


def test_against_pyg_on_a_directed_graph(data_directory):
    path = data_directory / "p2p_gnutella31" / "p2p-Gnutella31.mtx.gz"
    with gzip.open(path) as file:
        matrix = scipy.io.mmread(file, spmatrix=False)
    senders, receivers = matrix.row.astype(np.int64), matrix.col.astype(np.int64)
    user = np.random.default_rng(0).uniform(0.5, 2.0, senders.size).astype(np.float32)
    compare_with_pyg(senders, receivers, matrix.shape[0], user)


@pytest.mark.parametrize(
    ("data", "fill_value", "dtype"),
    [([1, 2, 3], 2**31, "int32"), ([1, 2, 3], 2**40, "int32"), ([1.0, 2, 3], 1e300, "float32")],
)
def test_fill_values_beyond_the_dtype(data, fill_value, dtype):
    """Of 64-bit arrays on the host JAX makes 32 bits."""
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    with pytest.raises(ValueError, match=f"fill_value: expected .* within {dtype}, got"):
        transform.add_self_loops(graph, np.asarray(data), fill_value=fill_value)
    padded = batch.pad(graph, num_nodes=5)
    with pytest.raises(ValueError, match=f"fill_value: expected .* within {dtype}, got"):
        batch.union_node_data(padded, [np.asarray(data)], fill_value=fill_value)
