"""Parts of graphs, and features by their structure and positions: against NumPy and PyG."""

import jax
import numpy as np
import pytest

from jaxgnn import Graph, transform


def some(seed=0, n=40, edges=70, undirected=True):
    senders, receivers = np.random.default_rng(seed).integers(0, n, (2, edges))
    return Graph.from_edges(senders, receivers, num_nodes=n, undirected=undirected)


def ends(graph):
    receivers = np.repeat(np.arange(graph.num_receivers), np.diff(np.asarray(graph.row_offsets)))
    return np.asarray(graph.senders), receivers


EMPTY = Graph.from_edges(np.zeros(0, int), np.zeros(0, int), num_nodes=0)
ISOLATED = Graph.from_edges([0], [0], num_nodes=3)


def test_subgraph():
    graph = some(undirected=False)
    nodes = np.random.default_rng(1).permutation(40)[:25]
    weights = np.arange(graph.num_edges, dtype=np.float32)
    part, kept = transform.subgraph(graph, nodes, weights)
    dense = np.zeros((40, 40))
    np.add.at(dense, ends(graph), weights + 1)
    small = np.zeros((25, 25))
    np.add.at(small, ends(part), np.asarray(kept) + 1)
    np.testing.assert_array_equal(small, dense[np.ix_(nodes, nodes)])
    user_senders = np.asarray(graph.senders)[np.argsort(np.asarray(graph.edge_permutation))]
    old = user_senders[np.asarray(part.edge_permutation)]
    np.testing.assert_array_equal(nodes[np.asarray(part.senders)], old)
    mask = np.zeros(40, bool)
    mask[nodes] = True
    masked, _ = transform.subgraph(graph, mask)
    np.testing.assert_array_equal(
        masked.row_offsets, transform.subgraph(graph, np.sort(nodes))[0].row_offsets
    )
    assert transform.subgraph(EMPTY, np.zeros(0, int))[0].num_nodes == 0
    assert transform.subgraph(ISOLATED, [2])[0].num_edges == 0
    for bad, message in (([0, 0], "one of them twice"), ([40], "from 0 to 39, got 40 to 40")):
        with pytest.raises(ValueError, match=message):
            transform.subgraph(graph, bad)


def test_largest_component():
    graph = Graph.from_edges([5, 1, 2, 6], [4, 2, 6, 1], num_nodes=8)
    part, nodes = transform.largest_component(graph)
    assert nodes.tolist() == [1, 2, 6] and part.num_edges == 3
    assert transform.largest_component(EMPTY)[1].size == 0
    assert transform.largest_component(ISOLATED)[1].tolist() == [0]


def test_structural_features_of_small_graphs():
    assert transform.degree_features(ISOLATED, 1).tolist() == [[0, 1], [1, 0], [1, 0]]
    edgeless = Graph.from_edges([], [], num_nodes=2)
    assert transform.degree_features(edgeless, int(edgeless.in_degrees.max())).tolist() == [
        [1],
        [1],
    ]
    assert transform.random_walk_pe(ISOLATED, 2).tolist() == [[1, 1], [0, 0], [0, 0]]
    assert transform.random_walk_pe(EMPTY, 2).shape == (0, 2)
    assert np.isfinite(transform.laplacian_pe(ISOLATED, 2)).all()
    with pytest.raises(ValueError, match=r"k: expected less than the 3 nodes, got 3"):
        transform.laplacian_pe(ISOLATED, 3)
    with pytest.raises(ValueError, match="max_degree: expected at least the largest in-degree, 2"):
        transform.degree_features(Graph.from_edges([0, 1], [1, 1], num_nodes=2), 1)
    with pytest.raises(ValueError, match="expected a symmetric one"):
        transform.laplacian_pe(Graph.from_edges([0], [1], num_nodes=2), 1)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda value: transform.degree_features(ISOLATED, value), "max_degree"),
        (lambda value: transform.laplacian_pe(ISOLATED, value), "k"),
        (lambda value: transform.random_walk_pe(ISOLATED, value), "walk_length"),
        (
            lambda value: transform.radius_graph([[0.0]], 1, max_num_neighbors=value),
            "max_num_neighbors",
        ),
    ],
)
def test_counts_are_integers_in_range(call, name):
    with pytest.raises(TypeError, match=f"{name}: expected an integer, got float"):
        call(1.0)
    with pytest.raises(ValueError, match=f"{name}: expected an integer from [01] to .*, got -1"):
        call(-1)


def test_random_walks_follow_the_weights():
    graph = some(undirected=False)
    weights = np.random.default_rng(3).uniform(1, 2, graph.num_edges)
    dense = np.zeros((40, 40))
    np.add.at(dense, ends(graph), weights)
    walk = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)
    expected = [np.diag(np.linalg.matrix_power(walk, step)) for step in range(1, 5)]
    np.testing.assert_allclose(
        transform.random_walk_pe(graph, 4, weights), np.stack(expected, axis=1), atol=1e-6
    )


