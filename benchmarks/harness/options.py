"""The command line's options, and how they are read."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from benchmarks.harness import plan

Part = Literal[
    "kernels", "products", "steps", "memory", "paper", "ablation", "neighbors", "embedding", "host"
]
PARTS = {
    "tensor_core": ("products", "steps"),
    "attention": ("kernels", "steps", "memory", "paper", "ablation"),
    "sampling": ("kernels", "neighbors", "embedding", "steps", "host"),
}
MODELS = {
    "training": ("sage", "gcn", "gin"),
    "attention": plan.EDGE_MODELS,
    "tensor_core": tuple(plan.TCGNN_PYG),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Times jaxgnn against the alternatives; see docs/benchmarks.md."""

    suite: tyro.conf.Positional[
        Literal[
            "spmm", "tensor_core", "maxk", "attention", "sampling", "training", "graph", "scale"
        ]
    ]
    device: Literal["cpu", "gpu"] | None = None  # default: a GPU if JAX has one
    shapes: tuple[str, ...] = ()  # graphs, by name; default: the suite's
    scale: float | None = None  # of the graphs, in (0, 1]; default 1
    widths: tuple[int, ...] = ()  # feature widths
    dtypes: tuple[Literal["float32", "bfloat16", "float16"], ...] = ()  # dtypes to keep
    only: tuple[str, ...] = ()  # implementations to keep, by part of the name
    ks: Annotated[tuple[int, ...], tyro.conf.arg(name="k")] = ()  # entries kept, in maxk
    sample_sizes: tuple[int, ...] = ()  # edges of a row, in sampling
    children: tuple[int, ...] = ()  # of a source, in sampling's embedding
    seeds: tuple[int, ...] = ()  # of a mini-batch, in sampling
    sweep: bool = False  # maxk for k from 2 to 192 on all shapes, in float32
    wide: bool = False  # maxk for rows of 256 to 1,024 columns, in float32
    models: tuple[str, ...] = ()  # of training (with an input layer), attention, tensor_core
    activations: tuple[str, ...] = ()  # of training --models; default relu maxk32 maxk16
    devices: tuple[int, ...] = ()  # numbers of them, in scale; default 2 4 8
    layouts: tuple[Literal["rows", "features"], ...] = ()  # in scale; default both
    parts: tuple[Part, ...] = ()  # of the suites attention, sampling and tensor_core
    budget: float | None = None  # seconds in all: what would not end in time is left out
    # Timed batches; default 20, 7 with --sweep, --wide or the steps of tensor_core alone.
    repeats: int | None = None
    rounds: int | None = None  # turns of each framework; default 4 on the CPU, 1 on a GPU
    threads: int = 2  # on the CPU
    quick: bool = False  # tiny sizes: does everything run?
    output: Path | None = None  # default: benchmarks/results/DATE-HARDWARE-SUITE.json
    cache: Path | None = None  # keep generated graphs in this folder
    xla_flags: str = ""  # XLA_FLAGS to add for every JAX worker
    commit: str | None = None  # where the checkout has no git data to read it from
    strict: bool = False  # a missed target is a failure

    @property
    def label(self) -> str:
        """The suite, and which plan of it where there are several."""
        if self.suite == "training" and self.models:
            return "training-maxk"
        if self.suite != "maxk":
            return self.suite
        return "maxk-sweep" if self.sweep else "maxk-wide" if self.wide else "maxk"

    @property
    def timing(self) -> dict[str, Any]:
        """The arguments of `timing.measure`; the suite maxk has many short measurements."""
        repeats = -(-self.repeats // self.rounds)
        seconds = 0.001 if self.quick else 0.02 if self.suite == "maxk" else 0.05
        return {"repeats": repeats, "batch_seconds": seconds}

    def problem(self) -> str | None:
        """What is wrong with the values, in one line."""
        counts = (
            *self.widths,
            *self.ks,
            *self.sample_sizes,
            *self.children,
            *self.seeds,
            self.repeats,
            self.rounds,
            self.threads,
        )
        known = MODELS.get(self.suite, ())
        checks = {
            "--scale: expected a number in (0, 1]": self.scale is None or 0 < self.scale <= 1,
            "expected counts of at least 1": all(count is None or count > 0 for count in counts),
            f"--models: expected some of {known}": set(self.models) <= set(known),
            "--activations: expected --models with it": self.models
            or self.suite == "scale"
            or not self.activations,
            "--budget: expected seconds above 0": self.budget is None or self.budget > 0,
            "--devices: expected numbers from 2 on": min(self.devices, default=2) >= 2,
            "--activations: expected relu, or maxk and a number": all(
                name == "relu" or name.removeprefix("maxk").isdecimal() for name in self.activations
            ),
            "--wide: expected the suite maxk without --sweep": not self.wide
            or (self.suite == "maxk" and not self.sweep),
            f"--parts: expected some of {PARTS.get(self.suite, ())}": set(self.parts)
            <= set(PARTS.get(self.suite, ())),
            "--k: expected at most the width": max(self.ks, default=1)
            <= min(self.widths, default=plan.MAXK_WIDTH),
        }
        return next((message for message, holds in checks.items() if not holds), None)


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Reads the command line; a bad value ends the process with status 2.

    In the result only `budget`, `output`, `cache` and `commit` may be `None`.
    """
    given = tyro.cli(Options, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    quick, suite = given.quick, given.suite
    device = given.device or default_device()
    in_rounds = (
        device == "cpu" and suite in ("spmm", "maxk", "sampling") and not (quick or given.sweep)
    )
    of_steps = suite == "tensor_core" and given.parts == ("steps",)  # of many sets
    defaults: dict[str, Any] = {
        "device": device,
        "repeats": 3 if quick else 7 if given.sweep or given.wide or of_steps else 20,
        "rounds": 4 if in_rounds else 1,
        "scale": 1.0 if not quick else 1e-3 if suite == "graph" else 2**-9,
    }
    if quick:
        defaults |= {"widths": (16,), "ks": (4, 2), "sample_sizes": (4,)}
        if device == "cpu" and suite in ("training", "scale"):
            defaults["shapes"] = ("rmat",)
    unset = {name: value for name, value in defaults.items() if getattr(given, name) in (None, ())}
    options = dataclasses.replace(given, **unset)
    if problem := options.problem():
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(2)
    return options


def default_device() -> str:
    """`gpu` where there is a driver and a JAX for it; does not start JAX."""
    plugin = any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13))
    return "gpu" if plugin and gpu_facts() else "cpu"


def gpu_facts() -> dict[str, str]:
    """Name and driver of the first GPU, as `nvidia-smi` says; empty without one."""
    if shutil.which("nvidia-smi") is None:
        return {}
    fields = "--query-gpu=name,driver_version"
    command = ["nvidia-smi", fields, "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not answer.stdout.strip():
        return {}
    return dict(zip(("name", "driver"), answer.stdout.splitlines()[0].split(", "), strict=True))
