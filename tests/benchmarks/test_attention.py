"""The suite `attention`: its oracle, models, bars, and a run on a tiny graph."""

import itertools

import jax
import numpy as np
import pytest

pytest.importorskip("tyro")

from benchmarks.harness import graphs, options, plan, points, steps, targets
from benchmarks.suites import attention, attention_ablation, attention_paper
from jaxgnn import gat_attention
from tests.support import oracle_attention_rows, oracle_rows
from tests.support.benchmark_runs import compared, needs_kernels, row, run_quick


def test_the_plan_of_attention_measures_what_its_targets_compare():
    for device, count in (("cpu", 10), ("gpu", 53)):
        chosen = options.parse(["attention", f"--device={device}"])
        planned = {(m.case, m.impl, m.dtype, m.direction) for m in attention.kernels(chosen)}
        for case, _, settings in attention.step_settings(chosen, attention.PARTS[device]):
            planned |= {(s.case(case), s.impl, s.dtype, "step") for s in settings}
        mine = [t for t in targets.table() if (t.suite, t.device) == ("attention", device)]
        assert len(mine) == count
        for spec in compared("attention", device):
            assert tuple(spec[key] for key in ("case", "impl", "dtype", "pass")) in planned


def test_a_target_of_memory_is_a_ratio_of_it():
    fields = {"suite": "attention", "case": f"{plan.CPU_SHAPE} gat", "direction": "step"}
    rows = [
        row(plan.OURS, 10.0, peak_bytes=100, **fields),
        row(plan.PLAIN, 50.0, peak_bytes=900, **fields),
    ]
    found = targets.evaluate(rows, "attention", "cpu")
    assert [(target["value"], target["status"]) for target in found[:2]] == [
        (5.0, "met"),
        (9.0, "missed"),
    ]
    rows[1]["peak_bytes"] = None
    assert targets.evaluate(rows, "attention", "cpu")[1]["status"] == "not measured"


def test_gradients_of_attention_are_measured_beside_those_of_their_layer():
    kernel, source = "convs.0.linear.kernel", "convs.0.attention_senders"
    expected = {kernel: np.ones(4), source: np.full(4, 1e-9), "loss": 1.0}
    found = {kernel: np.ones(4), source: np.full(4, 2e-9)}
    assert steps.gradient_error(1.0, found, expected) == pytest.approx(2e-8)
    found[source] = np.full(4, 0.1)
    assert steps.gradient_error(1.0, found, expected) > 1
    # Betas beside those of all layers.
    betas = {"convs.0.beta": np.ones(1), "convs.1.beta": np.full(1, 1e-6)}
    found = betas | {"convs.1.beta": np.full(1, 2e-6)}
    assert steps.gradient_error(1.0, found, betas | {"loss": 1.0}) == pytest.approx(2e-5)
    found["convs.0.beta"] = np.full(1, 1.1)
    assert steps.gradient_error(1.0, found, betas | {"loss": 1.0}) == pytest.approx(0.1)


def test_the_part_paper_has_its_settings():
    chosen = options.parse(["attention", "--device=gpu", "--parts", "paper"])
    assert not list(attention.step_settings(chosen, chosen.parts)) and "paper" not in sum(
        attention.PARTS.values(), ()
    )
    cases = list(attention.paper_settings(chosen, chosen.parts))
    ours = {
        (s.case(graph), widths[1:-1], "forward" if s.forward else "step")
        for graph, widths, settings in cases
        for s in settings
        if s.impl == plan.OURS
    }
    expected = {(f"{graph} gat 1 head", (128,)) for graph in attention_paper.GRAPHS}
    for kernels, dim in ((3, 2), (3, 3), (2, 1)):
        label = f"monet K={kernels} r={dim}"
        expected |= {(f"{graph} {label}", (16,)) for graph in attention_paper.GRAPHS}
    expected |= {(f"{graph} edgeconv", (64, 64, 128)) for graph in points.CLOUDS}
    assert ours == {(*case, way) for case in expected for way in ("forward", "step")}
    for _, widths, settings in cases:
        assert {s.impl for s in settings} > {plan.OURS, plan.PYG_EDGES, plan.PLAIN}
        assert {s.heads for s in settings} == {1 if settings[0].model == "gat" else None}
        assert all(width > 0 for width in widths)
    searched = {(s.neighbors, s.clouds, s.width) for s in attention_paper.searches(chosen)}
    assert searched == set(itertools.product((20, 40), (32, 64), (3, 64, 128)))


