"""The benchmarks' own parts, and the suites `spmm`, `training` and `graph` once on a tiny graph."""

import itertools

import jax
import numpy as np
import pytest

pytest.importorskip("tyro")

from benchmarks.experiments.tiles import errors
from benchmarks.harness import (
    graphs,
    jax_programs,
    job,
    options,
    plan,
    process,
    record,
    targets,
    timing,
    worker,
)
from benchmarks.suites import spmm, tensor_core, tensor_core_steps
from tests.support import oracle_rows as oracle
from tests.support.benchmark_runs import Notes, compared, needs_kernels, row, run_quick


def test_measure_is_the_median_of_one_call():
    durations = itertools.chain([0.5, 0.3, 0.3], itertools.cycle([0.1, 0.2, 0.9]))
    timed = timing.measure(lambda count: count * next(durations), repeats=21)
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


def test_short_calls_are_timed_in_a_loop_on_the_device():
    def loop(steps):
        return lambda count: count * steps * 5e-5

    def made(call_seconds, loop=None):
        return job.Job(lambda count: count * call_seconds, lambda: None, loop=loop)

    config = {"repeats": 5, "batch_seconds": 0.05}
    timed, call_ms = worker.measure(made(3e-4, loop), config)
    assert (timed.ms, call_ms) == (pytest.approx(0.05), pytest.approx(0.3))
    assert timed.batch * 5e-5 >= 0.02
    assert all(sample == pytest.approx(0.05) for sample in timed.samples)
    for call_seconds, own_loop in ((2e-3, loop), (3e-4, None)):
        timed, call_ms = worker.measure(made(call_seconds, own_loop), config)
        assert (timed.ms, call_ms) == (pytest.approx(1e3 * call_seconds), None)


def test_repeat_runs_each_step():
    calls = itertools.count()

    def double(x):
        def on_host(x):
            next(calls)
            return 2 * x

        # Without side effects, as far as XLA knows: free to be taken out of a loop.
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    result = jax.jit(jax_programs.repeat(double, 7))(np.ones(3, np.float32))
    np.testing.assert_array_equal(result, [2, 2, 2])
    assert next(calls) == 7


def test_rounds_join_to_one_row():
    rounds = [
        row(plan.OURS, 0, samples=samples, error=error, accurate=error != "not finite")
        | {"others": share, "peak_bytes": peak}
        for samples, error, share, peak in (
            ([1.0, 2.0], 1e-7, 0.1, None),
            ([3.0, 4.0, 5.0], "not finite", None, 10),
        )
    ]
    joined = record.join(*rounds)
    assert (joined["ms"], joined["repeats"]) == (3.0, 5)
    assert (joined["error"], joined["accurate"]) == ("not finite", False)
    assert (joined["others"], joined["peak_bytes"]) == (0.1, 10)


def test_measure_says_what_others_used(monkeypatch):
    shares = itertools.chain([0.0, 0.7, 0.9], itertools.repeat(0.05))
    monkeypatch.setattr(timing, "foreign_share", lambda before, after: next(shares))
    assert timing.measure(lambda count: 0.1, repeats=5).others == 0.05


def test_peak_resident_bytes_sees_a_temporary():
    def call():
        return np.ones(128_000_000, np.uint8)  # more than malloc takes from memory that it holds

    peak = timing.peak_resident_bytes(call)
    if peak is None:
        pytest.skip("this system does not say")
    assert 120_000_000 <= peak <= 160_000_000


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
    got = oracle.kept_product_rows(offsets, senders, x, kept, None, rows)
    np.testing.assert_allclose(got, (dense != 0) @ masked.astype(np.float64), rtol=1e-12)


