"""Training steps of the benchmarks: every implementation of a model has its loss and gradients."""

import dataclasses
import importlib.util

import jax
import numpy as np
import pytest

pytest.importorskip("tyro")

from benchmarks.harness import graphs, options, plan, steps
from benchmarks.harness.rows import compare_steps
from benchmarks.harness.setting import Setting, layer_parameters
from benchmarks.ours import models
from benchmarks.suites import attention, attention_ablation, tensor_core_steps, training
from jaxgnn.data import benchmark_shapes
from tests.support.benchmark_runs import needs_kernels, row, run_quick
from tests.support.paths import load_example

pytestmark = pytest.mark.few(1)


def step_of(setting, stored, folder, widths):
    features = steps.load_arrays(folder / "features.npz")
    parameters = models.initial_parameters(setting, list(setting.sizes(widths)))
    inputs = (setting, stored, features, parameters)
    if setting.impl in (plan.PYG_EDGES, plan.PYG_ADJ, plan.CUSPARSE_STEP):
        from benchmarks.baselines import torch_models

        return torch_models.step(*inputs, "cpu", 1)
    from benchmarks.harness import jax_step

    return jax_step.step(*inputs, list(setting.sizes(widths)), "cpu", False)


def gradients_of(settings, stored, folder, widths):
    """Those of each setting that runs here, by its name, before and after a step of training."""
    steps.save_features(folder, stored.facts, widths)
    found = {}
    for setting in settings:
        package = "torch_geometric" if "PyG" in setting.impl else "torch"
        in_torch = setting.impl.startswith(("PyG", "cuSPARSE"))
        if in_torch and importlib.util.find_spec(package) is None:
            continue
        step = step_of(setting, stored, folder, widths)
        if in_torch:
            assert step.seconds(1) > 0
        timed_loss, *found[setting] = step.gradients()
        assert np.isfinite(timed_loss)
        if setting.regularized:  # dropout: another loss, but of the same model
            assert timed_loss != found[setting][0]
            assert timed_loss == pytest.approx(found[setting][0], rel=0.3)
    return found


def agree(found, setting, tolerance=1e-4):
    loss, gradients = found[setting]
    expected = {"loss": loss, **gradients}
    assert all(steps.gradient_error(*own, expected) < tolerance for own in found.values())


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = graphs.store("rmat", tmp_path_factory.mktemp("graphs"), scale=2**-9)
    return graphs.load(folder)


