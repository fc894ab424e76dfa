"""`--edge-weights`: the weights of the data's edges in training, evaluation and prediction."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn import export
from jaxgnn._core.platform import of_device
from jaxgnn.data import DataError, NodeDataset, PlainGraph, load, load_nodes
from jaxgnn.graph import Graph
from jaxgnn.train import (
    ConfigError,
    InferenceSample,
    TrainConfig,
    build,
    evaluate,
    load_run,
    plan,
    restore_run,
    run,
    train_seeds,
)
from jaxgnn.train.problems.node_problem import make_task, prepared
from jaxgnn.train.problems.problem import make_problem
from jaxgnn.train.process.recovery import Recovery
from jaxgnn.train.reports.records import fingerprint
from jaxgnn.train.settings.saved_settings import from_settings
from jaxgnn.train.steps.edge_weights import edge_weights_of
from jaxgnn.train.steps.model import WEIGHTED_MODELS, build_model
from jaxgnn.train.steps.tiling import serves
from jaxgnn_cli import main

NODES = 24
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(NODES, 3)).round(3)
# In no order, with repeated edges and self-loops; each node has at most 16.
SENDERS, RECEIVERS = RNG.integers(0, NODES, (2, 96))
SENDERS[:3] = RECEIVERS[:3]
WEIGHTS = RNG.exponential(size=96).round(3)
SMALL = TrainConfig(hidden=8, epochs=3, patience=0, dropout=0.0, edge_weights=True)


def write(folder: Path, weights=WEIGHTS, *, labels: bool = True) -> str:
    """Tables of the graph; without weights no such column."""
    folder.mkdir()
    heads = ["id", *["label", "split"] * labels, "x", "y", "z"]
    rows = [
        [f"n{i}", *["ab"[i % 2], ("train", "val", "test")[i % 3]] * labels, *map(str, FEATURES[i])]
        for i in range(NODES)
    ]
    lines = [",".join(row) for row in [heads, *([str(v) for v in row] for row in rows)]]
    (folder / "nodes.csv").write_text("\n".join(lines) + "\n")
    ends = [f"n{s},n{r}" for s, r in zip(SENDERS, RECEIVERS, strict=True)]
    if weights is not None:
        ends = [f"{end},{weight}" for end, weight in zip(ends, weights, strict=True)]
    head = "source,target" + ",weight" * (weights is not None)
    (folder / "edges.csv").write_text("\n".join([head, *ends]) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("weights") / "tables")


def losses(directory: Path | str) -> list[float]:
    lines = (Path(directory) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def by_hand(config: TrainConfig, weights: np.ndarray | None) -> list[float]:
    """The losses of the plain model, of the edges as they are listed above."""
    graph, weights = Graph.from_edges(
        SENDERS,
        RECEIVERS,
        num_nodes=NODES,
        edge_data=np.float32(WEIGHTS if weights is None else weights),
    )
    x, labels = jnp.asarray(FEATURES, jnp.float32), jnp.arange(NODES) % 2
    train = np.arange(NODES) % 3 == 0
    model = build_model(config, 3, 2, nnx.Rngs(params=config.seed, dropout=0, sampling=0))
    model.train()
    definition, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.chain(
        optax.add_decayed_weights(config.weight_decay), optax.adam(config.learning_rate)
    )

    @jax.jit
    def step(params, rest, state):
        def loss(params):
            logits = nnx.merge(definition, params, rest)(graph, x, weights)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return each[train].mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state, found = optimizer.init(params), []
    for _ in range(config.epochs):
        params, state, value = step(params, rest, state)
        found.append(float(value))
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {"model": "gcn"},
        {"model": "sage"},
        {"model": "gin"},
        {"model": "sage", "activation": "maxk", "k": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_losses_are_those_of_the_plain_model_with_weights(tables, tmp_path, options):
    config = dataclasses.replace(SMALL, dataset=tables, **options)
    run(dataclasses.replace(config, run_directory=str(tmp_path / "run")))
    found = losses(tmp_path / "run")
    np.testing.assert_allclose(found, by_hand(config, WEIGHTS), rtol=1e-5)
    assert abs(found[0] - by_hand(config, np.ones(96))[0]) > 1e-3


def test_weights_of_one_change_nothing(tmp_path):
    """And what a run without the option reads, and its checksum, do not depend on them."""
    ones = write(tmp_path / "ones", np.ones(96))
    other, none = write(tmp_path / "other"), write(tmp_path / "none", None)
    found = []
    for name, path, takes in (("a", ones, True), ("b", other, False)):
        directory = str(tmp_path / name)
        config = dataclasses.replace(SMALL, dataset=path, edge_weights=takes)
        run(dataclasses.replace(config, run_directory=directory))
        found.append(losses(directory))
    np.testing.assert_allclose(*found, rtol=1e-5)
    data = [load_nodes(path) for path in (ones, other, none)]
    prints = [fingerprint(each, each.split(0)) for each in data]
    assert prints[0] == prints[1] == prints[2]
    assert len({fingerprint(each, each.split(0), weights=True) for each in data}) == 3


@pytest.mark.system
def test_a_run_is_scored_predicted_and_continued(tables, tmp_path, capsys):
    options = ["--edge-weights", "--hidden", "8", "--epochs", "3", "--dropout", "0"]
    directory = str(tmp_path / "run")
    assert main(["train", tables, *options, "--run-directory", directory]) == 0
    assert "; weights of the edges are used" in capsys.readouterr().out
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert settings["edge_weights"] is True
    del settings["edge_weights"]  # as an earlier version wrote them
    assert from_settings(settings).edge_weights is False

    loaded, data = load_run(directory), load_nodes(tables)
    weights = loaded.edge_weights(data)
    x = jnp.asarray(data.features)
    expected = loaded.model(data.graph, x, jnp.asarray(data.weights))
    assert np.abs(expected - loaded.model(data.graph, x)).max() > 1e-3
    np.testing.assert_allclose(
        loaded.logits(data.graph, data.features, weights), expected, atol=1e-6
    )
    # The same graph without labels, which has its weights too.
    plain = write(tmp_path / "plain", labels=False)
    assert isinstance(load(plain), PlainGraph)
    for path in ([], [plain]):
        assert main(["predict", directory, *path, "--output", str(tmp_path / "p.npz")]) == 0
        found = np.load(tmp_path / "p.npz")["probabilities"]
        np.testing.assert_allclose(found, jax.nn.softmax(expected), atol=1e-6)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    out = str(tmp_path / "out")
    assert main(["evaluate", directory, tables, "--output", out]) == 0
    rows = json.loads((tmp_path / "out" / "evaluation.json").read_text())["rows"]
    assert rows[2]["score"] == pytest.approx(summary["test_score"])
    # As many edges as there are: the same scores.
    restored = restore_run(directory)
    measured = evaluate(restored, [InferenceSample("bucket", 100)], num_runs=1)["rows"]
    assert [row["test_score"] for row in measured] == [pytest.approx(summary["test_score"])] * 2

    assert main(["train", "--resume", directory, "--epochs", "5"]) == 0
    longer = dataclasses.replace(
        from_settings(json.loads((tmp_path / "run" / "config.json").read_text())["settings"]),
        run_directory=str(tmp_path / "longer"),
    )
    run(longer)
    assert losses(directory) == losses(tmp_path / "longer") and len(losses(directory)) == 5

    # Other weights are other data.
    changed = dataclasses.replace(data, weights=data.weights * 2)
    with pytest.raises(ConfigError, match="--resume: the data are not those of"):
        run(dataclasses.replace(longer, resume=directory, run_directory=directory), dataset=changed)
    with pytest.raises(ConfigError, match="the data are not those of"):
        restore_run(directory, dataset=dataclasses.replace(data, weights=None))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [{"model": "gcn"}, {"model": "sage", "dtype": "bfloat16"}, {"features": "embedding"}],
    ids=lambda options: "-".join(options.values()),
)
def test_exported_models_take_the_weights(tables, tmp_path, capsys, options):
    """On the run's graph and on another one, which is padded; with kernels and without."""
    pytest.importorskip("flatbuffers")
    directory = str(tmp_path / "run")
    run(dataclasses.replace(SMALL, dataset=tables, epochs=1, run_directory=directory, **options))
    loaded, data = load_run(directory), load_nodes(tables)
    nodes = NODES if loaded.has_embedding else NODES - 4
    kept = np.flatnonzero(np.maximum(SENDERS, RECEIVERS) < nodes)[:50]
    other, weights = Graph.from_edges(
        SENDERS[kept], RECEIVERS[kept], num_nodes=nodes, edge_data=np.float32(WEIGHTS[kept])
    )
    given = [(data.graph, data.features, data.weights), (other, data.features[:nodes], weights)]
    limit = 1e-2 if "dtype" in options else 1e-5
    larger = ["--nodes", str(NODES), "--edges", "120", "--portable"]
    for name, more in (("kernels", ["--platforms", of_device()]), ("portable", larger)):
        assert main(["export", directory, "--output", str(tmp_path / name), *more]) == 0
        assert "takes the weights of the edges: model(graph, x, w" in capsys.readouterr().out
        exported = export.load(tmp_path / name)
        assert exported.manifest.edge_weights
        for arguments in given:
            found = jax.nn.softmax(jnp.float32(exported(*arguments)))
            np.testing.assert_allclose(found, loaded.predict(*arguments), atol=limit)
    graph, x, weights = given[0]
    found = exported(graph, x, weights) - exported(graph, x, np.ones(96))
    assert np.abs(np.float32(found)).max() > limit
    for wrong, message in (
        (None, "weights: expected a weight of each edge, got None"),
        (weights[1:], r"weights: expected the shape \[96\], got \[95\]"),
        (weights[:, None], r"weights: expected the shape \[96\], got \[96, 1\]"),
    ):
        with pytest.raises(DataError, match=message):
            exported(graph, x, wrong)


