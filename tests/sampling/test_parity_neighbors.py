"""`sample_neighbors` beside the samplers of PyG and DGL, where they are installed.

PyG samples with pyg-lib or torch-sparse. DGL has a Python of its own, which the environment
variable `JAXGNN_DGL_PYTHON` names. CONTRIBUTING.md says how to run both.
"""

import os
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxgnn
from jaxgnn.data import load
from tests.support.paths import ROOT

SIZES = [10, 5]
BATCHES = 40
# Draws of `SIZE` edges of a node: of the one with the most edges, and of one with 7.
SIZE, TIMES = 3, 3000
KINDS = ("replace", "distinct", "weighted replace", "weighted distinct")

# torch-sparse is to be had, pyg-lib is not.
pytestmark = pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")


@pytest.fixture(scope="module")
def task(data_directory):
    """Cora and a node without edges, the last one, and what to draw."""
    cora = load(data_directory / "cora").graph
    graph = jaxgnn.Graph.from_edges(cora.senders, cora.receivers, num_nodes=cora.num_nodes + 1)
    degrees = np.asarray(graph.in_degrees)
    seeds = np.random.default_rng(0).choice(graph.num_nodes - 1, 63, replace=False)
    return graph, {
        "row_offsets": np.asarray(graph.row_offsets),
        "senders": np.asarray(graph.senders),
        "weights": np.float32(1 + np.arange(graph.num_edges) % 5),
        "seeds": np.append(np.sort(seeds), graph.num_nodes - 1),
        "sizes": np.array(SIZES),
        "batches": BATCHES,
        "kinds": np.array(KINDS),
        "nodes": np.array([np.argmax(degrees), np.flatnonzero(degrees == 7)[0]]),
        "size": SIZE,
        "times": TIMES,
    }


@pytest.fixture(scope="module", params=["PyG", "DGL"])
def peer(request, task, tmp_path_factory):
    """A library's draws by kind and node `[TIMES, SIZE]`, and the edges and new nodes of each hop
    as "hops" `[BATCHES, 2 hops]`."""
    graph, values = task
    if request.param == "PyG":
        return of_pyg(graph, values)
    if not (python := os.environ.get("JAXGNN_DGL_PYTHON")):
        pytest.skip("no Python with DGL: set JAXGNN_DGL_PYTHON")
    folder = tmp_path_factory.mktemp("dgl")
    np.savez(folder / "task.npz", **values)
    script = ROOT / "tests" / "support" / "dgl_sampler.py"
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, str(script), str(folder / "task.npz"), str(folder / "result.npz")],
        env=without,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with np.load(folder / "result.npz") as archive:
        return dict(archive)


def of_pyg(graph, values):
    torch = pytest.importorskip("torch")
    pyg = pytest.importorskip("torch_geometric")
    loader = pytest.importorskip("torch_geometric.loader")
    typing = pytest.importorskip("torch_geometric.typing")
    if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        pytest.skip("PyG samples with pyg-lib or torch-sparse, and has neither here")
    torch.manual_seed(0)
    data = pyg.data.Data(
        edge_index=torch.from_numpy(np.asarray(graph.edge_index).astype(np.int64)),
        num_nodes=graph.num_nodes,
        weight=torch.from_numpy(values["weights"]),
    )

    def batches(nodes, batch_size, sizes, **options):
        nodes = torch.from_numpy(np.asarray(nodes).astype(np.int64))
        return loader.NeighborLoader(data, sizes, nodes, batch_size=batch_size, **options)

    seeds = values["seeds"]
    found = {"hops": []}
    for batch in batches(np.tile(seeds, BATCHES), len(seeds), SIZES):
        # Isolated seeds stay, all seeds first and in order.
        np.testing.assert_array_equal(batch.n_id[: len(seeds)].numpy(), seeds)
        found["hops"].append(hops_of(*batch.edge_index.numpy(), len(seeds)))
    for kind in KINDS:
        # Without replacement torch-sparse misses some sets of edges; it knows no weights.
        if kind != "replace" and not typing.WITH_PYG_LIB:
            continue
        options = {"weight_attr": "weight"} if "weighted" in kind else {}
        options["replace"] = "replace" in kind
        for node in values["nodes"]:
            drawn = batches([node] * TIMES, 1, [SIZE], **options)
            found[f"{kind} {node}"] = [batch.e_id.numpy() for batch in drawn]
    return found


def hops_of(senders, receivers, num_seeds):
    """Edges of each hop, and nodes that it adds: an edge's hop is that of its receiver, plus 1."""
    counts, first, end = [], 0, num_seeds
    for _ in SIZES:
        own = (receivers >= first) & (receivers < end)
        first, end = end, max(end, senders[own].max(initial=-1) + 1)
        counts += [own.sum(), end - first]
    return counts


def test_edges_and_nodes_of_each_hop(task, peer):
    graph, values = task
    seeds = values["seeds"]

    @jax.jit
    def sample(graph, key):
        return jaxgnn.sample_neighbors(graph, seeds, SIZES, key, deduplicate=True)

    ours, theirs = [], np.array(peer["hops"])
    for number in range(BATCHES):
        blocks = sample(graph, jax.random.key(number))
        places, real = np.cumsum(blocks.node_mask) - 1, np.asarray(blocks.edge_mask)
        first = blocks.graphs[0]
        ends = places[np.asarray(first.senders)[real]], places[np.asarray(first.receivers)[real]]
        ours.append(hops_of(*ends, len(seeds)))
        np.testing.assert_array_equal(blocks.nodes[: len(seeds)], seeds)
    ours = np.array(ours)
    assert (ours[:, 0] == np.minimum(np.asarray(graph.in_degrees)[seeds], SIZES[0]).sum()).all()
    assert (ours[:, 0] == theirs[:, 0]).all()
    for i in range(1, ours.shape[1]):
        assert stats.ttest_ind(ours[:, i], theirs[:, i], equal_var=False).pvalue > 1e-5
        # The means, which are large beside their deviation, agree closely.
        np.testing.assert_allclose(ours[:, i].mean(), theirs[:, i].mean(), rtol=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_edges_that_are_drawn(task, peer, kind):
    """How often each edge, without replacement each set of edges of the short row, is drawn."""
    graph, values = task
    for node in values["nodes"]:
        if f"{kind} {node}" not in peer:
            pytest.skip("torch-sparse is right with replacement alone, and knows no weights")
        theirs = np.array(peer[f"{kind} {node}"])
        blocks = jaxgnn.sample_neighbors(
            graph,
            jnp.full(TIMES, node),
            [SIZE],
            jax.random.key(0),
            replace="replace" in kind,
            weights=jnp.asarray(values["weights"]) if "weighted" in kind else None,
        )
        ours = np.asarray(blocks.edges)[np.asarray(blocks.edge_mask)].reshape(TIMES, SIZE)
        begin, end = (int(offset) for offset in graph.row_offsets[node : node + 2])
        both = np.stack([ours, theirs]) - begin
        assert both.min() >= 0 and both.max() < end - begin
        if "distinct" in kind:
            both = np.sort(both, axis=-1)
            assert (np.diff(both, axis=-1) > 0).all()
            if end - begin == 7:
                both = (both * 7 ** np.arange(SIZE)).sum(-1)
        _, numbers = np.unique(both, return_inverse=True)
        table = [np.bincount(own, minlength=numbers.max() + 1) for own in numbers.reshape(2, -1)]
        # Without replacement counts vary less than independent ones do.
        assert stats.chi2_contingency(np.array(table)).pvalue > 1e-5
