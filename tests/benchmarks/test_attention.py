"""The suite `attention`: its oracle, models, bars, and a run on a tiny graph."""

import importlib.util
import itertools

import jax
import numpy as np
import pytest

pytest.importorskip("rich")

from benchmarks import (
    attention,
    attention_oracle,
    attention_plan,
    bars,
    graphs,
    options,
    oracle,
    plan,
    training,
    training_worker,
)
from jaxgnn import gat_attention
from tests.support.benchmark_runs import needs_kernels, row, run_quick


def test_the_plan_of_attention_measures_what_its_bars_compare():
    for device, count in (("cpu", 10), ("gpu", 53)):
        chosen = options.parse(["attention", f"--device={device}"])
        planned = {
            (m.case, m.impl, m.dtype, m.direction) for m in attention_plan.measurements(chosen)
        }
        for case, _, settings in attention.steps(chosen, attention_plan.PARTS[device]):
            planned |= {(s.case(case), s.impl, s.dtype, "step") for s in settings}
        compared = [bar for bar in bars.BARS if bar.suite == "attention" and bar.device == device]
        assert len(compared) == count
        for bar in compared:
            for case, pick in itertools.product(bar.cases, (bar.ours, bar.reference or bar.ours)):
                for impl in pick.impls:
                    assert (case, impl, pick.dtype, pick.direction) in planned


def test_a_bar_on_memory_is_a_ratio_of_it():
    fields = {"suite": "attention", "case": f"{attention_plan.CPU_SHAPE} gat", "direction": "step"}
    rows = [
        row(plan.OURS, 10.0, peak_bytes=100, **fields),
        row(plan.PLAIN, 50.0, peak_bytes=900, **fields),
    ]
    found = bars.evaluate(rows, "attention", "cpu")
    assert [(bar["value"], bar["status"]) for bar in found[:2]] == [(5.0, "met"), (9.0, "missed")]
    rows[1]["peak_bytes"] = None
    assert bars.evaluate(rows, "attention", "cpu")[1]["status"] == "not measured"


def test_gradients_of_attention_are_measured_beside_those_of_their_layer():
    expected = {"kernel_0": np.ones(4), "source_0": np.full(4, 1e-9), "loss": 1.0}
    found = {"kernel_0": np.ones(4), "source_0": np.full(4, 2e-9)}
    assert training_worker._error(1.0, found, expected) == pytest.approx(2e-8)
    found["source_0"] = np.full(4, 0.1)
    assert training_worker._error(1.0, found, expected) > 1


@needs_kernels
def test_oracle_of_attention(tmp_path):
    stored = graphs.load(graphs.store("rmat-dense", tmp_path, scale=2**-9))
    rng = np.random.default_rng(0)
    features, cotangent = rng.standard_normal((2, stored.num_nodes, 12)).astype(np.float32)
    scores = rng.standard_normal((2, stored.num_nodes, 4)).astype(np.float32)
    reference = attention_oracle.Oracle(stored, features, *scores)

    def forward(v, source, target):
        heads = v.reshape(-1, 4, 3)
        return gat_attention(stored.to_graph(), heads, source, target, impl="jax").reshape(-1, 12)

    out, pullback = jax.vjp(forward, features, *scores)
    out, gradients = np.array(out), [np.array(gradient) for gradient in pullback(cotangent)]
    assert reference.forward_error(out) < 1e-5
    assert reference.backward_error(cotangent, *gradients) < 1e-5
    row = oracle.sample_rows(stored.row_offsets, seed=attention_oracle._SEED)[3]
    out[row, 2] += 0.1
    assert reference.forward_error(out) > 1e-3
    gradients[2][row, 1] += 0.1
    assert reference.backward_error(cotangent, *gradients) > 1e-3