def test_targets_are_met_missed_or_not_measured():
    rows = [
        row(plan.OURS, 10.0),
        row(plan.TORCH, 14.0),
        row(plan.SORTED, 30.0),
        row(plan.OURS, 10.0, direction="backward"),
    ]
    found = {target["target"]: target for target in targets.evaluate(rows, "spmm", "cpu")}
    assert found["rmat, F = 64: torch.sparse CSR"]["status"] == "met"
    assert found["rmat, F = 64: torch.sparse CSR"]["value"] == pytest.approx(1.4)
    segment_sum = found["rmat, F = 64: JAX gather + sorted segment_sum"]
    assert (segment_sum["status"], segment_sum["value"]) == ("missed", 3.0)
    gradient = found["rmat, F = 64: gradient of JAX gather + sorted segment_sum"]
    assert gradient["status"] == "not measured"
    scaled = targets.evaluate(rows, "spmm", "cpu", scale=0.5)
    assert {target["status"] for target in scaled} == {"not measured"}


def test_targets_take_the_best_accurate_reference_and_the_geometric_mean():
    rows = []
    for shape, ours in zip(plan.OTHER_SHAPES, (1.0, 2.0, 4.0, 1.0, 2.0, 4.0), strict=True):
        fields = {"case": shape, "width": 256}
        rows += [
            row(plan.OURS, ours, **fields),
            row(plan.CUSPARSE[0], 9.0, **fields),
            row(plan.CUSPARSE[3], 4.0, **fields),
            row(plan.CUSPARSE[2], 0.1, **fields, accurate=False),
        ]
    found = {target["target"]: target for target in targets.evaluate(rows, "spmm", "gpu")}
    mean = found["geometric mean of the other shapes, F = 256: best cuSPARSE float32"]
    assert (mean["value"], mean["status"]) == (2.0, "met")
    artist = found["artist, F = 256: best cuSPARSE float32"]
    assert (artist["value"], artist["status"]) == (1.0, "met")


def test_the_worst_case_decides_a_target_of_each():
    """One that misses is enough; all must be there to meet it."""
    chosen, best = {"impl": plan.ESTIMATED, "width": 64}, {"impl": plan.CUSPARSE[1], "width": 64}
    shapes = (plan.BIG_SHAPE, *plan.OTHER_SHAPES, *plan.TCGNN_SHAPES)
    rows = [
        row(ms=ms, case=shape, **fields)
        for shape in shapes
        for ms, fields in ((1.0, chosen), (1.5, best))
    ]

    name = "each shape, F = 64, float32: best cuSPARSE float32"
    (target,) = (target for target in targets.table() if target.what == name)

    def found(rows):
        result = targets._evaluate(target, rows)
        return result["value"], result["status"]

    assert found(rows) == (1.5, "met")
    assert found(rows[:-1]) == (None, "not measured")
    rows[0]["ms"] = 2.0
    assert found(rows) == found(rows[:-1]) == (0.75, "missed")


@needs_kernels
@pytest.mark.parametrize("case", errors.CASES, ids=lambda case: case.name)
def test_errors_by_degree_are_of_sums_in_tiles(case):
    graph = errors.graph_of(20)
    assert graph.tiles is not None and graph.tiles.tile_share == 1
    assert set(np.diff(graph.row_offsets)) == {20} and graph.tiles.num_windows == 2
    found = errors.errors_of(graph, case, 5, "float32")
    assert all(0 < found[impl] < 1e-6 for impl in ("rows", "tiles"))
    if case.positive:
        assert 1e-4 < errors.errors_of(graph, case, 5, "bfloat16")["rows"] < 4.5e-3


@pytest.mark.parametrize(
    ("suite", "device"), [("spmm", "cpu"), ("spmm", "gpu"), ("tensor_core", "gpu")]
)
def test_the_plan_measures_what_the_targets_compare(suite, device):
    module = {"spmm": spmm, "tensor_core": tensor_core}[suite]
    chosen = options.parse([suite, f"--device={device}"])
    planned = {
        (m.case + m.weighted * " weighted", m.impl, m.width, m.dtype, m.direction)
        for m in module.measurements(chosen)
    }
    groups = tensor_core_steps.settings(chosen) if suite == "tensor_core" else []
    planned |= {(s.case(s.graph), s.impl, None, s.dtype, "step") for own in groups for s in own}
    for spec in compared(suite, device):
        assert tuple(spec.get(key) for key in ("case", "impl", "width", "dtype", "pass")) in planned


