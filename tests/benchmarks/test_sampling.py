"""The suite `sampling`: its plans, checks and references, and a run of its parts on tiny graphs."""

import importlib.util

import numpy as np
import pytest

pytest.importorskip("tyro")

import jax

import jaxgnn
from benchmarks import tables
from benchmarks.experiments import sampled_share
from benchmarks.harness import graphs, minibatch, neighbors, options, plan, targets
from benchmarks.harness.neighbors import Hop
from benchmarks.suites import sampling
from benchmarks.table_specs import TABLES
from jaxgnn.data import benchmark_graph
from tests.support.benchmark_runs import compared, needs_kernels, row, run_quick

_KEYS = ("case", "impl", "dtype", "pass", "S", "seeds", "children")


def test_the_plan_of_sampling_measures_what_its_targets_compare():
    for device, count in (("gpu", 54), ("cpu", 2)):
        chosen = options.parse(["sampling", f"--device={device}"])
        planned = {
            (m.case, m.impl, m.dtype, m.direction, m.sample, None, None)
            for m in sampling.measurements(chosen)
        }
        for d in sampling.draws(chosen):
            planned.add((d.case, d.impl, "int32", "sample", None, d.seeds, None))
        for e in sampling.embeddings(chosen):
            name = "epoch" if e.whole else "batch"
            planned.add((e.case, e.impl, e.dtype, name, None, None, e.children))
        for s in sampling.steps(chosen):
            planned.add((s.case, s.impl, "float32", "step", None, None, None))
        for h in sampling.host_reads(chosen):
            planned.add(("host", h.impl, "float32", "host", None, None, None))
        mine = [t for t in targets.table() if (t.suite, t.device) == ("sampling", device)]
        assert len(mine) == count
        for spec in compared("sampling", device):
            assert tuple(spec.get(key) for key in _KEYS) in planned, spec


def test_baselines_and_targets_of_mini_batches():
    drawn = {"suite": "sampling", "case": "products", "dtype": "int32", "direction": "sample"}
    rows = [row(plan.TREE, 0.1, giga_edges_per_second=9.0, **drawn), row(plan.FLOYD, 0.2, **drawn)]
    for entry in rows:
        entry["shape"]["seeds"] = 1024
    sampling.set_baselines(rows, "gpu")
    assert (rows[0]["baseline"], rows[0]["ratio"]) == (plan.FLOYD, 2)
    found = {t["target"]: t for t in targets.evaluate(rows, "sampling", "gpu")}
    rate, floyd = (
        found[f"products, 1024 seeds: {n}"] for n in ("G sampled edges/s", "Floyd in JAX")
    )
    assert (rate["value"], rate["status"]) == (9.0, "met")
    assert (floyd["value"], floyd["status"]) == (2.0, "missed")
    batch = {"suite": "sampling", "case": "pokec", "direction": "batch"}
    times = {plan.OURS: 4.0, plan.LEAVES: 2.0, plan.GATHERED: 16.0}
    rows = [row(impl, ms, **batch) for impl, ms in times.items()]
    for entry in rows:
        entry["shape"]["children"] = 10
    sampling.set_baselines(rows, "gpu")
    assert (rows[0]["baseline"], rows[0]["ratio"]) == (plan.GATHERED, 4)
    assert rows[0]["multiple_of_spmm"] == 2


def test_long_calls_are_timed_three_times():
    from benchmarks.harness import timing

    calls = []

    def seconds(count):
        calls.append(count)
        return 5.0 * count

    measured = timing.measure(seconds, 20, long_call=2.0)
    assert (measured.repeats, measured.ms, calls) == (3, 5000.0, [1, 1, 1, 1])


