"""The suite `scale`: a share of a step does what one of several devices does."""

import re
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("tyro")

from benchmarks.experiments import overlap, papers_part, part_windows
from benchmarks.harness import graphs, options, worker
from benchmarks.harness.setting import Setting
from benchmarks.ours import scale, scale_step
from benchmarks.suites import scale as suite
from jaxgnn import Graph, spmm
from jaxgnn.distributed import shard
from tests.support.benchmark_runs import needs_kernels, run_quick

if jax.default_backend() != "cpu":
    pytest.skip("simulated devices are the CPU's", allow_module_level=True)


def test_shares_are_what_devices_do():
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, 10, (2, 60))
    # Two halves without an edge between them: a part needs no halo, so that its share is exact.
    graph = Graph.from_edges(np.r_[senders, senders + 10], np.r_[receivers, receivers + 10])
    x = rng.standard_normal((20, 6)).astype(np.float32)
    want = np.asarray(spmm(graph, x))
    mesh = scale.mesh_of(jax.devices()[:2])
    halves = types.SimpleNamespace(parts=2, owner=np.arange(20) // 10)
    sharded = shard(graph, mesh, rows=scale.AXIS, partition=halves)
    assert sharded.halo == 0
    for number in range(2):
        part = scale.part_by_rows(sharded, number, jax.devices()[0])
        rows = slice(10 * number, 10 * number + 10)
        places = np.pad(x[rows], ((0, part.num_senders - 10), (0, 0)))
        np.testing.assert_array_equal(spmm(part, places)[:10], want[rows])
    # By features a share turns its own rows into the columns: as if all parts had the same rows.
    by_features = shard(graph, mesh, features=scale.AXIS)
    share = scale.ShareOfColumns.of(graph, 2, 20)
    both = jnp.concatenate([x[:10], x[:10]])
    for width in (6, 5):
        mine = spmm(share, jnp.asarray(x[:10, :width]))
        assert mine.shape == (10, width)
        turned = scale.to_rows(scale.to_columns(jnp.asarray(x[:10, :width]), 2), 2)[:, :width]
        np.testing.assert_array_equal(turned, x[:10, :width])
        # Its columns 0 to F / 2 are those that the first device has of all rows.
        first = -(-width // 2)
        gathered = spmm(by_features, by_features.scatter(both[:, :width]))
        expected = spmm(graph, scale.to_columns(jnp.asarray(x[:10, :width]), 2))
        np.testing.assert_array_equal(scale.to_rows(expected, 2)[:, :width], mine)
        np.testing.assert_array_equal(np.asarray(gathered)[:10, :first], mine[:, :first])


def test_bytes_of_a_program():
    text = """
  %a = f32[2,10,3]{2,1,0} all-to-all(%x), channel_id=1, replica_groups={{0,1}}
  %b = (f32[5,3]{1,0}, u8[5,3]{1,0}) all-to-all(%y, %z), replica_groups={{0,1}}
  %c = (f32[7]{0}, f32[]) all-reduce(%g, %l), to_apply=%add
"""
    found = scale.sent_bytes(types.SimpleNamespace(as_text=lambda: text), 2, 2)
    assert found["exchange_bytes"] == (2 * 60 + 2 * 15 + 15) / 2
    assert found["reduce_bytes"] == 2 * 4 * 8 / 2
    assert found["collectives"] == {"all-to-all": 2, "all-reduce": 1}


@needs_kernels
@pytest.mark.system
def test_what_overlap_hides(monkeypatch, tmp_path):
    """A share with overlap: its step, and the exchange less what the owned edges leave."""
    monkeypatch.setattr("jaxgnn.distributed._costs._LEAST_SECONDS", 0.0)
    folder = graphs.store_all(["arxiv"], tmp_path, 0.005)["arxiv"]
    found = scale_step.Steps(folder, windows=False)
    setting = Setting("jaxgnn")
    features = {"x": np.ones((found.num_nodes, 32), np.float32)}
    features["labels"] = np.zeros(found.num_nodes, np.int32)
    share = found.prepare(setting, [32, 16, 16, 16, 3], features, "rows", 2)
    assert sum(times for *_, times, _ in share.meanwhile) == 4
    sent = sum(2 * times * sent for *_, times, sent in share.meanwhile)
    assert sent == share.formula_bytes == share.sent["exchange_bytes"]
    assert share.seconds(0, 1, "cpu") > 0
    assert share.hidden_ms("cpu", 1e15) == pytest.approx(1e3 * sent / 1e15)
    assert 0 < share.hidden_ms("cpu", 1.0) < 1e3 * sent


def test_packing_of_sparse_rows():
    """As the exchange packs them: the rows that are sent, behind a part's own."""
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(0, 30, (2, 100)), num_nodes=30)
    sharded = shard(graph, scale.mesh_of(jax.devices()[:2]), rows=scale.AXIS)
    sends = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), sharded.sends)
    rows = sharded.num_senders // 2
    values = jnp.asarray(rng.integers(0, 256, (rows, 3)), jnp.uint8)
    asked = np.diff(sends.row_offsets) > 0
    assert asked.any() and not asked.all()
    packed = np.asarray(scale.pack_rows(values.astype(jnp.float32), sends))
    columns = np.asarray(scale.pack_columns(values, sends))
    assert packed.shape == columns.shape == (rows + 2 * sharded.pair_rows, 3)
    np.testing.assert_array_equal(packed[:rows], columns[:rows])
    np.testing.assert_array_equal(packed[rows:][asked], columns[rows:][asked])
    repeated = np.asarray(scale.repeat_rows(2, values, None))
    np.testing.assert_array_equal(repeated, np.tile(values, (2, 1)))