@pytest.mark.parametrize("n", (40, 700))
def test_laplacian_eigenvectors(n):
    """On a path with weights, whose eigenvalues are all different; by LAPACK and by ARPACK."""
    graph, weights = Graph.from_edges(
        np.arange(n - 1),
        np.arange(1, n),
        num_nodes=n,
        undirected=True,
        edge_data=np.linspace(1, 2, n - 1, dtype=np.float32),
    )
    vectors = transform.laplacian_pe(graph, 3, weights).astype(np.float64)
    adjacency = graph.to_scipy(weights).toarray().astype(np.float64)
    scale = adjacency.sum(axis=0) ** -0.5
    laplacian = np.eye(n) - scale[:, None] * adjacency * scale
    values = np.linalg.eigvalsh(laplacian)[1:4]
    np.testing.assert_allclose(laplacian @ vectors, vectors * values, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=0), 1, rtol=1e-6)
    assert (vectors.max(axis=0) >= np.abs(vectors.min(axis=0)) * (1 - 1e-5)).all()
    np.testing.assert_array_equal(vectors, transform.laplacian_pe(graph, 3, weights))


@pytest.mark.parametrize(
    ("cycles", "size", "isolated", "k"),
    [(26, 20, 0, 10), (26, 20, 0, 30), (3, 200, 5, 12), (1, 600, 40, 7), (0, 0, 600, 3)],
)
def test_laplacian_eigenvectors_of_components(cycles, size, isolated, k):
    """0 is an eigenvalue of each component with edges, 1 of each isolated node."""
    starts = size * np.repeat(np.arange(cycles), size)
    steps = np.tile(np.arange(size), cycles)
    senders, receivers = starts + steps, starts + (steps + 1) % max(size, 1)
    n = cycles * size + isolated
    graph = Graph.from_edges(senders, receivers, num_nodes=n, undirected=True)
    vectors = transform.laplacian_pe(graph, k).astype(np.float64)
    laplacian = np.diag(np.ones(n)) - graph.to_scipy().toarray() / 2
    expected = np.linalg.eigvalsh(laplacian)[1 : k + 1]
    np.testing.assert_allclose(laplacian @ vectors, vectors * expected, atol=1e-6)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-5)