@needs_kernels
def test_the_check_of_neighborhoods_sees_mistakes(tmp_path):
    stored = graphs.load(graphs.store("arxiv", tmp_path, scale=2**-6))
    offsets, senders = np.asarray(stored.row_offsets), np.asarray(stored.senders)
    receivers = np.append(np.argsort(-np.diff(offsets))[:200], -1)
    degrees = np.append(np.diff(offsets)[receivers[:-1]], 0)
    counts = np.minimum(degrees, 3)
    rng = np.random.default_rng(0)

    def draw():
        pairs = zip(receivers[:-1], degrees[:-1], strict=True)
        return np.concatenate(
            [offsets[node] + rng.permutation(degree)[:3] for node, degree in pairs]
        )

    edges = draw()

    def mistakes(edges=edges, counts=counts, named=None, size=3):
        named = senders[edges] if named is None else named
        return neighbors.mistakes(stored, Hop(receivers, counts, edges, named), size, set())

    assert mistakes() == 0
    assert mistakes(size=2) > 0
    assert mistakes(named=np.roll(senders[edges], 1)) > 0
    twice = edges.copy()
    twice[1] = twice[0]
    assert mistakes(twice) > 0
    foreign = edges.copy()
    foreign[0] = offsets[receivers[1]]
    assert mistakes(foreign) > 0
    first = np.concatenate([offsets[node] + np.arange(3) for node in receivers[:-1]])
    assert mistakes(first) == 1  # all at the beginning of their rows

    hop = Hop(receivers, counts, edges, senders[edges])
    added = np.setdiff1d(senders[edges], receivers)
    # The next hop draws for an old node, too, which does not count.
    again = Hop(np.append(added[:2], receivers[:1]), np.array([1, 1, 3]), edges[:5], receivers[:5])
    assert neighbors.counts_of_hops([hop, again]) == ([counts.sum(), 2], [added.size, 0])
    assert neighbors.inclusion_p(stored, [hop._replace(edges=draw()) for _ in range(9)], 3) > 0.01
    assert neighbors.inclusion_p(stored, [hop._replace(edges=first)] * 9, 3) < 1e-9
    weights = neighbors.edge_weights(stored.num_edges)
    cumulative = np.concatenate([[0], np.cumsum(weights, dtype=np.float64)])
    spans = cumulative[offsets[receivers[:-1]]], cumulative[offsets[receivers[:-1] + 1]]
    points = rng.uniform(np.repeat(spans[0], 3), np.repeat(spans[1], 3))
    by_weight = hop._replace(
        edges=np.searchsorted(cumulative, points, side="right") - 1,
        counts=np.append(np.full(200, 3), 0),
    )
    assert neighbors.follows_weights(stored, by_weight)
    assert not neighbors.follows_weights(stored, hop)


def test_alias_tables_have_the_weights_shares():
    from benchmarks.baselines import jax_alias

    rng = np.random.default_rng(0)
    degrees = np.append(rng.integers(0, 30, 100), [1, 0, 1000])
    offsets, rows = np.append(0, np.cumsum(degrees)), np.repeat(np.arange(103), degrees)
    weights = rng.exponential(size=rows.size) * 10.0 ** rng.integers(-6, 7, rows.size)
    weights[rows % 5 == 0] = 1
    table = jax_alias.tables(offsets, weights)
    shares = table[:, 0] / 2**32
    found = shares / degrees[rows]
    np.add.at(found, offsets[rows] + table[:, 1], (1 - shares) / degrees[rows])
    wanted = weights / np.bincount(rows, weights, 103)[rows]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)


@needs_kernels
def test_the_loss_in_float64_is_the_models(tmp_path):
    from benchmarks.ours import minibatch as ours

    stored = graphs.load(graphs.store("arxiv", tmp_path, scale=2**-8))
    step = minibatch.Step(plan.OURS, "arxiv", 16, (4, 3, 2), (6, 8, 8, 5))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((stored.num_nodes, 6)).astype(np.float32)
    labels = rng.integers(0, 5, stored.num_nodes).astype(np.int32)
    seeds = np.arange(stored.num_nodes, dtype=np.int32)[:64]
    data = minibatch.Data(stored, x, labels, seeds, tmp_path, "cpu", 1)
    ours.write_batches(step, data)
    with jax.default_matmul_precision("highest"):
        loss, batch = ours.trainer(step, data).loss()
    expected = minibatch.float64_loss(data.parameters, x, labels, batch)
    assert loss == pytest.approx(expected, rel=1e-5)
    wrong = batch._replace(senders=np.roll(batch.senders, 1))
    assert abs(minibatch.float64_loss(data.parameters, x, labels, wrong) - loss) > 1e-4 * loss
    with np.load(tmp_path / "batches.npz") as written:
        counts = written["0.nodes_of_hops"], written["0.edges_of_hops"]
        assert [part.sum() for part in counts] == [
            written["0.nodes"].size,
            written["0.edges"].shape[1],
        ]
        assert counts[0][0] == 16