def test_windows_of_parts_are_counted():
    """Whole windows have the whole graph's entries, as many in each part."""
    head, *lines = part_windows.counted("reddit", 0.01, [2], ["stream", "windows"])
    assert re.match(r"reddit +1 +1\.000 1\.000 ", head)
    found = {tuple(line.split()[2:4]): line.split()[4:6] for line in lines if "reddit" in line}
    assert set(found) == {("stream", "part"), ("stream", "graph"), ("windows*", "graph")}
    assert found["windows*", "graph"][1] == "1.000"
    assert float(found["windows*", "graph"][0]) < 1.05
    assert sum("sends" in line and ", all; " in line for line in lines) == 2


def test_what_is_run():
    given = options.parse(["scale", "--quick", "--device=cpu", "--devices", "2", "8"])
    names = [str(entry).removeprefix("scale jaxgnn ") for entry in suite.entries_of(given)]
    assert names == [
        "one on 1 ReLU float32",
        "features on 2 ReLU float32",
        "rows on 2 ReLU float32",
        "features on 8 ReLU float32",
        "rows on 8 ReLU float32",
        "plan on 8 ReLU float32",
        "one on 1 MaxK 4 float32",
        "rows on 2 MaxK 4 float32",
        "rows on 8 MaxK 4 float32",
        "plan on 8 MaxK 4 float32",
        *(name.replace("float32", "bfloat16") for name in names[:6]),
    ]
    chosen = ("--layouts", "features", "--activations", "relu", "maxk8", "--devices", "2")
    given = options.parse(["scale", "--device=cpu", *chosen])
    assert [(entry.layout, entry.k) for entry in suite.entries_of(given)] == [
        ("one", None),
        ("features", None),
        ("plan", None),
    ]
    given = options.parse(["scale", "--device=gpu", "--activations", "relu", "--devices", "2"])
    assert [(entry.impl, entry.layout) for entry in suite.entries_of(given)] == [
        ("jaxgnn", "one"),
        ("jaxgnn", "features"),
        ("jaxgnn", "rows"),
        ("jaxgnn tiles or rows", "one"),
        ("jaxgnn tiles or rows", "features"),
        ("jaxgnn tiles or rows", "plan"),
    ]
    for wrong in (("--devices", "1"), ("--budget", "0")):
        with pytest.raises(SystemExit):
            options.parse(["scale", *wrong])


def test_a_budget():
    assert worker.over_budget(None, 1e9) is None
    assert worker.over_budget(time.time() + 100, 50) is None
    assert re.fullmatch(
        r"--budget: (99|100) s are left, an entry took 200",
        worker.over_budget(time.time() + 100, 200),
    )
    assert worker.over_budget(time.time() - 1, 0).startswith("--budget: 0 s are left")


@needs_kernels
@pytest.mark.system
def test_the_suite_runs(tmp_path):
    result = run_quick("scale", tmp_path, "--devices", "2", "4")
    rows = result["rows"]
    assert not result["left_out"]
    assert len(rows) == 5 + 3 + 5 and all(row["accurate"] for row in rows)
    for row in rows:
        layout, count, k = (row["shape"].get(name) for name in ("layout", "devices", "k"))
        if layout == "one":
            continue
        assert set(row["collectives"]) == {"all-to-all", "all-reduce"}
        # Four layers, both ways: one exchange by rows, two by features. MaxK sends columns, too,
        # which do not come back.
        exchanges = 12 if k else 8 if layout == "rows" else 16
        assert row["collectives"]["all-to-all"] == exchanges
        sent = row["exchange_bytes"] + row["reduce_bytes"]
        assert row["predicted_ms"] == pytest.approx(
            row["ms"] + sent / 370e6 - row["hidden_ms"], abs=1e-3
        )
        assert not row["overlap"] and row["hidden_ms"] == 0  # the graph is small
        assert len(row["parts_ms"]) == (count if layout == "rows" else 1)
        assert row["measured_ms"] > 0 and "measured_error" not in row
        assert row["speed_up"] > 0 and row["padding"] >= 1
        assert row["planned_ms"] > 0 and row["planned_by_predicted"] > 0
        assert row["predicted_by_measured"] > 0 and row["packing_share"] > 0


@needs_kernels
@pytest.mark.system
def test_a_run_out_of_time_says_what_is_missing(tmp_path):
    chosen = ("--devices", "2", "--layouts", "rows", "--dtypes", "float32")
    result = run_quick("scale", tmp_path, *chosen, "--budget", "0.1")
    assert not result["rows"] and len(result["left_out"]) == 3
    for entry in result["left_out"]:
        assert entry["reason"].startswith("--budget: 0 s are left") and not entry["failed"]


@pytest.mark.system
def test_a_part_of_a_large_graph():
    """The step of one part runs, and its edges in two graphs give what one graph gives."""
    tiny = papers_part.Options(scale=1e-5, parts=2, layers=2, recompute=(True,), steps=1)
    (row,) = papers_part.measure(tiny)
    assert (row["owned_nodes"], row["halo_rows"], row["edges"]) == (139, 139, 2020)
    assert row["sent_bytes"] == 2 * 139 * 2 * 128 * 4 and row["program_bytes"] > 0
    assert np.isfinite(row["loss"]) and "error" not in row
    assert "125" in papers_part.describe(row)
    # Raises where the results differ.
    row = overlap.measure("arxiv", overlap.Options(parts=2, scale=1e-3, width=8))
    assert 0 < row["halo_edges"] < row["edges"]
    assert row["measured_apart_ms"] > 0 and "times as fast" in overlap.describe(row)
