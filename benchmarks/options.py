"""The command line's options, and how they are read."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks import plan

SUITES = ("spmm", "maxk", "attention", "training", "graph")
# Of the suites `training` and `attention`.
MODELS = {
    "training": ("sage", "gcn", "gin"),
    "attention": ("gat", "gatv2", "agnn", "edgeconv", "monet"),
}
PARTS = ("kernels", "steps", "memory", "ablation", "bytes")


@dataclasses.dataclass(frozen=True)
class Options:
    """See `parse` for each option's meaning."""

    suite: str
    device: str
    shapes: list[str] | None = None
    scale: float = 1.0
    widths: list[int] | None = None
    dtypes: list[str] | None = None
    only: list[str] | None = None
    ks: list[int] | None = None
    sweep: bool = False
    models: list[str] | None = None
    activations: list[int | None] | None = None
    parts: list[str] | None = None
    repeats: int = 20
    rounds: int = 1
    batch_seconds: float = 0.05
    threads: int = 2
    quiet: float = 1.0
    patience: float = 0.0
    quick: bool = False
    output: Path | None = None
    cache: Path | None = None
    ftz_atomics: bool = False
    xla_flags: str = ""
    commit: str | None = None
    ncu: str | None = None
    strict: bool = False
    program: str = "benchmarks.run"

    @property
    def label(self) -> str:
        """The suite, and which plan of it where there are several."""
        if self.suite == "training" and self.models:
            return "training-maxk"
        return "maxk-sweep" if self.suite == "maxk" and self.sweep else self.suite

    def timing(self) -> dict[str, float]:
        """The arguments of `timing.measure`."""
        return {
            "repeats": -(-self.repeats // self.rounds),
            "batch_seconds": self.batch_seconds,
            "allowed_others": self.quiet,
            "patience": self.patience,
        }


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Reads the command line; a bad value ends the process with one line and status 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description="Times jaxgnn against the alternatives; see docs/benchmarks.md.",
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--device", choices=("cpu", "gpu"), help="default: a GPU if JAX has one")
    parser.add_argument("--shapes", nargs="+", help="graphs, by name; default: the suite's")
    parser.add_argument("--scale", type=_positive, default=None, help="of the graphs; default 1")
    parser.add_argument("--widths", nargs="+", type=int, help="feature widths")
    parser.add_argument("--dtypes", nargs="+", choices=plan.DTYPES, help="dtypes to keep")
    parser.add_argument("--only", nargs="+", help="implementations to keep, by part of the name")
    parser.add_argument(
        "--k",
        dest="ks",
        nargs="+",
        type=int,
        help="entries that rows keep in the suite maxk; default 32 16 8 64",
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="the suite maxk for k from 2 to 192 on all shapes, in float32, with 7 repeats",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=[model for models in MODELS.values() for model in models],
        help="the suite training for these models with an input layer, ReLU against MaxK (sage, "
        "gcn, gin); models to keep in the suite attention (gat, gatv2, agnn, edgeconv, monet)",
    )
    parser.add_argument(
        "--activations",
        nargs="+",
        type=_activation,
        metavar="relu|maxkK",
        help="... with these activations; default relu maxk32 maxk16",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, help="parts of the suite attention to keep"
    )
    parser.add_argument("--repeats", type=int, default=None, help="timed batches; default 20")
    parser.add_argument(
        "--rounds",
        type=int,
        default=None,
        help="spread the batches of the suite spmm over so many turns of each framework, so that "
        "a machine that drifts does so for all; default 4 on the CPU, 1 on a GPU",
    )
    parser.add_argument("--threads", type=int, default=2, help="on the CPU; default 2")
    parser.add_argument(
        "--quiet",
        type=_positive,
        default=1.0,
        metavar="SHARE",
        help="run a batch again if other processes used more than this share of the CPUs",
    )
    parser.add_argument(
        "--patience", type=float, default=60.0, help="... for so many seconds a measurement"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument(
        "--output", type=Path, help="default: benchmarks/results/DATE-HARDWARE-SUITE.json"
    )
    parser.add_argument("--cache", type=Path, help="keep generated graphs in this folder")
    parser.add_argument(
        "--allow-ftz-atomics",
        dest="ftz_atomics",
        action="store_true",
        help="also time JAX's baselines with LLVM's -nvptx-allow-ftz-atomics (on a GPU)",
    )
    parser.add_argument("--xla-flags", default="", help="XLA_FLAGS to add for every JAX worker")
    parser.add_argument("--commit", help="where the checkout has no git data to read it from")
    parser.add_argument(
        "--ncu", help="Nsight Compute's command, for the part bytes of the suite attention"
    )
    parser.add_argument("--strict", action="store_true", help="a missed bar is a failure")
    values = vars(parser.parse_args(arguments))
    for name in ("repeats", "rounds", "threads"):
        if values[name] is not None and values[name] < 1:
            parser.error(f"--{name}: expected at least 1, got {values[name]}")
    if any(width < 1 for width in values["widths"] or ()):
        parser.error(f"--widths: expected at least 1, got {values['widths']}")
    if any(k < 1 for k in values["ks"] or ()):
        parser.error(f"--k: expected at least 1, got {values['ks']}")
    if values["activations"] and not values["models"]:
        parser.error("--activations: expected --models with it")
    quick, suite = values["quick"], values["suite"]
    if not set(values["models"] or ()) <= set(MODELS.get(suite, ())):
        parser.error(f"--models: the suite {suite} does not have all of {values['models']}")
    if values["parts"] and suite != "attention":
        parser.error(f"--parts: the suite {suite} has none")
    values["device"] = values["device"] or default_device()
    values["repeats"] = values["repeats"] or (3 if quick else 7 if values["sweep"] else 20)
    turns = 4 if suite in ("spmm", "maxk") and values["device"] == "cpu" and not quick else 1
    values["rounds"] = values["rounds"] or (1 if values["sweep"] else turns)
    values["scale"] = values["scale"] or (_quick_scale(suite) if quick else 1.0)
    if suite == "maxk":
        values["batch_seconds"] = 0.02  # many short measurements
    if quick:
        values["widths"] = values["widths"] or [16]
        values["ks"] = values["ks"] or [4, 2]
        values["batch_seconds"] = 0.001
        if values["device"] == "cpu" and suite == "training":
            values["shapes"] = values["shapes"] or ["rmat"]
    if any(
        k > width for k in values["ks"] or () for width in values["widths"] or [plan.MAXK_WIDTH]
    ):
        parser.error(f"--k: expected at most the width, got {values['ks']}")
    return Options(**values)


def _quick_scale(suite: str) -> float:
    return {"graph": 1e-3}.get(suite, 2**-9)


def _activation(text: str) -> int | None:
    """`None` for ReLU, k for MaxK."""
    if text == "relu":
        return None
    if not text.startswith("maxk") or not text[4:].isdecimal() or int(text[4:]) < 1:
        raise argparse.ArgumentTypeError(f"expected relu, or maxk and a number, got {text}")
    return int(text[4:])


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number in (0, 1], got {text}")
    return value


def default_device() -> str:
    """`gpu` where there is a driver and a JAX for it; does not start JAX."""
    plugin = any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13))
    return "gpu" if plugin and gpu_facts() else "cpu"


def gpu_facts() -> dict[str, str]:
    """Name and driver of the first GPU, as `nvidia-smi` says; empty without one."""
    if shutil.which("nvidia-smi") is None:
        return {}
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not answer.stdout.strip():
        return {}
    name, driver, memory = (part.strip() for part in answer.stdout.splitlines()[0].split(","))
    return {"name": name, "driver": driver, "memory": memory}