def test_mini_batches_take_the_weights_of_their_edges(tables, tmp_path):
    """One batch with all neighbors is a step on the whole graph; evaluated by layers, too."""
    whole = dataclasses.replace(SMALL, dataset=tables, model="sage")
    batches = dataclasses.replace(
        whole, num_neighbors="16,16", evaluation_batch_size=7, features_on="host"
    )
    for name, config in (("whole", whole), ("batches", batches)):
        run(dataclasses.replace(config, run_directory=str(tmp_path / name)))
    np.testing.assert_allclose(losses(tmp_path / "batches"), losses(tmp_path / "whole"), rtol=1e-5)
    data = load_nodes(tables)
    loaded = [load_run(tmp_path / name) for name in ("whole", "batches")]
    found = [each.predict(data.graph, data.features, data.weights) for each in loaded]
    np.testing.assert_allclose(*found, atol=1e-5)


def test_undirected_edges_have_the_sums_of_their_weights(tables):
    config = dataclasses.replace(SMALL, dataset=tables, undirected=True)
    task = make_problem(config, None, Recovery()).task
    dense = np.zeros((NODES, NODES))
    np.add.at(dense, (SENDERS, RECEIVERS), WEIGHTS)
    own = np.diag(np.diag(dense))  # a self-loop is its own reverse
    both = task.graph.to_scipy(task.weights).toarray()
    np.testing.assert_allclose(
        both - np.diag(np.diag(both)), (dense + dense.T) - 2 * own, rtol=1e-5
    )
    given = make_problem(config, load_nodes(tables), Recovery()).task
    np.testing.assert_array_equal(given.weights, task.weights)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_have_the_type_of_the_sums(tables, dtype):
    config = dataclasses.replace(SMALL, dataset=tables, dtype=dtype)
    data = load_nodes(tables)
    task = make_task(config, data, data.split())
    assert task.weights is not None and task.weights.dtype == jnp.float32
    program, state = build(config, task)
    logits = jax.eval_shape(program.logits, state.params, state.rest, task)
    assert logits.dtype == dtype


