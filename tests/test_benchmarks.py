"""The benchmarks' own parts, and every suite once on a tiny graph."""

import importlib.util
import itertools
import json
import sys

import jax
import numpy as np
import pytest

pytest.importorskip("rich")

from benchmarks import (
    attention,
    attention_oracle,
    attention_plan,
    bars,
    counters,
    families,
    family_jax,
    graphs,
    maxk,
    options,
    oracle,
    plan,
    process,
    quiet,
    record,
    run,
    spmm,
    timing,
    training,
    training_worker,
    worker,
)
from jaxgnn import _ffi, gat_attention

needs_kernels = pytest.mark.skipif(_ffi.cpu_module is None, reason="jaxgnn._cpu is not built")

COMMON = {"suite": "spmm", "case": "rmat", "accurate": True, "error": 0.0}


def row(impl, ms, *, dtype="float32", direction="forward", width=64, **fields):
    shape = {"nodes": 8, "edges": 9, "width": width}
    return {**COMMON, "impl": impl, "ms": ms, "dtype": dtype, "pass": direction, "shape": shape} | (
        fields
    )


def test_measure_is_the_median_of_one_call():
    durations = itertools.chain([0.5, 0.3, 0.3], itertools.cycle([0.1, 0.2, 0.9]))
    timed = timing.measure(lambda count: count * next(durations), repeats=21, warmup=3)
    assert timed.batch == 1
    assert timed.ms == pytest.approx(200)
    assert (timed.p10, timed.p90) == (pytest.approx(100), pytest.approx(900))


def test_measure_batches_short_calls():
    counts = []

    def seconds(count):
        counts.append(count)
        return 1e-3 + 1e-4 * count  # a latency that batches hide, and the call itself

    timed = timing.measure(seconds, repeats=5, batch_seconds=0.05)
    assert counts[-5:] == [timed.batch] * 5
    assert timed.batch * 1e-4 >= 0.02
    assert timed.ms < 0.2


class FakeFamily:
    """What `worker._timed` asks of a family; a call says how long it takes."""

    def seconds(self, call, count):
        return count * call()


def test_short_calls_are_timed_in_a_loop_on_the_device():
    def repeated(steps):
        return lambda: steps * 5e-5

    family, how = FakeFamily(), {"repeats": 5, "batch_seconds": 0.05}
    short = families.Candidate(lambda: 3e-4, repeated=repeated)
    timed, call_ms = worker._timed(family, short, how)
    assert (timed.ms, call_ms) == (pytest.approx(0.05), pytest.approx(0.3))
    assert timed.batch * 5e-5 >= 0.02
    assert all(sample == pytest.approx(0.05) for sample in timed.samples)
    long = families.Candidate(lambda: 2e-3, repeated=repeated)
    for candidate in (long, families.Candidate(lambda: 3e-4)):
        timed, call_ms = worker._timed(family, candidate, how)
        assert (timed.ms, call_ms) == (pytest.approx(1e3 * candidate.call()), None)


def test_repeat_runs_each_step():
    calls = itertools.count()

    def double(x):
        def on_host(x):
            next(calls)
            return 2 * x

        # Without side effects, as far as XLA knows: free to be taken out of a loop.
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    result = jax.jit(family_jax.repeat(double, 7))(np.ones(3, np.float32))
    np.testing.assert_array_equal(result, [2, 2, 2])
    assert next(calls) == 7


def test_rounds_join_to_one_row():
    rounds = [
        row(plan.OURS, 0, samples=samples, error=error, accurate=error != "not finite")
        | {"others": share, "repeated": 1, "peak_bytes": peak}
        for samples, error, share, peak in (
            ([1.0, 2.0], 1e-7, 0.1, None),
            ([3.0, 4.0, 5.0], "not finite", None, 10),
        )
    ]
    joined = record.join(*rounds)
    assert (joined["ms"], joined["repeats"], joined["repeated"]) == (3.0, 5, 2)
    assert (joined["error"], joined["accurate"]) == ("not finite", False)
    assert (joined["others"], joined["peak_bytes"]) == (0.1, 10)