@pytest.fixture(autouse=True)
def full_precision():
    """Of float32 products, which a GPU computes in TF32 by default."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.few(1)
@needs_kernels
@pytest.mark.parametrize("model", plan.EDGE_MODELS)
def test_steps_of_attention_are_the_same_model(model, stored, tmp_path):
    chosen = options.parse(["attention", "--device=gpu", "--models", model, "--shapes=rmat-dense"])
    planned = list(attention.step_settings(chosen, ["steps"]))
    every = dict.fromkeys(setting for *_, own in planned for setting in own)
    settings = [s for s in every if not s.impl.endswith(plan.FTZ)]  # the same program on a CPU
    found = gradients_of(settings, stored, tmp_path, attention.QUICK_WIDTHS)
    setting = next(s for s in found if s.impl == plan.PLAIN)
    impls = {s.impl for s in found}
    assert {plan.OURS, *plan.plain_steps(model, "cpu")} <= impls
    agree(found, setting)


@needs_kernels
@pytest.mark.system
@pytest.mark.parametrize("model", attention_ablation.MODELS)
def test_stages_of_the_ablation_are_the_same_model(model, stored, tmp_path):
    heads = 2 if model == "gat" else None
    plain = Setting(plan.PLAIN, model, heads=heads)
    stages = [dataclasses.replace(plain, impl=impl) for impl in plan.STAGES]
    agree(gradients_of([plain, *stages], stored, tmp_path, attention.QUICK_WIDTHS), plain)


@needs_kernels
@pytest.mark.system
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("model", ["sage", "gcn", "gin"])
def test_steps_of_training_are_the_same_model(model, stored, tmp_path):
    chosen = options.parse(["training", "--quick", "--device=cpu", "--models", model])
    groups = training.settings(chosen)
    settings = [s for group in groups for s in group if s.dtype == "float32" and s.k is None]
    plain = dataclasses.replace(settings[0], impl=plan.SORTED)
    settings += [plain, dataclasses.replace(plain, impl=plan.TRANSPOSED)]
    found = gradients_of(settings, stored, tmp_path, training.widths(chosen))
    assert {plan.OURS, plan.SORTED, plan.TRANSPOSED} <= {s.impl for s in found}
    agree(found, plain)


@needs_kernels
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("model", tensor_core_steps.MODELS)
def test_steps_of_tc_gnns_models_are_the_same_model(model, stored, tmp_path):
    narrow = ["--quick", "--device=cpu", "--shapes=cora", "--models", model]
    (ours,), pyg, (plain,) = tensor_core_steps.settings(options.parse(["tensor_core", *narrow]))
    found = gradients_of([ours, *pyg, plain], stored, tmp_path, (12, 5))
    assert {ours, plain} <= found.keys()
    agree(found, plain, 2e-3)  # sums of an AGNN's betas cancel


@pytest.mark.system
@needs_kernels
def test_the_steps_of_tc_gnn_are_its_table_4():
    gpu = options.parse(["tensor_core", "--device=gpu", "--parts", "steps"])
    widths, groups = tensor_core_steps.widths(gpu), tensor_core_steps.settings(gpu)
    example = load_example("tcgnn_paper")
    sets = {name for names in example["SETS"].values() for name in names}
    shapes = benchmark_shapes()
    assert sets == set(widths) == {name for name, shape in shapes.items() if shape.features}
    for setting in (setting for group in groups for setting in group):
        features, *hidden, classes = setting.sizes(widths[setting.graph])
        shape = shapes[setting.graph]
        assert (features, classes) == (shape.features, shape.classes)
        layers = example["LAYERS"][setting.model]
        assert hidden == [example["HIDDEN"][setting.model]] * (layers - 1)
        assert not setting.regularized and not setting.tf32
        names = models.initial_parameters(setting, [features, *hidden, classes])
        assert len(layer_parameters(names)) == layers
    named = options.parse(["tensor_core", "--device=gpu", "--shapes", "reddit", "dd"])
    assert tensor_core_steps.widths(named) == {"dd": (89, 2)}
    half = options.parse(["tensor_core", "--device=gpu", "--dtypes", "bfloat16"])
    assert tensor_core_steps.settings(half) == []


@needs_kernels
def test_the_published_model_is_the_scripts():
    chosen = options.parse(["training", "--device=gpu", "--models", "sage"])
    assert training.widths(chosen) == (602, 256, 256, 256, 256, 256, 41)
    assert training.widths(options.parse(["training", "--device=gpu"])) == training.WIDTHS
    groups = training.settings(chosen)
    for setting in (s for group in groups for s in group):
        assert setting.regularized and setting.input_layer
        names = models.initial_parameters(setting, list(training.widths(chosen)))
        assert {"linear_in.kernel", "linear.kernel", "norms.3.scale"} <= names.keys()
        assert len(layer_parameters(names)) == 4


def test_every_baseline_is_timed_in_each_dtype():
    chosen = options.parse(["training", "--device=gpu"])
    groups = training.settings(chosen)
    planned = {(s.impl, s.dtype) for group in groups for s in group}
    impls = (plan.OURS, plan.ESTIMATED, *plan.STEP_REFERENCES)
    assert planned == {(impl, dtype) for impl in impls for dtype in ("float32", "bfloat16")}
    assert all(len(group) == 1 for group in groups)
    assert len({setting.oracle for group in groups for setting in group}) == 1


def test_the_ratio_of_a_step_is_to_the_best_and_pygs_beside_it():
    def timed(impl, ms, dtype="float32", **fields):
        return row(impl, ms, dtype=dtype, direction="step", **fields)

    rows = [timed(plan.OURS, 10.0), timed(plan.PYG_ADJ, 30.0), timed(plan.CUSPARSE_STEP, 20.0)]
    rows += [timed(plan.SORTED, 5.0, accurate=False), timed(plan.OURS, 5.0, dtype="bfloat16")]
    rows.append(timed(plan.PYG_ADJ, 15.0, dtype="bfloat16"))
    rows += [timed(plan.OURS, 2.0)]
    rows[-1]["shape"]["k"] = 32
    compare_steps(rows)
    found = {(r["impl"], r["dtype"], r["shape"].get("k")): r for r in rows}
    ours = found[plan.OURS, "float32", None]
    expected = (plan.CUSPARSE_STEP, 2, 3)
    assert (ours["baseline"], ours["ratio"], ours["ratio_pyg"]) == expected
    half = found[plan.OURS, "bfloat16", None]
    assert (half["baseline"], half["ratio"]) == (plan.PYG_ADJ, 3)
    sparse = found[plan.OURS, "float32", 32]
    assert (sparse["baseline"], sparse["ratio"], sparse["ratio_pyg"]) == (plan.OURS, 5, 15)


@needs_kernels
@pytest.mark.system
def test_tc_gnns_steps_quick(tmp_path):
    only = ("--only", "jaxgnn", "segment")
    result = run_quick("tensor_core", tmp_path, "--parts", "steps", "--shapes", "cora", *only)
    rows = {(entry["case"], entry["impl"]): entry for entry in result["rows"]}
    plain = {"gcn": plan.SORTED, "agnn": plan.PLAIN}
    impls = [(model, impl) for model in plain for impl in (plan.ESTIMATED, plain[model])]
    assert rows.keys() == {(f"cora {model}", impl) for model, impl in impls}
    assert {entry["pass"] for entry in rows.values()} == {"step"}
    assert rows["cora gcn", plan.ESTIMATED]["baseline"] == plan.SORTED
    assert rows["cora agnn", plan.ESTIMATED]["shape"]["widths"] == [12, 32, 32, 32, 5]


@needs_kernels
@pytest.mark.system
def test_training_quick(tmp_path):
    result = run_quick("training", tmp_path, "--only", "jaxgnn", "segment_sum", "cuSPARSE")
    impls = {(entry["impl"], entry["dtype"]) for entry in result["rows"]}
    jax_impls = (plan.OURS, plan.SORTED, plan.TRANSPOSED)
    assert impls >= {(impl, dtype) for impl in jax_impls for dtype in ("float32", "bfloat16")}
    if importlib.util.find_spec("torch") is not None:
        assert (plan.CUSPARSE_STEP, "float32") in impls
