"""The training loop, its parts, and the files of a run."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache
from sklearn.metrics import roc_auc_score

from jaxgnn.data import Split
from jaxgnn.nn import MODELS
from jaxgnn.train import (
    ConfigError,
    DivergenceError,
    Task,
    TrainConfig,
    build,
    build_optimizer,
    load_dataset,
    masked_accuracy,
    masked_loss,
    plan,
    run,
    run_folds,
    score,
    train_in_sequence,
    train_seeds,
)
from jaxgnn.train.loop.epochs import copy, kernel_calls
from jaxgnn.train.problems.node_problem import confusion_counts, prepared
from jaxgnn.train.settings.saved_settings import check_same_settings, from_settings
from jaxgnn.train.steps.model import build_activation, build_model
from tests.support.training import NODES, SMALL, fit, prepare, toy

pytestmark = pytest.mark.few(1)


@pytest.fixture(scope="module", autouse=True)
def cache_of_programs(tmp_path_factory):
    """Several runs of one program, which the tests compare, compile it once."""

    def keep(directory, seconds):
        jax.config.update("jax_compilation_cache_dir", directory)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
        compilation_cache.reset_cache()  # JAX reads the settings again

    config = jax.config
    before = config.jax_compilation_cache_dir, config.jax_persistent_cache_min_compile_time_secs
    keep(str(tmp_path_factory.mktemp("programs")), 0.05)
    yield
    keep(*before)


def test_graphs_are_prepared_for_a_gpu(monkeypatch):
    graph = toy().graph
    maxk = dataclasses.replace(SMALL, activation="maxk", k=4)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert prepared(graph, SMALL) is graph
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert prepared(graph, SMALL).row_schedule is not None
    for hidden, receivers in ((16, 64), (256, 64), (384, 42), (1024, 16)):
        windows = prepared(graph, dataclasses.replace(maxk, hidden=hidden)).windows
        assert windows is not None and windows.receivers == receivers
        assert windows.width >= hidden
    wide = prepared(graph, dataclasses.replace(maxk, hidden=2048))
    assert wide.windows is None and wide.row_schedule is not None


# The task.


@pytest.mark.parametrize("multilabel", [False, True])
def test_loss_and_accuracy_are_means_over_the_mask(multilabel):
    dataset = toy(multilabel=multilabel)
    task = Task.from_dataset(dataset, dataset.split(0))
    logits = np.random.default_rng(1).normal(size=(NODES, 3)).astype(np.float32)
    mask = np.arange(NODES) < 7
    wide = logits.astype(np.float64)
    if multilabel:
        shares = 1 / (1 + np.exp(-wide))
        losses = -np.where(dataset.labels > 0, np.log(shares), np.log(1 - shares)).mean(axis=1)
        right = ((logits > 0) == (dataset.labels > 0)).mean(axis=1)
    else:
        shares = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
        losses = -np.log(shares[np.arange(NODES), dataset.labels])
        right = logits.argmax(axis=1) == dataset.labels
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        loss = masked_loss(task, jnp.asarray(logits), jnp.asarray(mask))
        accuracy = masked_accuracy(task, jnp.asarray(logits), jnp.asarray(mask))
    np.testing.assert_allclose(loss, losses[mask].mean(), rtol=1e-5)
    np.testing.assert_allclose(accuracy, right[mask].mean(), rtol=1e-6)
    assert score("accuracy", dataset.labels, logits, mask) == pytest.approx(float(accuracy))
    assert float(masked_loss(task, jnp.asarray(logits), jnp.zeros(NODES, bool))) == 0


def test_roc_auc_of_two_classes_of_more_and_of_several_labels():
    rng = np.random.default_rng(2)
    mask = rng.random(NODES) < 0.7
    logits, labels = rng.normal(size=(NODES, 2)), rng.integers(0, 2, NODES)
    expected = roc_auc_score(labels[mask], (logits[:, 1] - logits[:, 0])[mask])
    assert score("roc_auc", labels, logits, mask) == pytest.approx(expected)
    assert math.isnan(score("roc_auc", labels, logits, mask & (labels == 1)))

    logits, labels = rng.normal(size=(NODES, 3)), rng.integers(0, 3, NODES)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = roc_auc_score(labels[mask], shares[mask], multi_class="ovr")
    assert score("roc_auc", labels, logits, mask) == pytest.approx(expected)

    several = (rng.random((NODES, 3)) < 0.4).astype(np.float32)
    expected = roc_auc_score(several[mask], logits[mask])
    assert score("roc_auc", several, logits, mask) == pytest.approx(expected)


# The loop.


@pytest.mark.parametrize(
    ("model", "activation"),
    [(model, "relu") for model in sorted(MODELS)]
    + [(model, "maxk") for model in sorted(set(MODELS) - {"agnn", "gatv2", "transformer"})],
)
def test_every_model_learns_the_toy(model, activation):
    options = {"activation": "maxk", "k": 3, "input_layer": True} if activation == "maxk" else {}
    *_, rows = fit(dataclasses.replace(SMALL, model=model, epochs=100, dropout=0.0, **options))
    assert rows[-1]["loss"] < 0.3 * rows[0]["loss"]
    assert max(row["val_accuracy"] for row in rows) > 0.7


def test_selection_is_by_validation_score_then_loss():
    _, best, progress, rows = fit(dataclasses.replace(SMALL, epochs=30))
    order = sorted(rows, key=lambda row: (-row["val_accuracy"], row["val_loss"], row["epoch"]))
    assert progress.best_epoch == order[0]["epoch"]
    assert progress.best_score == order[0]["val_accuracy"]
    task, _, _, compiled = prepare()
    metrics = compiled.evaluate(best.params, best.rest, task)[1]
    assert float(metrics["val_accuracy"]) == progress.best_score
    assert float(metrics["val_loss"]) == progress.best_loss


def test_training_does_not_depend_on_the_test_labels():
    dataset = toy()
    test = dataset.split(0).test
    other = np.where(test, (dataset.labels + 1) % 3, dataset.labels).astype(np.int32)
    one, two = fit(), fit(labels=other)
    for row, changed in zip(one[-1], two[-1], strict=True):
        assert {**row, "seconds": 0} == {**changed, "seconds": 0}
    assert one[2] == two[2]


def test_patience_stops():
    config = dataclasses.replace(SMALL, epochs=2000, patience=5)
    *_, progress, rows = fit(config)
    assert progress.stopped
    assert len(rows) == progress.epoch == progress.best_epoch + 5 < 2000


def test_without_validation_nodes_the_last_epoch_counts():
    state, best, progress, rows = fit(data={"validation": False}, patience=2)
    assert progress.best_epoch == progress.epoch == SMALL.epochs
    assert "val_loss" not in rows[0]
    jax.tree.map(np.testing.assert_array_equal, best.params, state.params)


@pytest.mark.parametrize(("multilabel", "classes"), [(False, 2), (False, 3), (True, 3)])
def test_roc_auc_selects_where_the_dataset_asks_for_it(multilabel, classes):
    *_, progress, rows = fit(
        data={"classes": classes, "multilabel": multilabel, "metric": "roc_auc"}
    )
    assert progress.best_score == max(row["val_roc_auc"] for row in rows)


def test_divergence_is_reported():
    with pytest.raises(DivergenceError, match=r"is (nan|inf) at epoch"):
        fit(dataclasses.replace(SMALL, learning_rate=1e30, epochs=20))


def test_checkpoints_come_at_the_interval_and_at_the_end():
    saved = []
    fit(
        checkpoint=lambda state, best, progress: saved.append(progress.epoch),
        checkpoint_interval=3,
    )
    assert saved == [3, 6, 8]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_dtypes(dtype):
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(SMALL, dtype=dtype, epochs=40, dropout=0.0)
        state, _, _, rows = fit(config)
        wide = jnp.float64 if dtype == "float64" else jnp.float32
        assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype(wide)}
    assert rows[-1]["loss"] < 0.3 * rows[0]["loss"]


def test_half_precision_follows_single():
    config = dataclasses.replace(SMALL, dropout=0.0, epochs=4)
    losses = {
        dtype: [row["loss"] for row in fit(dataclasses.replace(config, dtype=dtype))[-1]]
        for dtype in ("float32", "float16", "bfloat16")
    }
    np.testing.assert_allclose(losses["float16"], losses["float32"], rtol=0.02)
    np.testing.assert_allclose(losses["bfloat16"], losses["float32"], rtol=0.1)


def test_the_step_takes_the_graph_as_an_argument():
    task, program, state, compiled = prepare()
    text = jax.jit(program.step).lower(state, task).as_text()
    header = text[text.index("@main(") : text.index("{\n", text.index("@main("))]
    assert header.count(f"tensor<{task.graph.num_edges}xi32>") >= 2
    from jaxgnn._core.platform import kernels_available

    assert ("spmm" in compiled.kernels) == kernels_available()


def test_a_summary_says_which_kernels_are_sparse():
    from jaxgnn.train.process.machine import describe_kernels

    text = describe_kernels({"spmm": 1, "maxk_spmm": 2, "maxk": 2}, maxk=True)
    assert text.startswith("maxk (2 calls), maxk_spmm (sparse features, 2 calls), spmm (1 call): ")
    assert describe_kernels({"spmm": 1}, maxk=True).endswith("; MaxK: JAX reference")
    assert describe_kernels({}).startswith("none: JAX reference")


def test_kernel_calls_counts():
    text = "stablehlo.custom_call @jaxgnn_spmm(%0) x stablehlo.custom_call @jaxgnn_spmm(%1)"
    assert kernel_calls(text + " stablehlo.custom_call @Sharding(%2)") == {"spmm": 2}


# The optimizer.


def test_l2_decay_of_the_first_layer_alone():
    config = dataclasses.replace(SMALL, decay_layers="first", weight_decay=10.0, dropout=0.0)
    task, _, state, compiled = prepare(config)
    free = prepare(dataclasses.replace(config, weight_decay=0.0))
    params = [compiled.step(state, task)[0].params, free[3].step(free[2], task)[0].params]
    same = {
        jax.tree_util.keystr(path, simple=True, separator="."): bool((one == other).all())
        for (path, one), other in zip(
            jax.tree_util.tree_leaves_with_path(params[0]), jax.tree.leaves(params[1]), strict=True
        )
    }
    assert not same["convs.0.linear.kernel.value"]
    assert all(equal for name, equal in same.items() if name.startswith("convs.1"))


def test_decoupled_decay_shrinks_before_the_step():
    config = dataclasses.replace(SMALL, dropout=0.0, decay="decoupled", weight_decay=0.5)
    task, _, state, compiled = prepare(config)
    before = copy(state.params)
    after = compiled.step(state, task)[0].params
    free = prepare(dataclasses.replace(config, weight_decay=0.0))
    plain = free[3].step(free[2], task)[0].params
    expected = jax.tree.map(lambda p, q: p - config.learning_rate * 0.5 * q, plain, before)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after, expected)


# The configuration.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", 0),
        ("layers", 1.5),
        ("hidden", -1),
        ("heads", 0),
        ("out_heads", -1),
        ("activation", "tanh"),
        ("k", 0),
        ("k", 5000),
        ("dropout", 1.0),
        ("input_dropout", -0.1),
        ("input_dropout", 1.0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("weight_decay", -1e-4),
        ("epochs", 0),
        ("patience", -1),
        ("seed", -1),
        ("split", -1),
        ("checkpoint_interval", 0),
        ("dtype", "float8"),
        ("norm", "instance"),
        ("jumping", "lstm"),
        ("edge_weights", "yes"),
        ("num_neighbors", [5, 5]),
    ],
)
def test_options_out_of_range(name, value):
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')}: expected .*, got "):
        dataclasses.replace(TrainConfig(), **{name: value}).check()


def test_what_is_no_configuration():
    options, task = {"dataset": "digits"}, prepare()[0]
    calls = (
        lambda: run(options),
        lambda: run_folds(options, 3),
        lambda: train_seeds(options, [0]),
        lambda: next(train_in_sequence(options, [0])),
        lambda: plan(options, [2]),
        lambda: load_dataset(options),
        lambda: build(options, task),
        lambda: build_model(options, 4, 2, nnx.Rngs(0)),
        lambda: build_optimizer(options),
    )
    for call in calls:
        with pytest.raises(TypeError, match="config: expected a TrainConfig, got dict"):
            call()


def test_arguments_of_a_run_that_are_something_else():
    links = dataclasses.replace(SMALL, task="link")
    for call, message in (
        (lambda: run(SMALL, dataset="digits"), "dataset: expected a NodeDataset, got str"),
        (lambda: run(links, dataset="digits"), "dataset: expected a LinkData or NodeDataset, got"),
        (lambda: train_seeds(SMALL, [0], dataset="digits"), "dataset: expected a NodeDataset"),
        (lambda: plan(SMALL, [2], dataset="digits"), "dataset: expected a NodeDataset, got str"),
        (lambda: train_seeds(SMALL, 3), "seeds: expected a sequence of integers, got 3"),
        (lambda: train_seeds(SMALL, [0.5]), "seeds: expected a sequence of integers, got "),
        (lambda: train_seeds(SMALL, [1], splits=0), "splits: expected a sequence of integers"),
        (lambda: run(SMALL, print), "console: expected a rich Console or None, got builtin"),
        (lambda: run(SMALL, callbacks=[print, 3]), r"callbacks\[1\]: expected a function, got int"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


def test_settings_round_trip_through_json():
    config = dataclasses.replace(SMALL, model="sage", residual=True, learning_rate=0.1)
    saved = json.loads(json.dumps(config.settings()))
    assert from_settings(saved).settings() == config.settings()
    check_same_settings(saved, dataclasses.replace(config, plain=True, checkpoint_interval=1))
    with pytest.raises(ConfigError, match=r"--seed 5 \(the run's: 0\)"):
        check_same_settings(saved, dataclasses.replace(config, seed=5))
    with pytest.raises(ConfigError, match="unknown settings"):
        from_settings({**saved, "color": "blue"})
    with pytest.raises(ConfigError, match="layers: expected int"):
        from_settings({**saved, "layers": "2"})


def test_k_belongs_to_maxk_and_fits_the_hidden_width():
    base = dataclasses.replace(SMALL, activation="maxk", k=8)
    base.check()
    with pytest.raises(ConfigError, match=r"^--k: expected at most --hidden, 8, got 9"):
        dataclasses.replace(base, k=9).check()
    with pytest.raises(ConfigError, match=r"^--k: expected --activation maxk with it, got .* relu"):
        dataclasses.replace(base, activation="relu").check()
    with pytest.raises(ConfigError, match=r"^--packed: expected --activation maxk with it"):
        dataclasses.replace(SMALL, packed=True).check()
    for wrong in ({"hidden": 1025}, {"dtype": "float64"}):
        with pytest.raises(ConfigError, match=r"^--packed: expected --hidden of at most 1024"):
            dataclasses.replace(base, packed=True, **wrong).check()
    with pytest.raises(ConfigError, match=r"^--anneal-epochs: expected --anneal-from with it"):
        dataclasses.replace(base, anneal_epochs=5).check()
    for wide in (5, 9):
        with pytest.raises(ConfigError, match=r"^--anneal-from: expected 0 or a number from --k"):
            dataclasses.replace(base, k=6, anneal_from=wide).check()


def test_annealing_narrows_with_the_steps():
    dataset = toy()
    task = Task.from_dataset(dataset, dataset.split(0))
    config = dataclasses.replace(
        SMALL, activation="maxk", k=2, anneal_from=8, anneal_epochs=3, dropout=0.0
    )
    program, state = build(config.check(), task)
    step, kept = jax.jit(program.step), []
    for _ in range(5):
        state, _ = step(state, task)
        kept.append(int(state.rest["activation"]["active"][...]))
    assert kept == [8, 6, 4, 2, 2]
    # From then on it is the model whose MaxK keeps 2, in training and in evaluation.
    narrow, own = build(dataclasses.replace(config, anneal_from=0), task)
    own = dataclasses.replace(own, params=state.params, optimizer=state.optimizer)
    expected, expected_loss = jax.jit(narrow.step)(own, task)
    state, loss = step(state, task)
    assert loss == pytest.approx(float(expected_loss), rel=1e-6)
    logits = program.logits(state.params, state.rest, task)
    np.testing.assert_allclose(
        logits, narrow.logits(expected.params, expected.rest, task), rtol=1e-4, atol=1e-5
    )


def test_packed_values_have_15_bits_of_mantissa():
    config = dataclasses.replace(SMALL, activation="maxk", k=4, packed=True)
    activation = build_activation(config.check())
    kept = np.asarray(activation.sparse(jax.random.normal(jax.random.key(0), (5, 8))).values)
    assert kept.any() and not (kept.view(np.uint32) & 0xFF).any()


def test_decay_of_the_first_layer_is_that_of_an_input_layer():
    dataset = toy()
    task = Task.from_dataset(dataset, dataset.split(0))
    config = dataclasses.replace(SMALL, decay_layers="first", input_layer=True)
    program, state = build(config, task)
    zero = jax.tree.map(jnp.zeros_like, state.params)
    updates, _ = program.optimizer.update(zero, state.optimizer, state.params)
    moved = {
        jax.tree_util.keystr(path[:1], simple=True): bool(np.any(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(updates)
    }
    assert moved["linear_in"] and not moved["convs"]


def test_heads_need_a_model_with_attention():
    dataset = toy()
    task = Task.from_dataset(dataset, dataset.split(0))
    with pytest.raises(ConfigError, match="--heads: gcn has no attention heads, got 4"):
        build(dataclasses.replace(SMALL, heads=4), task)
    with pytest.raises(ConfigError, match="--out-heads: gcn has no attention heads, got 2"):
        build(dataclasses.replace(SMALL, out_heads=2), task)
    with pytest.raises(ConfigError, match=r"--heads: expected a divisor of --hidden, .* got 7"):
        build(dataclasses.replace(SMALL, model="gat", heads=7), task)
    with pytest.raises(ConfigError, match=r"--model: expected one of .*gcn.*, got 'gatv3'"):
        build(dataclasses.replace(SMALL, model="gatv3"), task)


def test_options_of_one_model():
    """MoNet's Gaussians and coordinates, in the settings of Zhang et al., and GIN's epsilon."""
    dataset = toy()
    task = Task.from_dataset(dataset, dataset.split(0))

    def shapes(**options):
        params = build(dataclasses.replace(SMALL, **options).check(), task)[1].params
        leaves = jax.tree_util.tree_leaves_with_path(params)
        return {jax.tree_util.keystr(p, simple=True, separator="/"): x.shape for p, x in leaves}

    for kernels, dim in [(3, 2), (3, 3), (2, 1)]:
        found = shapes(model="monet", kernel_size=kernels, dim=dim)
        assert {s for name, s in found.items() if "/mu" in name} == {(kernels, dim)}
    learned = shapes(model="gin", train_eps=True)
    assert () in learned.values() and () not in shapes(model="gin").values()
    with pytest.raises(ConfigError, match=r"--kernel-size: expected --model monet .* gcn"):
        shapes(kernel_size=2)
    with pytest.raises(ConfigError, match="--dim: expected an integer from 1 to 16, got 17"):
        shapes(model="monet", dim=17)
    with pytest.raises(ConfigError, match=r"--train-eps: expected --model gin .* gcn"):
        shapes(train_eps=True)
    for model in ("gat", "transformer"):
        config = dataclasses.replace(SMALL, model=model, head_k=3).check()
        convs = build_model(config, 5, 2, nnx.Rngs(0)).convs
        assert [getattr(conv.maxk, "k", None) for conv in convs] == [3, None]
    with pytest.raises(ConfigError, match=r"--head-k: expected --model gat or transformer .* gcn"):
        shapes(head_k=2)
    with pytest.raises(ConfigError, match=r"--head-k: expected at most the \d+ features of a head"):
        shapes(model="gat", head_k=4096)


# Whole runs.


def test_a_run_writes_its_files(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setattr("jaxgnn.train.problems.node_problem.load_nodes", lambda name: toy())
    directory = tmp_path / "run"
    config = dataclasses.replace(SMALL, dataset="toy", run_directory=str(directory))
    summary = run(config)
    saved = json.loads((directory / "summary.json").read_text())
    assert summary == saved | {"run_directory": str(directory)}
    assert 0 <= saved["test_score"] <= 1 and saved["epochs"] == 8
    assert saved["peak_bytes"] > 1e6 and saved["epoch_seconds"] > 0
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert saved["val_score"] == pytest.approx(rows[saved["best_epoch"] - 1]["val_accuracy"])
    with Image.open(directory / "curves.png") as image:
        image.load()
        assert image.width > 1000 and len(set(image.convert("RGB").getdata())) > 100
    with pytest.raises(ConfigError, match="is not empty; continue its run with --resume"):
        run(config)
    # A finished run, resumed, comes to the same result.
    again = run(dataclasses.replace(config, resume=str(directory)))
    assert {**again, "peak_bytes": 0, "compile_seconds": 0} == {
        **summary,
        "peak_bytes": 0,
        "compile_seconds": 0,
    }
    other = dataclasses.replace(toy(), features=toy().features + np.float32(1))
    monkeypatch.setattr("jaxgnn.train.problems.node_problem.load_nodes", lambda name: other)
    with pytest.raises(ConfigError, match="--resume: the data are not those of"):
        run(dataclasses.replace(config, resume=str(directory)))


def test_confusion_counts():
    labels, found = np.array([0, 2, 2, 2], np.int32), np.array([0, 2, 1, 2])
    counts = confusion_counts(labels, found, 3)
    np.testing.assert_array_equal(counts, [[1, 0, 0], [0, 0, 0], [0, 1, 2]])
    one = confusion_counts(labels[:1], found[:1], 1)
    np.testing.assert_array_equal(one, [[1]])


@pytest.mark.parametrize(("own", "activation"), [(False, "relu"), (True, "maxk")])
def test_seeds_at_once_are_the_runs_one_by_one(tmp_path, monkeypatch, own, activation):
    dataset = toy()
    split = dataset.split(0)
    turned = Split(split.val, split.train, split.test)
    dataset = dataclasses.replace(dataset, splits={"a": split, "b": turned})
    monkeypatch.setattr("jaxgnn.train.problems.node_problem.load_nodes", lambda name: dataset)
    config = dataclasses.replace(SMALL, epochs=12, dropout=0.5)
    if activation == "maxk":
        config = dataclasses.replace(config, activation="maxk", k=3)
    result = train_seeds(config, [3, 4], splits=[0, 1] if own else None)
    for i, seed in enumerate([3, 4]):
        directory = str(tmp_path / f"{own}{seed}")
        one = run(dataclasses.replace(config, seed=seed, split=i * own, run_directory=directory))
        assert result.epochs[i] == one["best_epoch"]
        assert result.scores[i] == pytest.approx(one["test_score"], abs=1.1 / NODES)
    with pytest.raises(ValueError, match="patience"):
        train_seeds(dataclasses.replace(config, patience=3), [0])
    with pytest.raises(ValueError, match="at least one"):
        train_seeds(config, [])


@pytest.mark.system
@pytest.mark.parametrize("metric", ["accuracy", "roc_auc"])
def test_seeds_in_sequence_are_the_runs_one_by_one(tmp_path, metric):
    data = toy(metric=metric)
    turned = Split(data.split(0).val, data.split(0).train, data.split(0).test)
    data = dataclasses.replace(data, splits={"a": data.split(0), "b": turned})
    config = dataclasses.replace(SMALL, epochs=40, patience=4, dropout=0.5, norm="batch")
    seeds, splits = np.array([3, 4]), np.arange(2)
    result = train_seeds(config, seeds, splits=splits, in_sequence=True, dataset=data)
    for i, seed in enumerate([3, 4]):
        one = dataclasses.replace(config, seed=seed, split=i, run_directory=str(tmp_path / str(i)))
        summary = run(one, dataset=data)
        assert (result.epochs[i], result.scores[i]) == (
            summary["best_epoch"],
            summary["test_score"],
        )
