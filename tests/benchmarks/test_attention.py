"""The suite `attention`: its oracle, models, bars, and a run on a tiny graph."""

import itertools

import jax
import numpy as np
import pytest

pytest.importorskip("tyro")

from benchmarks.harness import graphs, options, plan, steps, targets
from benchmarks.suites import attention
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
    fields = {"suite": "attention", "case": f"{attention.CPU_SHAPE} gat", "direction": "step"}
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