@needs_kernels
@pytest.mark.parametrize("model", options.MODELS["attention"])
def test_steps_of_attention_are_the_same_model(model, tmp_path):
    from benchmarks import training_jax

    stored = graphs.load(graphs.store("rmat-dense", tmp_path, scale=2**-9))
    widths = attention_plan.QUICK_WIDTHS
    chosen = options.parse(["attention", "--device=gpu", "--models", model, "--shapes=rmat-dense"])
    (_, _, ablation), (_, _, settings) = attention.steps(chosen, ["steps", "ablation"])
    added = [s for s in ablation if s.impl == plan.STORED and model == "gat"]
    settings += added
    training.save_features(tmp_path / "features.npz", stored.num_nodes, widths)
    training.save_parameters(tmp_path, settings[0], widths, 48.0)
    features = training_worker.load_arrays(tmp_path / "features.npz")
    parameters = training_worker.load_arrays(training.parameters_file(tmp_path, settings[0]))
    checked = {}
    for setting in settings:
        if setting.impl == plan.PYG_EDGES:
            if importlib.util.find_spec("torch_geometric") is None:
                continue
            from benchmarks import training_pyg

            job = training_pyg.job(setting, stored, features, parameters, "cpu", 1)
        else:
            arguments = (setting, stored, features, parameters, list(widths), "cpu", False)
            job = training_jax.job(*arguments)
        checked[setting.impl] = job.check()
    loss, gradients = checked[plan.PLAIN]
    expected = {"loss": loss, **gradients}
    assert {plan.OURS, plan.PLAIN, *(s.impl for s in added)} <= checked.keys()
    assert all(training_worker._error(*found, expected) < 1e-4 for found in checked.values())


@needs_kernels
def test_layers_of_the_ablation_are_the_same(tmp_path):
    from benchmarks import attention_plain, attention_stored, training_plain

    stored = graphs.load(graphs.store("rmat-dense", tmp_path, scale=2**-9))
    widths = attention_plan.QUICK_WIDTHS
    x = np.random.default_rng(0).standard_normal((stored.num_nodes, widths[0])).astype(np.float32)
    for model in attention_plan.ABLATION_MODELS:
        own = training.Setting(plan.STORED, model, heads=4 if model == "gat" else None)
        training.save_parameters(tmp_path, own, widths, 48.0)
        parameters = training_worker.load_arrays(training.parameters_file(tmp_path, own))
        parameters = training_plain.layer_parameters(parameters)[0]
        edges = attention_plain.operands(stored, self_loops=model == "gat")
        names = ("gat", "gat_on_edges") if model == "gat" else ("edge_conv_on_nodes", "edge_conv")
        plain = [getattr(attention_plain, name) for name in names]

        def run(parameters, edges, graph, x, plain=plain, own=attention_stored.LAYERS[model]):
            results = [layer(parameters, edges, x, False) for layer in plain]
            return *results, own(parameters, graph, x)

        expected, *results = jax.jit(run)(parameters, edges, stored.to_graph(), x)
        for result in results:
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_an_ablation_is_compared_with_what_is_on_the_edges():
    chosen = options.parse(["attention", "--device=gpu", "--parts=ablation", "--shapes=arxiv"])
    ((case, widths, settings),) = attention.steps(chosen, chosen.parts)
    assert (case, widths) == ("arxiv", attention_plan.STEP_WIDTHS)
    names = [(s.case(case), s.impl) for s in settings]
    assert names == [
        (f"arxiv {model} ablation", impl)
        for model in attention_plan.ABLATION_MODELS
        for impl in attention_plan.ABLATION
    ]
    rows = [
        row(impl, 8.0 / place, case=name, direction="step")
        for place, (name, impl) in enumerate(names[:4], 1)
    ]
    attention.set_baselines(rows)
    assert [entry["ratio"] for entry in rows] == [1, 2, 3, 4]
    assert {entry["baseline"] for entry in rows} == {plan.PLAIN_EDGES}


@needs_kernels
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
    assert {bar["status"] for bar in result["bars"]} == {"not measured"}
