"""What `jaxgnn info` says of a step on links, on many graphs and over an embedding."""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.data import GraphSet, Split
from jaxgnn.graph import Graph
from jaxgnn.train import Recovery, TrainConfig
from jaxgnn.train.planning.estimate import estimate
from jaxgnn.train.planning.step_rates import Rates
from jaxgnn.train.planning.step_work import Moved, moved_rows
from jaxgnn.train.problems.links import LinkData
from jaxgnn.train.problems.problem import make_problem
from jaxgnn_cli import main
from tests.support.training import toy

NODES, EDGES, HIDDEN = 40, 120, 8


def ticking():
    """A clock on which every measurement takes one second."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def graph():
    rng = np.random.default_rng(0)
    return Graph.from_edges(*rng.integers(NODES, size=(2, EDGES)), num_nodes=NODES)


def graphs() -> GraphSet:
    """Rings of three nodes."""
    count = 24
    ends = np.arange(3 * count, dtype=np.int32) % 3
    part = np.arange(count) % 3
    return GraphSet(
        "rings",
        node_offsets=np.arange(0, 3 * count + 1, 3),
        edge_offsets=np.arange(0, 3 * count + 1, 3),
        senders=ends,
        receivers=(ends + 1) % 3,
        features=np.ones((3 * count, 2), np.float32),
        labels=(np.arange(count) % 2).astype(np.int32),
        num_classes=2,
        splits={"only": Split(part == 0, part == 1, part == 2)},
    )


def guess(data, **options):
    config = TrainConfig(hidden=HIDDEN, **options).check()
    problem = make_problem(config, data, Recovery())
    program, state = problem.build()
    leaves = jax.tree.leaves((state.params, state.optimizer))
    return estimate(program, state, problem.task, clock=ticking()), sum(x.nbytes for x in leaves)


def test_rows_that_xla_moves_are_counted_by_their_width():
    table, index = jnp.ones((20, 3)), jnp.arange(7)

    def gathered_and_added(table, index):
        with jax.named_scope("jaxgnn.negative_edges"):  # measured as a whole
            skipped = table[index + 1].max()
        return table[index], table.at[index].add(jnp.ones((7, 3)) * skipped)

    text = jax.jit(gathered_and_added).lower(table, index).compile().as_text()
    found = moved_rows(text)
    wanted = {kind: Moved(kind, 7, 3, 20, "f32") for kind in ("gather", "scatter")}
    assert found == Counter(wanted.values())
    assert wanted["gather"].nbytes == 2 * 7 * 3 * 4 and wanted["scatter"].nbytes == 3 * 7 * 3 * 4
    rates = Rates(graph(), ticking())
    assert rates.moved(found) == 2
    # Of more than 2^18 rows so many are measured.
    assert rates.moved(Counter({wanted["gather"]._replace(rows=1 << 20): 2})) == 8
    assert rates.moved(Counter({wanted["gather"]._replace(dtype="pred"): 1})) == 0


@pytest.mark.system
@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_links_have_negatives_and_the_rows_of_their_ends(decoder):
    found, held = guess(LinkData("one", graph(), None), task="link", decoder=decoder)
    assert found.negatives == 1  # drawn once
    assert found.moved >= 4  # both ends, there and back
    assert found.peak_bytes > found.argument_bytes > held
    assert found.seconds >= found.products + found.negatives + found.moved


@pytest.mark.system
def test_a_batch_of_graphs_is_a_step():
    small, held = guess(graphs(), task="graph", model="gin", batch_size=4)
    large, _ = guess(graphs(), task="graph", model="gin", batch_size=8)
    assert small.negatives == 0 < small.products
    assert held < small.argument_bytes < small.peak_bytes < large.peak_bytes


def test_an_embedding_is_a_parameter():
    with_features, _ = guess(toy())
    found, held = guess(toy(), features="embedding")
    assert held >= 3 * toy().num_nodes * HIDDEN * 4  # Adam's moments, too
    assert found.argument_bytes > held and found.seconds > 0
    assert found.argument_bytes > with_features.argument_bytes - toy().features.nbytes


@pytest.mark.system
def test_info_of_links_and_of_what_has_no_estimate(tmp_path, capsys):
    edges = np.random.default_rng(0).integers(NODES, size=(EDGES, 2))
    path = tmp_path / "edges.txt"
    np.savetxt(path, edges, fmt="%d")
    assert main(["info", str(path), "--task", "link", "--hidden", "8"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "memory of a step" in text and "negatives" in text and "nodes" in text
    options = ["--num-neighbors", "2,2", "--features-on", "host", "--hidden", "8"]
    assert main(["info", "digits", *options]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "none with --features-on host" in text