def test_radius_graph():
    rng = np.random.default_rng(0)
    points = np.round(rng.random((60, 2)), 1)  # with ties and repeated points
    between = np.linalg.norm(points[:, None] - points, axis=2)
    for radius in (0.0, 0.15, 2.0):
        near = (between <= radius) & ~np.eye(60, dtype=bool)
        graph = transform.radius_graph(points, radius)
        assert set(zip(*ends(graph), strict=True)) == set(zip(*np.nonzero(near), strict=True))
        looped = transform.radius_graph(points, radius, loop=True)
        assert looped.num_edges == graph.num_edges + 60
    few = transform.radius_graph(points, 0.15, max_num_neighbors=3)
    near = (between <= 0.15) & ~np.eye(60, dtype=bool)
    for point in range(60):
        order = np.lexsort((np.arange(60), between[point]))
        expected = [other for other in order if near[point, other]][:3]
        senders, receivers = ends(few)
        assert senders[receivers == point].tolist() == sorted(expected)
    assert transform.radius_graph(np.zeros((0, 3)), 1.0).num_nodes == 0
    with pytest.raises(ValueError, match="radius: expected a finite number from 0, got -1"):
        transform.radius_graph(points, -1)
    with pytest.raises(ValueError, match="points: expected finite"):
        transform.radius_graph([[np.nan]], 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, p: transform.radius_graph(p, None), "radius: expected a number, got NoneT"),
        (lambda g, p: transform.radius_graph(p, "1"), "radius: expected a number, got str"),
        (lambda g, p: transform.radius_graph(p, np.ones(2)), "radius: expected a number, got nda"),
        (lambda g, p: transform.radius_graph(p * 1j, 1), "points: expected real numbers, got comp"),
        (lambda g, p: transform.radius_graph([["a"]], 1), "points: expected real numbers, got <U1"),
        (lambda g, p: transform.radius_graph(p, 1, loop="no"), "loop: expected True or False"),
        (lambda g, p: transform.radius_graph(p, 1, max_num_neighbors=0), "max_num_neighbors: .* 0"),
        (lambda g, p: transform.cartesian(g, p * 1j), "positions: expected real numbers, got comp"),
        (lambda g, p: transform.cartesian(g, p, normalize="no"), "normalize: expected True or Fal"),
        (
            lambda g, p: transform.cartesian(g, p, interval=1),
            "interval: expected two numbers, got 1",
        ),
        (lambda g, p: transform.distance(g, p, interval=(1,)), r"interval: .* numbers, got \(1,\)"),
        (lambda g, p: transform.distance(g, p, max_value="7"), "max_value: expected a number, got"),
        (lambda g, p: transform.distance(g, p, max_value=-7), "max_value: .* from 0, got -7"),
        (lambda g, p: transform.cartesian(g, p, max_value=np.nan), "max_value: .* from 0, got nan"),
        (lambda g, p: jax.jit(lambda p: transform.distance(g, p))(p), "positions: positions are r"),
    ],
)
def test_errors_of_positions_and_options(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(ISOLATED, np.arange(6.0).reshape(3, 2))


def test_equal_to_pyg():
    torch = pytest.importorskip("torch")
    pyg = pytest.importorskip("torch_geometric")
    transforms = pyg.transforms
    graph = some(undirected=True)
    senders, receivers = ends(graph)
    positions = np.random.default_rng(2).normal(size=(40, 3)).astype(np.float32)

    def whole(**fields):
        edges = torch.tensor(np.stack([senders, receivers]).astype(np.int64))
        return pyg.data.Data(edge_index=edges, num_nodes=40, **fields)

    close = np.testing.assert_allclose
    part, nodes = transform.largest_component(graph)
    theirs = transforms.LargestConnectedComponents()(whole(place=torch.arange(40)))
    np.testing.assert_array_equal(theirs.place, nodes)
    np.testing.assert_array_equal(theirs.edge_index, np.stack(ends(part)))
    chosen = torch.arange(0, 40, 3)
    expected, _ = pyg.utils.subgraph(chosen, whole().edge_index, relabel_nodes=True, num_nodes=40)
    mine, _ = transform.subgraph(graph, chosen.numpy())
    np.testing.assert_array_equal(expected, np.stack(ends(mine)))
    most = int(np.diff(np.asarray(graph.row_offsets)).max())
    close(
        transforms.OneHotDegree(most)(whole()).x,
        transform.degree_features(graph, most, direction="out"),
    )
    theirs = transforms.AddRandomWalkPE(5, "pe")(whole()).pe
    close(theirs, transform.random_walk_pe(graph, 5), atol=1e-6)
    connected = transforms.AddLaplacianEigenvectorPE(3, "pe", is_undirected=True)
    place = transform.laplacian_pe(part, 3)
    edges = torch.tensor(np.stack(ends(part)).astype(np.int64))
    theirs = connected(pyg.data.Data(edge_index=edges, num_nodes=nodes.size)).pe.numpy()
    close(np.abs((theirs * place).sum(axis=0)), 1, atol=1e-5)  # the same but for signs
    for name, mine in (("Cartesian", transform.cartesian), ("Distance", transform.distance)):
        for options in (
            {},
            {"norm": False},
            {"max_value": 7.0},
            {"interval": (-1.0, 1.0)},
        ):
            theirs = getattr(transforms, name)(cat=False, **options)(
                whole(pos=torch.tensor(positions))
            )
            own = {("normalize" if key == "norm" else key): options[key] for key in options}
            close(theirs.edge_attr, mine(graph, positions, **own), atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_laplacian_pe_of_weights_that_are_not_finite(value):
    graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1])
    with pytest.raises(ValueError, match="weights: expected finite numbers"):
        transform.laplacian_pe(graph, 1, [value, value, 1, 1])


@pytest.mark.parametrize("feature", [transform.laplacian_pe, transform.random_walk_pe])
def test_weights_that_are_no_real_numbers(feature):
    graph = Graph.from_edges([0, 1], [1, 0])
    for weights, expected in (
        ([np.nan, np.nan], "finite numbers"),
        ([1j, 1j], "real numbers, got complex"),
        (["a", "b"], "real numbers, got <U1"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"weights: expected {expected}"):
            feature(graph, 1, weights)
    with pytest.raises(TypeError, match="weights: a graph is converted outside"):
        jax.jit(lambda weights: feature(graph, 1, weights))(np.ones(2, np.float32))


@pytest.mark.parametrize("place", [3, 0])
def test_laplacian_pe_of_weights_that_are_not_symmetric(place):
    """Each entry by its own size: others may be larger by far."""
    graph = Graph.from_edges([0, 1, 2, 3, 3, 4], [1, 0, 3, 2, 4, 3])
    weights = np.array([1e7, 1e7, 1, 1, 1, 1], np.float32)
    assert transform.laplacian_pe(graph, 3, weights * np.float32(1 + 1e-7)).shape == (5, 3)
    weights[place] *= 9
    with pytest.raises(ValueError, match="graph: expected a symmetric one"):
        transform.laplacian_pe(graph, 3, weights)
