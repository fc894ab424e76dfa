"""The suite `training`: one full-batch step of a 4-layer GraphSAGE on the Reddit-shaped graph.

Forward, cross-entropy over all nodes, backward, Adam; mean aggregation, 602 features in, 256
hidden, 41 classes out. Every implementation starts from the same parameters, and its gradients
are compared with those of a float64 run.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np

from benchmarks import graphs, plan, process
from benchmarks.options import Options
from benchmarks.record import Record, Row

IMPLS = (plan.OURS, plan.SORTED, plan.PYG_ADJ)
WIDTHS = (602, 256, 256, 256, 41)
QUICK_WIDTHS = (24, 16, 16, 16, 7)
ORACLE = "float64"
# Of a parameter's gradient, relative to its norm. TF32 products keep 11 bits.
TOLERANCE = {"gpu": 2e-2, "cpu": 1e-4}


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the oracle and then each implementation, in a process of its own."""
    record.compare = set_baselines
    case = (options.shapes or [plan.BIG_SHAPE])[0]
    folder = graphs.store_all([case], options.cache or workspace, options.scale)[case]
    facts = json.loads((folder / "graph.json").read_text())
    record.note_graph(facts)
    widths = QUICK_WIDTHS if options.quick else WIDTHS
    save_inputs(workspace / "inputs.npz", facts["nodes"], widths)
    task = workspace / "training.json"
    task.write_text(
        json.dumps(
            {
                "device": options.device,
                "threads": options.threads,
                "graph": str(folder),
                "inputs": str(workspace / "inputs.npz"),
                "oracle": str(workspace / "oracle.npz"),
                "timing": options.timing(),
                "widths": list(widths),
                "tolerance": TOLERANCE[options.device],
            }
        )
    )
    impls = [
        impl
        for impl in IMPLS
        if not options.only or any(part.lower() in impl.lower() for part in options.only)
    ]
    for impl in (ORACLE, *impls):

        def receive(message: dict, impl: str = impl) -> None:
            if "row" in message:
                record.add(message["row"])
            else:
                failed = "failed" in message
                reason = message.get("failed") or message["skipped"]
                record.leave_out(f"training {impl}", reason, failed)

        env = process.environment("training", options.device, options.threads, options.xla_flags)
        status = process.run("benchmarks.training_worker", [str(task), impl], env, receive)
        if status != 0:
            reason = f"the process ended with status {status}"
            record.leave_out(f"training {impl}", reason, failed=True)


def set_baselines(rows: list[Row]) -> None:
    """The baseline of a step is PyG's best path, else plain JAX."""
    for impl in (plan.PYG_ADJ, plan.SORTED):
        reference = next((row for row in rows if row["impl"] == impl), None)
        if reference is not None:
            for row in rows:
                row["baseline"], row["ratio"] = impl, round(reference["ms"] / row["ms"], 3)
            return


def save_inputs(path: Path, nodes: int, widths: tuple[int, ...]) -> None:
    """Random features, labels, and Glorot-uniform parameters of each layer."""
    rng = np.random.default_rng(5)
    arrays = {
        "x": rng.random((nodes, widths[0]), np.float32) - np.float32(0.5),
        "labels": rng.integers(0, widths[-1], nodes).astype(np.int32),
    }
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        bound = np.float32(np.sqrt(6 / (fan_in + fan_out)))
        for name in ("neighbour", "root"):
            kernel = rng.random((fan_in, fan_out), np.float32) * 2 * bound - bound
            arrays[f"{name}_{layer}"] = kernel
        arrays[f"bias_{layer}"] = (rng.random(fan_out, np.float32) - np.float32(0.5)) * bound
    np.savez(path, **arrays)
