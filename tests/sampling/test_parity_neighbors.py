"""`sample_neighbors` beside PyG's `NeighborLoader`, where that has a sampler to run on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxgnn
from jaxgnn.data import load

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric")
typing = pytest.importorskip("torch_geometric.typing")
loader = pytest.importorskip("torch_geometric.loader")

pytestmark = pytest.mark.skipif(
    not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE),
    reason="PyG samples with pyg-lib or torch-sparse, and has neither here",
)

SIZES = [10, 5]
BATCHES = 40


@pytest.fixture(scope="module")
def graph(data_directory):
    """Cora and a node without edges, the last one."""
    cora = load(data_directory / "cora").graph
    return jaxgnn.Graph.from_edges(cora.senders, cora.receivers, num_nodes=cora.num_nodes + 1)


def pyg_batches(graph, nodes, sizes, *, replace=False, batch_size=None):
    torch.manual_seed(0)
    index = torch.from_numpy(np.asarray(graph.edge_index).astype(np.int64))
    data = pyg.data.Data(edge_index=index, num_nodes=graph.num_nodes)
    return loader.NeighborLoader(
        data,
        num_neighbors=sizes,
        input_nodes=torch.from_numpy(np.asarray(nodes).astype(np.int64)),
        batch_size=batch_size or len(nodes),
        replace=replace,
    )


def counts_of(senders, receivers, num_seeds):
    """Edges of each hop, and nodes that it adds: an edge's hop is that of its receiver, plus 1."""
    counts, first, end = [], 0, num_seeds
    for _ in SIZES:
        own = (receivers >= first) & (receivers < end)
        first, end = end, max(end, senders[own].max(initial=-1) + 1)
        counts += [own.sum(), end - first]
    return counts


def test_edges_and_nodes_of_each_hop(graph):
    seeds = np.append(np.random.default_rng(0).choice(graph.num_nodes - 1, 63), graph.num_nodes - 1)
    seeds = np.unique(seeds)
    degrees = np.asarray(graph.in_degrees)

    @jax.jit
    def sample(graph, key):
        return jaxgnn.sample_neighbors(graph, seeds, SIZES, key, deduplicate=True)

    ours, theirs = [], []
    for batch in pyg_batches(graph, np.tile(seeds, BATCHES), SIZES, batch_size=len(seeds)):
        key = jax.random.key(len(ours))
        blocks = sample(graph, key)
        nodes, places = np.asarray(blocks.nodes), np.cumsum(blocks.node_mask) - 1
        real = np.asarray(blocks.edge_mask)
        first = blocks.graphs[0]
        ends = places[np.asarray(first.senders)[real]], places[np.asarray(first.receivers)[real]]
        ours.append(counts_of(*ends, len(seeds)))
        theirs.append(counts_of(*batch.edge_index.numpy(), len(seeds)))
        # Isolated seeds stay, first of all seeds, in order.
        np.testing.assert_array_equal(nodes[: len(seeds)], seeds)
        np.testing.assert_array_equal(batch.n_id[: len(seeds)].numpy(), seeds)
    ours, theirs = np.array(ours), np.array(theirs)
    assert (ours[:, 0] == np.minimum(degrees[seeds], SIZES[0]).sum()).all()
    assert (ours[:, 0] == theirs[:, 0]).all()
    for i in range(1, ours.shape[1]):
        assert stats.ttest_ind(ours[:, i], theirs[:, i], equal_var=False).pvalue > 1e-5
        # The means, which are large beside their deviation, agree closely.
        np.testing.assert_allclose(ours[:, i].mean(), theirs[:, i].mean(), rtol=0.03)


def test_inclusion_with_replacement(graph):
    """How often each edge of the node with the most of them is drawn."""
    node, times = int(np.argmax(np.asarray(graph.in_degrees))), 1500
    begin, end = (int(offset) for offset in graph.row_offsets[node : node + 2])
    theirs = np.zeros(graph.num_edges, int)
    for batch in pyg_batches(graph, [node] * times, [10], replace=True, batch_size=1):
        np.add.at(theirs, batch.e_id.numpy(), 1)
    blocks = jaxgnn.sample_neighbors(
        graph, jnp.full(times, node), [10], jax.random.key(0), replace=True
    )
    ours = np.bincount(np.asarray(blocks.edges), minlength=graph.num_edges)
    table = np.stack([ours, theirs])
    assert table.sum(1).tolist() == table[:, begin:end].sum(1).tolist() == [10 * times] * 2
    assert stats.chi2_contingency(table[:, begin:end]).pvalue > 1e-5