def test_measure_repeats_what_others_disturbed(monkeypatch):
    shares = itertools.chain([0.0, 0.7, 0.9], itertools.repeat(0.05))
    monkeypatch.setattr(quiet, "foreign_share", lambda before, after: next(shares))
    monkeypatch.setattr(quiet, "wait", lambda allowed, deadline: None)
    durations = itertools.chain([1.0] * 3, [0.1, 8.0, 9.0], itertools.repeat(0.1))
    timed = timing.measure(
        lambda count: next(durations), repeats=5, allowed_others=0.1, patience=60.0
    )
    assert (timed.ms, timed.p90, timed.repeated) == (pytest.approx(100), pytest.approx(100), 2)
    assert timed.others == 0.05


def test_peak_resident_bytes_sees_a_temporary():
    def call():
        return np.ones(32_000_000, np.uint8)

    peak = timing.peak_resident_bytes(call)
    if peak is None:
        pytest.skip("this system does not say")
    assert 28_000_000 <= peak <= 64_000_000


def dense_case():
    rng = np.random.default_rng(3)
    dense = rng.random((40, 30)) * (rng.random((40, 30)) < 0.2)
    dense[7] = 0
    receivers, senders = np.nonzero(dense)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(receivers, minlength=40))])
    return dense, offsets, senders, rng.standard_normal((30, 5)).astype(np.float32)


def test_oracle_rows_are_the_product():
    dense, offsets, senders, x = dense_case()
    weights = dense[np.nonzero(dense)]
    rows = oracle.sample_rows(offsets, seed=0, count=10, longest=2)
    assert np.diff(offsets).argmax() in rows
    got = oracle.product_rows(offsets, senders, x, weights, rows)
    np.testing.assert_allclose(got, (dense @ x.astype(np.float64))[rows], rtol=1e-12)
    unweighted = oracle.product_rows(offsets, senders, x, None, rows)
    np.testing.assert_allclose(unweighted, ((dense != 0) @ x.astype(np.float64))[rows], rtol=1e-12)


