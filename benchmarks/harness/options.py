"""The command line's options, and how they are read."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import plan

SUITES = ("spmm", "maxk", "attention", "training", "graph", "traffic")
EDGE_MODELS = ("gat", "gatv2", "agnn", "edgeconv", "monet")
MODELS = {"training": ("sage", "gcn", "gin"), "attention": EDGE_MODELS}
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
    quick: bool = False
    output: Path | None = None
    cache: Path | None = None
    xla_flags: str = ""
    commit: str | None = None
    ncu: str | None = None
    strict: bool = False

    @property
    def label(self) -> str:
        """The suite, and which plan of it where there are several."""
        if self.suite == "training" and self.models:
            return "training-maxk"
        return "maxk-sweep" if self.suite == "maxk" and self.sweep else self.suite

    def timing(self) -> dict[str, float]:
        """The arguments of `timing.measure`."""
        repeats = -(-self.repeats // self.rounds)
        return {"repeats": repeats, "batch_seconds": self.batch_seconds}


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Reads the command line; a bad value ends the process with one line and status 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description="Times jaxgnn against the alternatives; see docs/benchmarks.md.",
    )
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+"}
    add("suite", choices=SUITES)
    add("--device", choices=("cpu", "gpu"), help="default: a GPU if JAX has one")
    add("--shapes", **several, help="graphs, by name; default: the suite's")
    add("--scale", type=_share, help="of the graphs; default 1")
    add("--widths", **several, type=_count, help="feature widths")
    add("--dtypes", **several, choices=plan.DTYPES, help="dtypes to keep")
    add("--only", **several, help="implementations to keep, by part of the name")
    add("--k", dest="ks", **several, type=_count, help="entries kept, in maxk and traffic")
    add("--sweep", action="store_true", help="maxk for k from 2 to 192 on all shapes, in float32")
    add("--models", **several, help="of training (sage gcn gin, with an input layer) or attention")
    add(
        "--activations",
        **several,
        type=_activation,
        metavar="relu|maxkK",
        help="of training with --models; default relu maxk32 maxk16",
    )
    add("--parts", **several, choices=PARTS, help="parts of the suite attention")
    add("--repeats", type=_count, help="timed batches; default 20, 7 with --sweep")
    add("--rounds", type=_count, help="turns of each framework; default 4 on the CPU, 1 on a GPU")
    add("--threads", type=_count, default=2, help="on the CPU; default 2")
    add("--quick", action="store_true", help="tiny sizes: does everything run?")
    add("--output", type=Path, help="default: benchmarks/results/DATE-HARDWARE-SUITE.json")
    add("--cache", type=Path, help="keep generated graphs in this folder")
    add("--xla-flags", default="", help="XLA_FLAGS to add for every JAX worker")
    add("--commit", help="where the checkout has no git data to read it from")
    add("--ncu", help="Nsight Compute's command, for hardware counters")
    add("--strict", action="store_true", help="a missed target is a failure")
    values = vars(parser.parse_args(arguments))
    quick, suite = values["quick"], values["suite"]
    if values["activations"] and not values["models"]:
        parser.error("--activations: expected --models with it")
    if not set(values["models"] or ()) <= set(MODELS.get(suite, ())):
        parser.error(f"--models: the suite {suite} does not have all of {values['models']}")
    if values["parts"] and suite != "attention":
        parser.error(f"--parts: the suite {suite} has none")
    cpu = (values["device"] or default_device()) == "cpu"
    defaults = {
        "device": "cpu" if cpu else "gpu",
        "repeats": 3 if quick else 7 if values["sweep"] else 20,
        "rounds": 4 if cpu and suite in ("spmm", "maxk") and not (quick or values["sweep"]) else 1,
        "scale": 1.0 if not quick else 1e-3 if suite == "graph" else 2**-9,
        # The suite maxk has many short measurements.
        "batch_seconds": 0.001 if quick else 0.02 if suite == "maxk" else 0.05,
    }
    if quick:
        defaults |= {"widths": [16], "ks": [4, 2]}
        if cpu and suite == "training":
            defaults["shapes"] = ["rmat"]
    values |= {name: values.get(name) or default for name, default in defaults.items()}
    if max(values["ks"] or [1]) > min(values["widths"] or [plan.MAXK_WIDTH]):
        parser.error(f"--k: expected at most the width, got {values['ks']}")
    return Options(**values)


def _activation(text: str) -> int | None:
    """`None` for ReLU, k for MaxK."""
    if text == "relu":
        return None
    if not text.startswith("maxk") or not text[4:].isdecimal() or int(text[4:]) < 1:
        raise argparse.ArgumentTypeError(f"expected relu, or maxk and a number, got {text}")
    return int(text[4:])


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text}")
    return int(text)


def _share(text: str) -> float:
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
    fields = "--query-gpu=name,driver_version,memory.total"
    command = ["nvidia-smi", fields, "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not answer.stdout.strip():
        return {}
    name, driver, memory = (part.strip() for part in answer.stdout.splitlines()[0].split(","))
    return {"name": name, "driver": driver, "memory": memory}