def test_seeds_at_once_take_the_weights(tables, tmp_path):
    config = dataclasses.replace(SMALL, dataset=tables, epochs=12, hidden=4)
    result = train_seeds(config, [3, 4])
    one = run(dataclasses.replace(config, seed=4, run_directory=str(tmp_path / "run")))
    assert result.scores[1] == pytest.approx(one["test_score"], abs=1.1 / NODES)


def test_on_a_gpu_windows_have_the_weights_places(monkeypatch, tables):
    graph = load_nodes(tables).graph
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    maxk = dataclasses.replace(SMALL, activation="maxk", k=4)
    windows = prepared(graph, maxk).windows
    assert windows is not None and windows.edges is not None
    windows = prepared(graph, dataclasses.replace(maxk, edge_weights=False)).windows
    assert windows is not None and windows.edges is None
    assert not serves(SMALL) and serves(dataclasses.replace(SMALL, edge_weights=False))


def with_weight(data: NodeDataset, edge: int, weight: float) -> NodeDataset:
    assert data.weights is not None
    weights = data.weights.copy()
    weights[edge] = weight
    return dataclasses.replace(data, weights=weights)


def test_negative_degrees_raise_where_gcn_divides_by_them(tables, tmp_path):
    data = load_nodes(tables)
    assert data.weights is not None
    offsets, loops = np.asarray(data.graph.row_offsets), np.asarray(data.graph.self_loops)
    node = next(i for i in range(NODES) if loops[i] == 0 and offsets[i + 1] > offsets[i])
    edge = int(offsets[node])
    bad, names = with_weight(data, edge, -100.0), data.node_names
    assert names is not None
    config = dataclasses.replace(SMALL, run_directory=str(tmp_path / "run"))
    match = rf"tables: weights: expected degrees from 0 for gcn, .* at node {names[node]}$"
    with pytest.raises(DataError, match=match):
        run(config, dataset=bad)
    # A self-loop of weight 1 outweighs this one, but not in a sample of the edges alone.
    sums = np.add.reduceat(data.weights, offsets[:-1][np.diff(offsets) > 0])
    assert sums.min() > 0
    good = with_weight(data, edge, -0.5)
    task = make_task(config, good, good.split())
    program, state = build(config, task)
    assert np.isfinite(program.logits(state.params, state.rest, task)).all()
    sampled = dataclasses.replace(config, num_neighbors="2,2")
    with pytest.raises(DataError, match=r"none below 0 for gcn with --num-neighbors, .* got -0.5"):
        run(sampled, dataset=good)
    for model in ("sage", "gin"):  # sums and means without a normalization
        task = make_task(dataclasses.replace(config, model=model), bad, bad.split())
        assert task.weights is not None and task.weights[edge] == -100
    # In the self-loop of a node, too, of which the last one counts.
    looped = Graph.from_edges([0, 0, 1], [0, 0, 0], num_nodes=NODES)
    for weights, refused in (([-9.0, 1.0, 0.5], False), ([1.0, -9.0, 0.5], True)):
        of_loops = dataclasses.replace(data, graph=looped, weights=np.float32(weights))
        if refused:
            with pytest.raises(DataError, match=r"got -8.5 at node n0"):
                make_task(config, of_loops, data.split())
        else:
            task = make_task(config, of_loops, data.split())
            assert np.isfinite(program.logits(state.params, state.rest, task)).all()