@pytest.mark.parametrize("place, value", [((3, 2), np.nan), ((7, 1), 1e-9), ((3, 2), 50.0)])
def test_row_error_sees_one_wrong_element(place, value):
    _, offsets, senders, x = dense_case()
    expected = oracle.product_rows(offsets, senders, x, None, np.arange(40))
    got = expected.astype(np.float32)
    assert oracle.row_error(got, expected) < oracle.TOLERANCE["float32"]
    got[place] = value
    assert oracle.row_error(got, expected) > oracle.TOLERANCE["float32"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_oracle_keeps_the_largest_entries(dtype):
    # Few distinct values, so that nearly every row has ties; zeros of both signs among them.
    x = np.random.default_rng(0).integers(-3, 4, (9000, 20)).astype(np.float32)
    x[x == 0] *= np.where(np.arange((x == 0).sum()) % 2, 1, -1)
    x = oracle.round_to(x, dtype)
    order = oracle.descending(x)
    stable = np.argsort(-x.astype(np.float32), axis=1, kind="stable")
    np.testing.assert_array_equal(order, stable)
    assert order.dtype == np.uint8
    for k in (1, 7, 20):
        np.testing.assert_array_equal(oracle.largest(order, k), np.sort(stable[:, :k], axis=1))


def test_oracle_product_of_kept_entries():
    dense, offsets, senders, x = dense_case()
    kept = oracle.largest(oracle.descending(x), 2)
    masked = oracle.keep(x, kept)
    assert ((masked != 0).sum(axis=1) == 2).all()
    rows = np.arange(40)
    got = oracle.kept_product_rows(offsets, senders, x, kept, rows)
    np.testing.assert_allclose(got, (dense != 0) @ masked.astype(np.float64), rtol=1e-12)


def test_a_row_with_k_is_not_one_of_dense_rows():
    shape = {"case": "rmat", "suite": "maxk", "width": 256}
    sparse = row(plan.MAXK, 2.0, **shape)
    sparse["shape"]["k"] = 32
    rows = [sparse, row(plan.OURS, 5.0, **shape)]
    (bar,) = bars.evaluate(rows, "maxk", "cpu")
    assert (bar["value"], bar["status"], bar["impl"], bar["ms"]) == (2.5, "met", plan.MAXK, 2.0)
    sparse["shape"]["k"] = 16
    assert bars.evaluate(rows, "maxk", "cpu")[0]["status"] == "not measured"


def test_bars_are_met_missed_or_not_measured():
    rows = [
        row(plan.OURS, 10.0),
        row(plan.TORCH, 14.0),
        row(plan.SORTED, 30.0),
        row(plan.OURS, 10.0, direction="backward"),
    ]
    found = {bar["bar"]: bar for bar in bars.evaluate(rows, "spmm", "cpu")}
    assert found["rmat, F = 64: torch.sparse CSR"]["status"] == "met"
    assert found["rmat, F = 64: torch.sparse CSR"]["value"] == pytest.approx(1.4)
    segment_sum = found["rmat, F = 64: JAX gather + sorted segment_sum"]
    assert (segment_sum["status"], segment_sum["value"]) == ("missed", 3.0)
    gradient = found["rmat, F = 64: gradient of JAX gather + sorted segment_sum"]
    assert gradient["status"] == "not measured"
    scaled = bars.evaluate(rows, "spmm", "cpu", scale=0.5)
    assert {bar["status"] for bar in scaled} == {"not measured"}


def test_bars_take_the_best_accurate_reference_and_the_geometric_mean():
    rows = []
    for shape, ours in zip(plan.OTHER_SHAPES, (1.0, 2.0, 4.0, 1.0, 2.0, 4.0), strict=True):
        fields = {"case": shape, "width": 256}
        rows += [
            row(plan.OURS, ours, **fields),
            row(plan.CUSPARSE[0], 9.0, **fields),
            row(plan.CUSPARSE[3], 4.0, **fields),
            row(plan.CUSPARSE[2], 0.1, **fields, accurate=False),
        ]
    found = {bar["bar"]: bar for bar in bars.evaluate(rows, "spmm", "gpu")}
    mean = found["geometric mean of the other shapes: best cuSPARSE float32"]
    assert (mean["value"], mean["status"]) == (2.0, "met")
    artist = found["artist, F = 256: best cuSPARSE float32"]
    assert (artist["value"], artist["status"]) == (1.0, "met")


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_plan_measures_what_the_bars_compare(device):
    planned = {
        (m.case, m.impl, m.width, m.dtype, m.direction)
        for m in plan.measurements(device)
        if not m.weighted
    }
    compared = [bar for bar in bars.BARS if bar.suite == "spmm" and bar.device == device]
    assert compared
    for bar in compared:
        assert bar.reference is not None
        for case, pick in itertools.product(bar.cases, (bar.ours, bar.reference)):
            for impl in pick.impls:
                assert (case, impl, bar.width, pick.dtype, pick.direction) in planned


def test_the_plan_of_maxk_measures_what_its_bars_compare():
    for device in ("cpu", "gpu"):
        planned = {
            (m.case, m.impl, m.width, m.dtype, m.direction, m.k) for m in maxk.measurements(device)
        }
        compared = [bar for bar in bars.BARS if bar.suite == "maxk" and bar.device == device]
        assert compared
        for bar in compared:
            assert bar.reference is not None
            for case, pick in itertools.product(bar.cases, (bar.ours, bar.reference)):
                for impl in pick.impls:
                    key = (case, impl, bar.width, pick.dtype, pick.direction, pick.k)
                    assert key in planned, key


def test_the_settings_of_training_with_maxk_are_what_its_bars_compare():
    models = ["sage", "gcn", "gin"]
    chosen = options.parse(["training", "--device=gpu", "--models", *models])
    oracles, *groups = training.settings(chosen)
    planned = {(s.impl, s.model, s.dtype, s.k) for group in groups for s in group}
    compared = [bar for bar in bars.BARS if bar.suite == chosen.label]
    assert len(compared) == 14
    for bar in compared:
        assert bar.reference is not None
        for case, pick in itertools.product(bar.cases, (bar.ours, bar.reference)):
            model = case.split()[-1]
            assert (pick.impls[0], model, pick.dtype, pick.k) in planned
    assert {(s.model, s.k) for s in oracles} == set(itertools.product(models, training.KS))


def test_sweep_of_maxk():
    few = maxk.measurements("gpu", cases=["dd"], sweep=True)
    assert {m.k for m in few if m.impl == plan.MAXK} == set(maxk.SWEEP)
    assert {m.dtype for m in few} == {"float32"}
    assert {m.case for m in maxk.measurements("gpu", sweep=True)} == {"reddit", *plan.OTHER_SHAPES}


def test_plan_narrows():
    few = plan.measurements(
        "gpu", cases=["dd"], widths=[8], dtypes=["float32"], only=["JAXGNN", "alg3"]
    )
    assert {(m.case, m.width, m.dtype) for m in few} == {("dd", 8, "float32")}
    assert {m.impl for m in few} == {plan.OURS, plan.ORDERED, plan.CUSPARSE[3]}
    assert not any(m.impl.endswith(plan.FTZ) for m in plan.measurements("gpu"))
    assert any(m.impl.endswith(plan.FTZ) for m in plan.measurements("gpu", ftz_atomics=True))


def test_llvm_option_joins_the_ones_that_are_there():
    option = "--xla_backend_extra_options="
    assert process.add_backend_option("", "-a") == option + "-a"
    assert process.add_backend_option(f"--x=1 {option}-b", "-a") == f"--x=1 {option}-b,-a"


def test_baselines_fall_back_to_float32():
    rows = [row(plan.OURS, 5.0), row(plan.OURS, 2.0, dtype="bfloat16"), row(plan.TORCH, 10.0)]
    for each in rows:
        each |= {"baseline": None, "ratio": None}
    spmm.set_baselines(rows, "cpu")
    assert [each["ratio"] for each in rows] == [2.0, 5.0, 1.0]
    assert rows[1]["baseline"] == f"{plan.TORCH} float32"


class Notes:
    """What `spmm` asks of a `Record`."""

    def __init__(self):
        self.rows, self.left_out = [], []

    def add(self, row):
        self.rows.append(row)

    def leave_out(self, what, reason, failed):
        self.left_out.append((what, failed))


def test_a_worker_that_dies_costs_one_measurement(monkeypatch, tmp_path):
    wanted = plan.measurements("cpu", widths=[4], only=["scipy", "BCOO"])
    starts = []

    def dying(module, arguments, env, receive):
        starts.append(int(arguments[1]))
        for number in range(starts[-1], len(wanted)):
            receive({"start": number})
            if number == 1:
                return -11
            receive({"done": number, "row": {"number": number}})
        return 0

    monkeypatch.setattr(process, "run", dying)
    notes = Notes()
    spmm._run_family("scipy", wanted, {}, options.parse(["spmm", "--device=cpu"]), notes, tmp_path)
    assert starts == [0, 2]
    assert [each["number"] for each in notes.rows] == [0, *range(2, len(wanted))]
    assert len(notes.left_out) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["spmm", "--scale", "0"],
        ["spmm", "--widths", "0"],
        ["nothing"],
        ["maxk", "--k", "0"],
        ["maxk", "--k", "257"],
        ["training", "--models", "sage", "--activations", "maxk"],
        ["training", "--activations", "relu"],
        ["training", "--models", "gat"],
        ["maxk", "--parts", "steps"],
    ],
)
def test_bad_options_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        options.parse(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@needs_kernels
def test_stored_graph_round_trip(tmp_path):
    stored = graphs.load(graphs.store("rmat", tmp_path, scale=2**-9))
    graph = stored.to_graph()
    assert graph.num_edges == stored.num_edges == 18 * 512
    t_offsets, t_receivers = stored.rows(backward=True)
    senders = np.repeat(np.arange(512), np.diff(t_offsets))
    receivers = np.repeat(np.arange(512), np.diff(stored.row_offsets))
    pairs = set(zip(stored.senders.tolist(), receivers.tolist(), strict=True))
    assert set(zip(senders.tolist(), t_receivers.tolist(), strict=True)) == pairs


@pytest.fixture(autouse=True)
def patient_threads(monkeypatch):
    """On a busy machine torch's threads would spin for each other."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("KMP_BLOCKTIME", "0")


def run_quick(suite, tmp_path, *arguments, name="result.json"):
    output = tmp_path / name
    status = run.main([suite, "--quick", "--device=cpu", f"--output={output}", *arguments])
    result = json.loads(output.read_text())
    assert status == 0, result["left_out"]
    for key in ("hardware", "jax", "jaxlib", "commit", "date"):
        assert key in result["header"]
    for entry in result["rows"]:
        assert entry["accurate"]
        for key in ("suite", "case", "impl", "dtype", "shape", "ms", "baseline", "ratio"):
            assert key in entry
        assert entry["ms"] > 0
        assert "peak_bytes" in entry and "error" in entry
    return result


@needs_kernels
def test_spmm_quick(tmp_path):
    result = run_quick("spmm", tmp_path, "--only", "jaxgnn", "segment_sum sorted", "CSR")
    impls = {entry["impl"] for entry in result["rows"]}
    assert {plan.OURS, plan.SORTED, plan.SCIPY} <= impls
    assert {entry["pass"] for entry in result["rows"]} == {"forward", "backward"}
    # Tiny products: JAX's are timed in a loop on the device, SciPy's are its calls.
    assert all(entry["call_ms"] is None for entry in result["rows"] if entry["impl"] == plan.SCIPY)
    assert any(entry["call_ms"] for entry in result["rows"] if entry["impl"] == plan.OURS)
    assert {bar["status"] for bar in result["bars"]} == {"not measured"}


@needs_kernels
def test_training_quick(tmp_path):
    result = run_quick("training", tmp_path, "--only", "jaxgnn", "segment_sum")
    assert {plan.OURS, plan.SORTED} <= {entry["impl"] for entry in result["rows"]}


@needs_kernels
def test_maxk_quick_and_its_plot(tmp_path):
    from benchmarks import plot_maxk

    few = ("--dtypes", "float32", "--k", "4", "--only", "jax", "copy")
    maxk_rows = run_quick("maxk", tmp_path, *few)["rows"]
    measured = {(entry["impl"], entry["pass"], entry["shape"].get("k")) for entry in maxk_rows}
    assert measured >= {(plan.MAXK, direction, 4) for direction in (*plan.BOTH, "select")}
    assert measured >= {(plan.MAXK_DETERMINISTIC, "backward", 4), (plan.TOP_K, "select", 4)}
    assert measured >= {(impl, "select", 4) for impl in maxk.DROPPING}
    assert measured >= {(plan.SORTED, direction, 4) for direction in plan.BOTH}
    assert measured >= {(plan.COPY, "select", None), (plan.OURS, "forward", None)}
    for entry in maxk_rows:
        assert (entry["pass"] == "select") <= (entry["error"] == 0)
        assert entry["baseline"] in (plan.OURS, plan.COPY)

    steps = run_quick(
        "training", tmp_path, "--models", "gin", "--dtypes", "float32", "--only", "jaxgnn",
        name="steps.json",
    )["rows"]  # fmt: skip
    cases = {(entry["case"], entry["shape"].get("k")) for entry in steps}
    assert cases == {("rmat gin", None), ("rmat gin", 4)}
    for entry in steps:
        assert entry["aggregation_ms"] > 0
        assert entry["baseline"] == plan.OURS

    output = tmp_path / "speedup.png"
    sources = [str(tmp_path / name) for name in ("result.json", "steps.json")]
    assert plot_maxk.main([sources[0], "--training", sources[1], str(output)]) == 0
    assert output.stat().st_size > 10_000


def test_plot_takes_speedups_from_the_rows():
    plot_maxk = pytest.importorskip("benchmarks.plot_maxk")
    shape = {"suite": "maxk", "case": "reddit", "width": 256}
    rows = [row(plan.CUSPARSE[0], 20.0, **shape), row(plan.CUSPARSE[3], 16.0, **shape)]
    rows += [row(plan.OURS, 8.0, direction=direction, **shape) for direction in plan.BOTH]
    for k, impl, ms in ((32, plan.MAXK, 4.0), (32, plan.MAXK_WINDOWS, 2.0), (8, plan.MAXK, 1.0)):
        rows.append(row(impl, ms, direction="backward", **shape))
        rows[-1]["shape"]["k"] = k
    assert plot_maxk.speedups(rows, "reddit", "backward") == ([(8, 16.0), (32, 8.0)], 2.0)
    assert plot_maxk.speedups(rows, "reddit", "forward") == ([], 2.0)
    steps = [
        row(plan.OURS, ms, case="reddit sage", aggregation_ms=aggregation, direction="step")
        for ms, aggregation in ((100.0, 75.0), (40.0, 15.0))
    ]
    steps[1]["shape"]["k"] = 32
    found = plot_maxk.step_speedups(steps, "reddit sage", "float32")
    assert found == ([(32, 2.5)], [(32, 2.5)], 4.0)


@needs_kernels
def test_graph_quick(tmp_path):
    result = run_quick("graph", tmp_path)
    assert len(result["rows"]) == 2
    assert all(entry["error"] == 0 for entry in result["rows"])


RAW_COUNTERS = """==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "expand" - 0: 0%....50%....100% - 2 passes
"ID","Process ID","Kernel Name","Grid Size","dram__bytes.sum","gpu__time_duration.sum","lts__t_bytes.sum","lts__t_sector_hit_rate.pct"
"","","","","Mbyte","usecond","Gbyte","%"
"0","7","jaxgnn::<unnamed>::fixed_rows<float, (int)1>(Params<T1, T2>)","(9, 1, 1)","5","5","5","5"
"1","7","jaxgnn::<unnamed>::expand(Rows, int *)","(2, 1, 1)","0","1","0","0"
"2","7","jaxgnn::<unnamed>::find_range<float>(RangeArgs)","(9, 1, 1)","1,234.5","2,000","1","20"
"3","7","jaxgnn::<unnamed>::fixed_rows<float, (int)1>(Params<T1, T2>)","(9, 1, 1)","0.5","500","3","60"
"4","7","jaxgnn::<unnamed>::expand(Rows, int *)","(1, 1, 1)","0","1","0","0"
"5","7","jaxgnn::<unnamed>::long_rows<float>(Params<T1>)","(9, 1, 1)","5","5","5","5"
"6","7","jaxgnn::<unnamed>::expand(Rows, int *)","(4, 1, 1)","0","1","0","0"
"7","7","jaxgnn::<unnamed>::expand(Rows, int *)","(900, 1, 1)","2","3000","4","n/a"
"""  # noqa: E501


def test_counters_are_read_in_their_units_and_grouped_by_case():
    kernels = counters.parse(RAW_COUNTERS)
    assert [kernel.blocks for kernel in kernels] == [9, 2, 9, 9, 1, 9, 4, 900]
    groups = counters.by_case(kernels, cases=3)
    assert {case: len(group) for case, group in groups.items()} == {0: 2, 2: 1}
    sums = counters.total(groups[0])
    assert (sums["ms"], sums["l2_bytes"]) == (pytest.approx(2.5), pytest.approx(4e9))
    assert (sums["hbm_bytes"], sums["l2_hit_percent"]) == (
        pytest.approx(1.235e9),
        pytest.approx(50),
    )
    assert sums["l1_bytes"] is sums["l1_hit_percent"] is sums["l2_bytes_asked"] is None
    assert counters.total(groups[2])["ms"] == pytest.approx(3)


def test_counters_with_a_row_for_each_metric():
    header = (
        '"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"'
    )
    rows = [
        f'"0","7","expand","(2, 1, 1)","{metric}","{unit}","{value}"'
        for metric, unit, value in (
            (counters.TIME, "ns", "1,500"),
            (counters.L2, "Kbyte", "2.5"),
            (counters.GRID, "", "1,024"),
            ("Duration", "%", "1"),
        )
    ]
    (kernel,) = counters.parse("\n".join(["==PROF== Connected", header, *rows]))
    assert kernel == counters.Kernel(
        "expand", 1024, {counters.TIME: pytest.approx(1.5e-6), counters.L2: pytest.approx(2500)}
    )


@pytest.mark.parametrize(
    "printed, reason",
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM"),
        ('"ID","Process ID","Kernel Name"\n', "empty"),
        ("", "no table"),
        (RAW_COUNTERS.replace("usecond", "fortnight"), "fortnight"),
    ],
)
def test_what_the_profiler_says_is_passed_on(printed, reason):
    with pytest.raises(counters.NoCounters, match=reason):
        counters.parse(printed)


FAKE_NCU = """#!{python}
import subprocess, sys
arguments = sys.argv[1:]
log = arguments[arguments.index("--log-file") + 1]
by_name = "--kernel-name" in arguments
lines = ['"ID","Process ID","Kernel Name","Grid Size","dram__bytes.sum",'
         '"gpu__time_duration.sum","lts__t_bytes.sum"', '"","","","","byte","ns","byte"']
for case in range(9 if by_name else 0):
    for name, blocks, value in (("expand", case + 2, 1), ("rows", 5, case + 1), ("expand", 1, 1)):
        lines.append(f'"0","7","{{name}}","({{blocks}}, 1, 1)","{{value}}","{{value}}","{{value}}"')
open(log, "w").write("\\n".join(lines))
sys.exit(subprocess.call(arguments[arguments.index({python!r}):]))
"""


@needs_kernels
def test_traffic_of_a_profiler_that_has_to_be_asked_twice(tmp_path):
    traffic = pytest.importorskip("benchmarks.traffic")
    fake, output = tmp_path / "ncu", tmp_path / "traffic.json"
    fake.write_text(FAKE_NCU.format(python=sys.executable))
    fake.chmod(0o755)
    places = (f"--ncu={fake}", f"--output={output}")
    sizes = ("--shape=rmat", f"--scale={2**-9}", "--width=16", "--k=4", "--dtypes=float32")
    status = traffic.main(["--device=cpu", *places, *sizes, "--only", "spmm", "maxk windows"])
    result = json.loads(output.read_text())
    assert status == 0, result["left_out"]
    assert result["header"]["command"].startswith("python -m benchmarks.traffic")
    measured = [(row["impl"], row["pass"], row["l2_bytes"]) for row in result["rows"]]
    assert measured == [
        (plan.MAXK_WINDOWS, "forward", 1),
        (plan.MAXK_WINDOWS, "backward", 2),
        (plan.MAXK_WINDOWS_DETERMINISTIC, "backward", 3),
    ]
    edges, nodes = (result["rows"][0]["shape"][key] for key in ("edges", "nodes"))
    needed = edges * (4 * (4 + 1) + 4) + nodes * 16 * 4
    assert result["rows"][0]["l2_bytes_needed"] == needed
    assert all(row["accurate"] and row["kernels"][0]["name"] == "rows" for row in result["rows"])


def test_traffic_is_compared_with_dense_rows():
    traffic = pytest.importorskip("benchmarks.traffic")
    options, _ = traffic.parse(["--device=gpu"])
    chosen = traffic.cases(options)
    assert len(set(map(str, chosen))) == len(chosen) == 27
    assert (chosen[0].impl, chosen[0].dtype) == (plan.OURS, "float32")
    assert traffic.NO_COMMAND_BUFFERS in options.xla_flags
    rows = [
        row(impl, ms, l2_bytes=l2, hbm_bytes=None)
        for impl, ms, l2 in ((plan.OURS, 12.0, 120.0), (plan.MAXK, 3.0, 24.0))
    ]
    traffic.set_ratios(rows)
    assert [(r["ratio"], r["l2_ratio"], r["hbm_ratio"]) for r in rows] == [
        (1, 1, None),
        (4, 5, None),
    ]


def test_traffic_without_the_profiler_says_so(monkeypatch, capsys):
    traffic = pytest.importorskip("benchmarks.traffic")
    monkeypatch.setattr(counters, "find", lambda: None)
    assert traffic.main(["--device=cpu"]) == 1
    assert "Nsight Compute" in capsys.readouterr().err


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
    features = training_worker._arrays(tmp_path / "features.npz")
    parameters = training_worker._arrays(training.parameters_file(tmp_path, settings[0]))
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
        parameters = training_worker._arrays(training.parameters_file(tmp_path, own))
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


class FakeDriver:
    """The CUDA driver as `traffic_worker.Marker` calls it."""

    def __init__(self, calls, status=0):
        self.calls, self.status = calls, status

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append(name) or self.status


def test_marks_are_profiled_with_their_case(monkeypatch):
    traffic_worker = pytest.importorskip("benchmarks.traffic_worker")
    calls = []
    monkeypatch.setattr(traffic_worker.ctypes, "CDLL", lambda name: FakeDriver(calls))
    monkeypatch.setattr(
        traffic_worker, "expand_rows", lambda offsets, edges: calls.append(edges // 1024)
    )
    marker = traffic_worker.Marker(profiler_calls=True)
    assert calls == ["cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    calls.clear()
    with marker.case(3):
        calls.append("case")
    warm, profiled = calls[:2], calls[2:]
    assert warm == [5, 1]
    assert profiled == ["cuProfilerStart", 5, "case", 1, "cuProfilerStop"]
    monkeypatch.setattr(traffic_worker.ctypes, "CDLL", lambda name: FakeDriver([], status=3))
    with pytest.raises(RuntimeError, match="status 3"):
        traffic_worker.Marker(profiler_calls=True)