def test_the_ablation_is_beside_the_layer_as_written_and_the_papers_saving():
    chosen = options.parse(["attention", "--device=gpu", "--parts", "ablation"])
    planned = {
        (s.case(graph), s.impl)
        for graph, _, settings in attention.paper_settings(chosen, chosen.parts)
        for s in settings
    }
    cases = [f"{g} {m} ablation" for g in ("arxiv", "reddit") for m in attention_ablation.MODELS]
    assert planned == set(itertools.product(cases, (*plan.STAGES, plan.OURS)))
    fields = {"direction": "step", "case": cases[0]}
    rows = [row(plan.WRITTEN, 30.0, peak_bytes=900, **fields)]
    rows += [row(plan.STORED, 12.0, peak_bytes=300, **fields)]
    rows += [row(plan.RECOMPUTED, 10.0, peak_bytes=200, **fields), row(plan.OURS, 5.0, **fields)]
    attention.set_baselines(rows)
    assert [r["ratio"] for r in rows] == [1, 2.5, 3, 6]
    assert {r["baseline"] for r in rows} == {plan.WRITTEN}
    saved = [(r.get("memory_saved"), r.get("published_memory_saved")) for r in rows]
    assert saved == [(None, None), (None, None), (1.5, 2.21), (None, None)]


def test_a_neighbor_that_is_not_near_is_seen():
    cloud = points.surfaces(2)
    squares = ((cloud[:, :, None].astype(np.float64) - cloud[:, None]) ** 2).sum(axis=-1)
    found = np.argsort(squares, axis=-1)[:, :, 1:5]
    assert points.distance_error(cloud, found) == 0
    for wrong, error in (
        (np.roll(found, 1, axis=1), 0.1),  # those of another point
        (np.argsort(squares, axis=-1)[:, :, :4], np.inf),  # the point itself
        (found[:, :, [0, 0, 1, 2]], np.inf),  # one twice
    ):
        assert points.distance_error(cloud, wrong) >= error


def test_the_baseline_of_a_search_and_of_a_forward_pass_is_that_of_others():
    def timed(impl, ms, direction, **shape):
        return row(impl, ms, direction=direction, case="cora gat 1 head") | {"shape": shape}

    rows = [
        timed(plan.OURS, 2.0, "forward", widths=[3, 4]),
        timed(plan.PLAIN, 3.0, "forward", widths=[3, 4]),
        timed(plan.PLAIN, 8.0, "step", widths=[3, 4]),
        timed(points.OURS, 1.0, "build", width=3, neighbors=20),
        timed(points.PLAIN, 5.0, "build", width=3, neighbors=20),
        timed(points.PLAIN, 4.0, "build", width=64, neighbors=20),
        timed(points.PLAIN, 4.0, "build", width=3, neighbors=40),
    ]
    attention.set_baselines(rows)
    assert (rows[0]["baseline"], rows[0]["ratio"]) == (plan.PLAIN, 1.5)
    assert (rows[3]["baseline"], rows[3]["ratio"]) == (points.PLAIN, 5.0)


@needs_kernels
def test_oracle_of_attention(tmp_path):
    stored = graphs.load(graphs.store("rmat-dense", tmp_path, scale=2**-9))
    rng = np.random.default_rng(0)
    features, cotangent = rng.standard_normal((2, stored.num_nodes, 12)).astype(np.float32)
    scores = rng.standard_normal((2, stored.num_nodes, 4)).astype(np.float32)
    reference = oracle_attention_rows.Oracle(
        *stored.rows(backward=False), *stored.rows(backward=True), features, *scores
    )

    def forward(v, source, target):
        heads = v.reshape(-1, 4, 3)
        return gat_attention(stored.to_graph(), heads, source, target, impl="jax").reshape(-1, 12)

    out, pullback = jax.vjp(forward, features, *scores)
    out, gradients = np.array(out), [np.array(gradient) for gradient in pullback(cotangent)]
    assert reference.forward_error(out) < 1e-5
    assert reference.backward_error(cotangent, *gradients) < 1e-5
    row = oracle_rows.sample_rows(stored.row_offsets, seed=oracle_attention_rows._SEED)[3]
    out[row, 2] += 0.1
    assert reference.forward_error(out) > 1e-3
    gradients[2][row, 1] += 0.1
    assert reference.backward_error(cotangent, *gradients) > 1e-3


@needs_kernels
@pytest.mark.system
def test_attention_quick(tmp_path):
    result = run_quick(
        "attention", tmp_path, "--dtypes", "float32", "--models", "gat", "--only", "jaxgnn"
    )
    measured = {(entry["impl"], entry["pass"]) for entry in result["rows"]}
    assert measured == {
        *itertools.product((plan.OURS, plan.GAT), plan.BOTH),
        (plan.OURS, "step"),
    }
    assert all(entry["kernel"] for entry in result["rows"] if entry["impl"] == plan.GAT)
    assert {target["status"] for target in result["targets"]} == {"not measured"}


@needs_kernels
@pytest.mark.system
def test_paper_quick(tmp_path):
    shapes = ("cora", "points32-k20")
    result = run_quick(
        "attention", tmp_path, "--parts", "paper", "--shapes", *shapes, "--only", "jaxgnn"
    )
    measured = {(entry["case"], entry["pass"]) for entry in result["rows"]}
    models = ("cora gat 1 head", "points32-k20 edgeconv")
    models += tuple(f"cora monet K={k} r={r}" for k, r in attention_paper.GAUSSIANS)
    expected = set(itertools.product(models, ("forward", "step")))
    assert measured == expected | {("points32-k20 search", "build")}