def test_plan_narrows():
    narrow = ["--shapes", "dd", "--widths", "8", "--dtypes", "float32", "--only", "JAXGNN", "alg3"]
    few = spmm.measurements(options.parse(["spmm", "--device=gpu", *narrow]))
    assert {(m.case, m.width, m.dtype) for m in few} == {("dd", 8, "float32")}
    assert {m.impl for m in few} == {plan.OURS, plan.ORDERED, plan.CUSPARSE[3]}
    for device in ("cpu", "gpu"):
        every = spmm.measurements(options.parse(["spmm", f"--device={device}"]))
        flagged = {m.framework for m in every if m.impl.endswith(plan.FTZ)}
        assert flagged == ({"jax" + plan.FTZ} if device == "gpu" else set())


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


def test_a_worker_that_dies_costs_one_measurement(monkeypatch, tmp_path):
    entries = [plan.Measurement(f"entry {n}", plan.OURS, 8, "float32", "forward") for n in range(5)]
    starts = []

    def dying(arguments, env, receive, python):
        starts.append(int(arguments[1]))
        for number in range(starts[-1], len(entries)):
            receive({"start": number})
            if number == 1:
                return -11
            receive({"done": number, "row": {"number": number}})
        return 0

    monkeypatch.setattr(process, "run", dying)
    notes = Notes()
    process.run_each({}, entries, options.parse(["spmm", "--device=cpu"]), notes, tmp_path)
    assert starts == [0, 2]
    assert [each["number"] for each in notes.rows] == [0, 2, 3, 4]
    assert notes.left_out == [(str(entries[1]), "the process ended with status -11", True)]


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
        ["tensor_core", "--parts", "kernels"],
        ["tensor_core", "--models", "sage"],
    ],
)
def test_bad_options_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        options.parse(arguments)
    assert ended.value.code == 2
    assert "xpected" in capsys.readouterr().err


@needs_kernels
def test_stored_graph_round_trip(tmp_path):
    stored = graphs.load(graphs.store("rmat", tmp_path, scale=2**-9))
    graph = stored.to_graph()
    assert graph.num_edges == stored.num_edges == 18 * 512
    assert graph.edge_permutation is None
    t_offsets, t_receivers = stored.rows(backward=True)
    senders = np.repeat(np.arange(512), np.diff(t_offsets))
    receivers = stored.receivers
    assert np.array_equal(receivers, np.repeat(np.arange(512), np.diff(stored.row_offsets)))
    pairs = set(zip(stored.senders.tolist(), receivers.tolist(), strict=True))
    assert set(zip(senders.tolist(), t_receivers.tolist(), strict=True)) == pairs


@needs_kernels
@pytest.mark.system
def test_spmm_quick(tmp_path):
    result = run_quick("spmm", tmp_path, "--only", "jaxgnn", "segment_sum sorted", "CSR")
    impls = {entry["impl"] for entry in result["rows"]}
    assert {plan.OURS, plan.SORTED, plan.SCIPY} <= impls
    assert {entry["pass"] for entry in result["rows"]} == {"forward", "backward"}
    # Tiny products: JAX's are timed in a loop on the device, SciPy's are its calls.
    assert all(entry["call_ms"] is None for entry in result["rows"] if entry["impl"] == plan.SCIPY)
    assert any(entry["call_ms"] for entry in result["rows"] if entry["impl"] == plan.OURS)
    assert {target["status"] for target in result["targets"]} == {"not measured"}


@needs_kernels
def test_symmetric_graph_shares_its_buffers(tmp_path):
    stored = graphs.load(graphs.store("dd", tmp_path, scale=2**-9))
    assert stored.facts["name"] == "dd" and stored.facts["symmetric"]
    assert stored.rows(backward=True)[1] is stored.senders
    graph = stored.to_graph()
    assert graph.transpose_receivers is graph.senders
    assert graph.transpose_row_offsets is graph.row_offsets


@needs_kernels
def test_graph_quick(tmp_path):
    result = run_quick("graph", tmp_path)
    assert len(result["rows"]) == 2
    assert all(entry["error"] == 0 for entry in result["rows"])