def test_degrees_beyond_float32_raise(tables):
    """Their inverse roots are 0, so that all messages would be."""
    data = load_nodes(tables)
    graph = Graph.from_edges([1, 2], [0, 0], num_nodes=NODES)
    for large, refused in ((3e38, True), (1e38, False)):
        huge = dataclasses.replace(data, graph=graph, weights=np.float32([large, large]))
        if refused:
            match = r"weights: expected degrees that float32 holds .*, got 6e\+38 at node n0$"
            with pytest.raises(DataError, match=match):
                make_task(SMALL, huge, data.split())
        else:
            assert make_task(SMALL, huge, data.split()).weights is not None
    huge = dataclasses.replace(data, graph=graph, weights=np.float32([3e38, 3e38]))
    for options in ({"dtype": "float64"}, {"model": "gin"}):
        config = dataclasses.replace(SMALL, **options)
        np.testing.assert_array_equal(edge_weights_of(config, huge), huge.weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "link"}, "--edge-weights: expected --task node with it, got --task link"),
        (
            {"task": "graph", "batch_size": 128},
            "--edge-weights: expected --task node with it, got --task graph",
        ),
    ],
)
def test_errors_of_options_that_do_not_go_together(options, message):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(SMALL, **options).check()
    assert str(error.value) == message


def test_errors_of_models_without_weights(tables):
    assert WEIGHTED_MODELS == ("gcn", "sage", "gin")
    for model in ("gat", "sage_embedding", "monet", "mlp"):
        config = dataclasses.replace(SMALL, dataset=tables, model=model)
        with pytest.raises(
            ConfigError, match=rf"--edge-weights: .*\(gcn, sage, gin\), got {model}"
        ):
            make_problem(config, None, Recovery()).build()
    data = load_nodes(tables)
    for config in (SMALL, dataclasses.replace(SMALL, edge_weights=False)):
        other = dataclasses.replace(SMALL, edge_weights=not config.edge_weights)
        with pytest.raises(
            ConfigError, match=r"task: weights: expected (some with|none without) --edge-weights"
        ):
            build(config, make_task(other, data, data.split()))
    with pytest.raises(ConfigError, match="--edge-weights: jaxgnn plan expected none"):
        plan(dataclasses.replace(SMALL, dataset=tables), [2])


def test_errors_of_data_without_weights(tables, tmp_path, capsys):
    without = write(tmp_path / "without", None)
    config = dataclasses.replace(SMALL, epochs=1)
    expected = "without: expected weights of the edges for --edge-weights, got none"
    assert main(["train", without, "--edge-weights"]) == 2
    assert expected in capsys.readouterr().err
    directory, plain = str(tmp_path / "weighted"), str(tmp_path / "plain")
    run(dataclasses.replace(config, dataset=tables, run_directory=directory))
    run(dataclasses.replace(config, dataset=tables, edge_weights=False, run_directory=plain))
    output = ["--output", str(tmp_path / "p.csv")]
    assert main(["predict", directory, without, *output]) == 2
    assert expected in capsys.readouterr().err
    data = load_nodes(tables)
    loaded = load_run(directory)
    for weights, message in (
        (None, "weights: expected some of a run with --edge-weights, got none"),
        (WEIGHTS[1:], r"weights: expected the shape \[96\], got \[95\]"),
    ):
        with pytest.raises(DataError, match=message):
            loaded.logits(data.graph, data.features, weights)
    with pytest.raises(DataError, match="weights: expected none of a run without --edge-weights"):
        load_run(plain).predict(data.graph, data.features, data.weights)
    assert load_run(plain).edge_weights(data) is None
