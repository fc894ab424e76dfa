"""`jaxgnn plan`: what it counts is what the programs do, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, distributed, gat_attention, maxk, sddmm
from jaxgnn._core.ffi import cpu_module
from jaxgnn.data import partition_arrays
from jaxgnn.train import ConfigError, TrainConfig, build, lower, plan
from jaxgnn.train.planning import plan_rates
from jaxgnn.train.planning.plan_graphs import Recorder, aggregations
from jaxgnn.train.problems.node_problem import choose_split, make_task
from jaxgnn.train.steps.sharded import column_devices, shard_graph
from jaxgnn_cli.status import run_command
from tests.support.sharded_steps import sent_in_a_step
from tests.support.training import toy

pytestmark = [
    pytest.mark.skipif(cpu_module is None, reason="jaxgnn._cpu is not built"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="simulated devices are the CPU's"),
]


@pytest.mark.parametrize("model", ["sage", "gcn", "gin"])
def test_the_aggregations_are_those_of_the_program(model):
    dataset = toy()
    config = TrainConfig(model=model, hidden=8, layers=3)
    task = make_task(config, dataset, choose_split(dataset, 0))
    program, state = build(config, task)
    recorder = Recorder(task.whole_graph)
    with_recorder = dataclasses.replace(task, graph=recorder)
    step = aggregations(lambda s: program.step(s, with_recorder), recorder, state)
    evaluation = aggregations(
        lambda s: program.evaluate(s.params, s.rest, with_recorder), recorder, state
    )
    calls = lower(program, state, task)[2]
    assert len(step) + len(evaluation) == calls["spmm"]
    assert [each.backward for each in evaluation] == [False] * 3
    assert {each.width for each in step} <= {3, 8}


def test_what_is_sent_and_held():
    dataset = toy()
    config = TrainConfig(model="sage", hidden=8, layers=2)
    one, rows, features = plan(config, [2], dataset=dataset, limit=1 << 30, bandwidth=1e9)
    assert [each.layout for each in (one, rows, features)] == ["one", "rows", "features"]
    mesh = jax.make_mesh((2,), ("x",))
    # 3 aggregations of the step: of 3 features twice, as a layer aggregates its narrower side.
    widths = [3, 3, 3]
    reduced = 2 * 1 / 2 * sum(p.nbytes for p in jax.tree.leaves(_params(config, dataset)))
    by_rows = distributed.shard(dataset.graph, mesh, rows="x")  # by the same partition
    for found, sent in (
        (rows, [by_rows.pair_rows * 4 * width for width in widths]),
        (features, [2 * 30 * 2 * 4 for _ in widths]),
    ):
        assert found.exchange_bytes == pytest.approx(sum(sent) + reduced, rel=0.02)
        extra = found.exchange_bytes / 1e9
        assert found.step_seconds == pytest.approx(found.compute_seconds + extra)
        assert found.epoch_seconds > found.step_seconds and not found.reason
    assert rows.memory["graph"] < one.memory["graph"] == features.memory["graph"]
    small = plan(config, [2], dataset=dataset, limit=one.bytes - 1, layouts=["rows"])
    most = max(small[0].memory, key=small[0].memory.__getitem__)
    assert small[0].reason == (
        f"{small[0].bytes / 1e3:,.2f} kB of {small[0].limit / 1e3:,.2f}: {most} takes "
        f"{small[0].memory[most] / 1e3:,.2f}"
    )
    for limit, text in ((2e8, "0.30 GB of 0.20: graph takes 0.30"), (0, "50.00 MB of 0.00: ")):
        memory = {"graph": 300_000_000 if limit else 50_000_000}
        other = dataclasses.replace(small[0], memory=memory, limit=int(limit))
        assert other.reason.startswith(text)


def test_padding_of_many_rows_is_sent(monkeypatch):
    monkeypatch.setattr("jaxgnn.distributed._parts._MANY_ROWS", 30)
    monkeypatch.setattr("jaxgnn.distributed._parts._GROUPS", 16)
    options = {"dataset": toy(), "layouts": ["features"]}
    *_, found = plan(TrainConfig(model="sage", hidden=8, layers=2), [2], **options)
    assert found.exchange_bytes - found.reduce_bytes == 3 * 2 * 32 * 2 * 4  # for 30 nodes a device


@pytest.mark.system
def test_the_largest_part_is_measured(monkeypatch):
    """Its edges, in two graphs where `shard` takes them; what of them hides the exchange."""
    monkeypatch.setattr("jaxgnn.distributed._costs._LEAST_SECONDS", -1.0)
    monkeypatch.setattr("jaxgnn.distributed._costs._LEAST_GAIN", 0.0)
    measured = []

    def seconds(graph, aggregation):
        measured.append((graph, aggregation))
        forward = 0.25 if isinstance(graph, Graph) else 1.0
        return forward, 3 * forward

    monkeypatch.setattr(plan_rates, "_aggregation_seconds", seconds)
    dataset = toy()
    config = TrainConfig(model="sage", hidden=8, layers=2)
    split = distributed.partition(dataset.graph, 2)
    options = {"dataset": dataset, "limit": 1 << 30, "partitions": [split], "layouts": ["rows"]}
    sent, hidden = [], []
    for bandwidth in (1e30, 1e-9):
        measured.clear()
        _, rows = plan(config, [2], bandwidth=bandwidth, **options)
        sent.append(rows.exchange_bytes)
        hidden.append(rows.compute_seconds)
        parts = [(g, a) for g, a in measured if isinstance(g, distributed.ShardedGraph)]
        degrees = np.bincount(split.owner, np.diff(dataset.graph.row_offsets))
        assert parts and all(g.num_edges == degrees.max() for g, _ in parts)
        by_rows = distributed.shard(
            dataset.graph, jax.make_mesh((2,), ("x",)), rows="x", partition=split, overlap=True
        )
        for graph, aggregation in parts:
            assert aggregation.arguments["x"].shape[0] == graph.num_senders
            assert graph.graph is None and graph.pair_rows == 2 * by_rows.pair_rows
            for own, expected in zip(graph.kinds, by_rows.kinds, strict=True):
                assert own.senders.shape[1:] == expected.senders.shape[1:]
    # 3 aggregations of the step, 2 forward: owned edges hide all that they can, or nothing.
    assert sent[0] == sent[1]
    assert hidden[0] - hidden[1] == pytest.approx(2 * 0.25 + 0.5, abs=0.1)


def test_a_folder_is_planned_as_it_is_trained_on(monkeypatch, tmp_path):
    """Neighboring parts are joined; numbers of devices that do not divide them are refused."""
    monkeypatch.setattr(plan_rates, "_aggregation_seconds", lambda *_: (0.25, 0.5))
    dataset = toy()
    rng = np.random.default_rng(0)
    split = distributed.Partition.of_owners(dataset.graph, rng.integers(0, 4, dataset.num_nodes), 4)
    arrays, edge_arrays, data = partition_arrays(dataset)
    split.save(tmp_path / "parts", dataset.graph, arrays, edge_arrays=edge_arrays, data=data)
    config = TrainConfig(str(tmp_path / "parts"), model="sage", hidden=8, features="raw")
    _, two, three = plan(config, [2, 3], layouts=["rows"], limit=1 << 30)
    assert three.reason == "--devices: expected a divisor of the 4 parts, got 3"
    _, alone = plan(config, [2], layouts=["both"], limit=1 << 30)
    assert alone.reason.startswith("no two of the devices can share columns")
    config = dataclasses.replace(config, devices="2")
    trained = shard_graph(dataset.graph, config, distributed.Partition.load(config.dataset))
    np.testing.assert_array_equal(
        np.asarray(trained.node_of_place)[: (split.owner < 2).sum()],
        np.flatnonzero(split.owner < 2),
    )
    sent = sum(trained.pair_rows * 4 * width for width in (3, 3, 3))
    assert two.exchange_bytes - two.reduce_bytes == pytest.approx(sent)


def test_sparse_rows_are_those_of_random_ones():
    shapes = jax.eval_shape(lambda x: maxk(x, 32), jnp.zeros((400, 256)))
    filled = plan_rates._filled(shapes)
    assert (filled.indices.shape, filled.width) == (shapes.indices.shape, 256)
    # Entries of a row in the busiest of a GPU's 32 shared-memory banks: about 3.5, not 8.
    banks = np.asarray(filled.indices) % 32
    most = np.mean([np.bincount(row, minlength=32).max() for row in banks])
    assert 3 < most < 4


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "by_features"),
    [
        ({"model": "gat", "heads": 2}, ""),
        ({"model": "gat", "heads": 2, "head_k": 2}, ""),
        ({"model": "transformer", "heads": 2, "head_k": 2}, ""),
        (
            {"model": "sage", "activation": "maxk", "k": 4},
            "maxk_spmm: expected a graph sharded by rows",
        ),
    ],
    ids=["gat", "gat-k", "transformer-k", "maxk"],
)
def test_attention_and_maxk_send_what_is_planned(model, by_features):
    dataset = toy()
    config = TrainConfig(hidden=8, layers=2, dropout=0.5, **model)
    _, *plans = plan(config, [2], dataset=dataset, limit=1 << 30)
    assert [each.reason for each in plans] == ["", by_features]
    for each in plans:
        if each.reason:
            assert not each.bytes and np.isnan(each.step_seconds)
            continue
        assert each.exchange_bytes - each.reduce_bytes == sent_in_a_step(config, dataset, each)
        assert each.memory["exchange"] and each.step_seconds > each.compute_seconds > 0


def test_aggregations_of_attention_are_recorded():
    x = jnp.ones((60, 3, 2))
    recorder = Recorder(toy().graph)
    attend = jax.grad(lambda x: gat_attention(recorder, x, x[..., 0], x[..., 0]).sum())
    found = aggregations(attend, recorder, x)
    assert [(each.width, each.halo_bytes(3), each.turned_bytes(3)) for each in found] == [
        (9, 12, 24), (9, 12, 24),
    ]  # fmt: skip
    assert found[0].refusal(2) == "gat_attention: expected heads that 2 devices divide, got 3"
    with pytest.raises(TypeError, match="sddmm: expected a model without values on the edges"):
        sddmm(recorder, x[..., 0], x[..., 0])
    assert [column_devices(count) for count in (2, 3, 4, 8, 16, 64)] == [1, 1, 2, 4, 8, 8]


def _params(config, dataset):
    task = make_task(config, dataset, choose_split(dataset, 0))
    return build(config, task)[1].params


def test_what_is_refused(capsys):
    dataset = toy()
    for options, devices, message in (
        ({"num_neighbors": "2,2"}, [2], "--num-neighbors: jaxgnn plan expected none, got 2,2"),
        ({"task": "link"}, [2], "--task: jaxgnn plan expected node, got link"),
        ({}, [61], "--devices: expected at most 60, the nodes of the graph, got 61"),
        ({"sample_size": 4}, [2], "--sample-size: jaxgnn plan expected none: samples run on one"),
        ({"sample_rate": 0.5}, [2], "--sample-rate: jaxgnn plan expected none"),
        ({"features": "embedding"}, [2], "--features: jaxgnn plan expected the data's, got embedd"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan(TrainConfig(hidden=8, **options), devices, dataset=dataset)
    for options, error, message in (
        ({"layouts": ["columns"]}, ValueError, "layouts: expected one of .* got 'columns'"),
        ({"layouts": "rows"}, TypeError, "layouts: expected a sequence, got 'rows'"),
        ({"devices": 2}, TypeError, "devices: expected a sequence, got 2"),
        ({"devices": [2.5]}, TypeError, r"devices: expected integers, got 2\.5"),
        ({"bandwidth": -1e9}, ValueError, "bandwidth: expected a finite number from 0, got -1"),
        ({"bandwidth": 0}, ValueError, "bandwidth: expected a number above 0, got 0"),
        ({"limit": -1}, ValueError, "limit: expected an integer from 1"),
        ({"partitions": [3]}, TypeError, "partitions: expected Partition, got int"),
    ):
        with pytest.raises(error, match=message):
            plan(TrainConfig(hidden=8), **{"devices": [2], "dataset": dataset, **options})
    for arguments, message in (
        (["--devices", "2,x"], "--devices: expected integers"),
        (["--bandwidth", "0"], "--bandwidth: expected"),
        (["--memory", "nan"], "--memory: expected"),
        (["--resume", "run"], "--resume: expected jaxgnn train with it"),
        (["--distributed"], "--distributed"),
        (["--process", "1"], "--process"),
    ):
        assert run_command(["plan", "digits", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert run_command(["info", "digits", "--devices", "2"]) == 2
    assert "--devices: jaxgnn info expected 1, got 2: jaxgnn plan" in capsys.readouterr().err
    assert run_command(["info", "digits", "--distributed"]) == 2
    assert "--distributed: jaxgnn info expected none" in capsys.readouterr().err
    assert run_command(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--bandwidth" in text and "--stall-timeout" not in text and "--process" not in text


@pytest.mark.system
def test_command(capsys):
    assert run_command(["plan", "digits", "--devices", "1,8", "--hidden", "16"]) == 0
    out = capsys.readouterr().out
    assert "rows" in out and "features" in out and "measured on cpu" in out
    for heading in ("devices", "layout", "MB", "step, ms", "sent, ms", "padding", "epoch, s"):
        assert heading in out  # in a pipe as in a wide terminal