@needs_kernels
@pytest.mark.system
def test_sampling_quick(tmp_path):
    result = run_quick(
        "sampling", tmp_path, "--parts", "neighbors", "embedding", "steps", "host",
        "--only", "jaxgnn tree, replace", "deduplicated, labor", "jax Floyd", "alias", "jax gather",
        "ready", plan.LEAVES, plan.HOST_ROWS, plan.HOST_COPY, "--dtypes", "float32",
        "--repeats", "1",
    )  # fmt: skip
    rows = {(entry["impl"], entry["pass"]): entry for entry in result["rows"]}
    drawn = [entry for entry in result["rows"] if entry["pass"] == "sample"]
    assert all(0 < e["sampled_edges"] <= 32 * (15 + 150 + 750) for e in drawn)
    assert all(e["giga_edges_per_second"] > 0 and e["error"] == 0 for e in drawn)
    # Plain JAX is plain JAX: no row of it runs a kernel.
    assert all(e.get("kernel", False) == e["impl"].startswith("jaxgnn") for e in drawn)
    assert {e["impl"] for e in drawn} == {
        plan.TREE + ", replace", plan.DEDUPLICATED + ", labor", plan.FLOYD, plan.FLOYD_RBG,
        plan.ALIAS,
    }  # fmt: skip
    of_host = [entry for entry in result["rows"] if entry["pass"] == "host"]
    assert [e["impl"] for e in of_host] == [plan.HOST_COPY, plan.HOST_ROWS]
    assert all(e["gigabytes_per_second"] > 0 and e["ratio"] is not None for e in of_host)
    assert {(plan.LEAVES, "batch"), (plan.GATHERED, "batch")} <= rows.keys()
    assert all((impl, "step") in rows for impl in sampling.PLAIN_STEPS)
    if importlib.util.find_spec("torch_geometric") is not None:
        assert all((impl, "step") in rows for impl in sampling.READY_STEPS)


def test_shares_are_those_of_the_edges_that_are_taken():
    csr = benchmark_graph("reddit", 2**-7)
    graph = jaxgnn.Graph.from_csr(csr.row_offsets, csr.senders)
    found = sampled_share.shares("reddit", np.diff(csr.row_offsets))
    assert [entry["shape"]["S"] for entry in found] == [16, 32, 64, 128, 256, 512]
    for entry in found:
        for strategy in ("bucket", "fastrand", "stride"):
            _, counts = jaxgnn.sampled_edges(
                graph, sample_size=entry["shape"]["S"], strategy=strategy
            )
            assert entry["edge_share"] == int(counts.sum()) / graph.num_edges
    by_hand = sampled_share.shares("proteins", np.array([0, 1, 5, 40, 2000]))
    assert by_hand[0]["edge_share"] == (0 + 1 + 5 + 16 + 16) / 2046
    assert by_hand[-1]["edge_share"] == (0 + 1 + 5 + 40 + 512) / 2046


def test_a_file_of_shares_makes_its_table(tmp_path, monkeypatch, capsys):
    path = tmp_path / "2026-01-01-amd-epyc-sampled-share.json"
    monkeypatch.setattr("sys.argv", ["sampled_share", "--scale", "0.002", "--json", str(path)])
    sampled_share.main()
    assert capsys.readouterr().out.count("published") == 12
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    tables.results.cache_clear()
    try:
        lines = tables.table(TABLES["sampled-share"]).splitlines()
    finally:
        tables.results.cache_clear()
    cells = [line.split(" | ") for line in lines if line.startswith("| S")]
    assert len(cells) == 6
    for column, case in ((2, "reddit"), (4, "proteins")):
        shown = [float(row[column].removesuffix(" |")) for row in cells]
        expected = list(sampled_share.PUBLISHED[case].values())
        np.testing.assert_allclose(shown, 100 * np.array(expected))
    assert all(0 < float(row[column]) <= 100 for row in cells for column in (1, 3))
