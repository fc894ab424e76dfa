"""How often a training step reads and writes arrays of the nodes' hidden rows, by what for.

    python -m benchmarks.experiments.dense_passes [--models gin sage] [--k 32]

Compiles the step of the suite `training --models` (layer normalization, dropout of a half, an input
layer, three convolutions) for a small graph and counts, in the compiled program, each array of
`[nodes, 256]` that an instruction reads or writes. It is a count and no measurement: the bytes are
those of the Reddit-shaped graph, the milliseconds those that an H200's memory takes for them at
4.8 TB/s. A fusion counts each of its operands and results once. The program is the one that XLA
makes for the device that the command runs on; a CPU's fusions are not a GPU's.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.baselines.jax_models import cross_entropy
from benchmarks.harness import plan
from benchmarks.harness.setting import Setting
from benchmarks.ours import models
from benchmarks.suites.training import WIDTHS
from jaxgnn import Graph

_NODES, _EDGES = 1009, 4000  # no other array has as many elements as the hidden rows
_REDDIT_NODES = 232_965
_BYTES_A_SECOND = 4.8e12

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?(%[\w.-]+) = (.*?) ([\w-]+)\((.*)$")
_SHAPE = re.compile(r"\b(?:f32|bf16|f16|pred|u32|s32)\[([\d,]*)\]")
_NOTHING = ("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "while", "call")
# What an instruction is for, by its text; the first that fits.
_KINDS = (
    ("aggregation", r"jaxgnn_(maxk_s?spmm|spmm)"),
    ("selection", r"jaxgnn_maxk\b"),
    ("MaxK's rows made dense, and gathered", r"cbsr_to_dense|cbsr_scatter|jaxgnn\.maxk[/)]"),
    ("products", r"dot_general|jaxgnn_weight_gradient| dot\("),
    ("elementwise, within the convolutions", r"layer_\d+_"),
)
_REST = "elementwise, between the convolutions"


@dataclasses.dataclass(frozen=True)
class Options:
    """Counts the passes over hidden rows."""

    models: tuple[str, ...] = ("gin", "sage")
    """Of the suite."""
    k: int = 32
    """Of MaxK, beside ReLU."""


def compiled(setting: Setting, widths: list[int]) -> str:
    """The step's program."""
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(_NODES, size=(2, _EDGES)), num_nodes=_NODES)
    apply = models.model_of(setting, widths)
    x = jnp.ones((_NODES, widths[0]), jnp.float32)
    labels = jnp.zeros(_NODES, jnp.int32)

    def loss(params: Any, graph: Graph, x: jax.Array, labels: jax.Array, key: Any) -> jax.Array:
        return cross_entropy(apply(params, graph, x, key), labels)

    params = models.initial_parameters(setting, widths)
    step = jax.jit(jax.value_and_grad(loss))
    program = step.lower(params, graph, x, labels, jax.random.key(0)).compile()
    return program.as_text() or ""


def passes(text: str, size: int) -> Counter[tuple[str, str]]:
    """Arrays of so many elements that the entry computation reads and writes, by what for."""
    entry = text[text.index("\nENTRY ") :]
    sizes: dict[str, list[int]] = {}
    found: Counter[tuple[str, str]] = Counter()
    for line in entry.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        name, shape, opcode, rest = match.groups()
        sizes[name] = [_elements(dims) for dims in _SHAPE.findall(shape)]
        if opcode in _NOTHING:
            continue
        operands = set(re.findall(r"%[\w.-]+", rest.split("), ")[0]))
        kind = next((kind for kind, pattern in _KINDS if re.search(pattern, line)), _REST)
        read = sum(sizes.get(operand, []).count(size) for operand in operands)
        found[kind, "read"] += read
        found[kind, "written"] += sizes[name].count(size)
    return found


def _elements(dims: str) -> int:
    return math.prod(int(size) for size in dims.split(",") if size)


def main(options: Options) -> None:
    """Counts, and prints."""
    first, *hidden, last = WIDTHS
    widths = [first, *hidden, *hidden[-2:], last]
    rows_ms = 1e3 * 4 * _REDDIT_NODES * hidden[0] / _BYTES_A_SECOND
    columns: dict[str, Counter[tuple[str, str]]] = {}
    for model in options.models:
        for k in (None, options.k):
            setting = Setting(plan.OURS, model, k, input_layer=True)
            name = f"{model}, {'ReLU' if k is None else f'MaxK {k}'}"
            columns[name] = passes(compiled(setting, widths), _NODES * hidden[0])
    title = f"arrays of nodes x {hidden[0]} read + written, on {jax.default_backend()}"
    table = Table("what for", *columns, title=title, title_justify="left")
    kinds = [kind for kind, _ in _KINDS] + [_REST]
    for kind in kinds:
        cells = (f"{found[kind, 'read']} + {found[kind, 'written']}" for found in columns.values())
        table.add_row(kind, *cells)
    for label, left_out in (
        ("all", ()),
        ("but aggregations, products", ("aggregation", "products")),
    ):
        totals = [
            sum(count for (kind, _), count in found.items() if kind not in left_out)
            for found in columns.values()
        ]
        cells = (f"{total}: {total * rows_ms:.2f} ms" for total in totals)
        table.add_row(label, *cells, style="bold")
    Console(width=140).print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.dense_passes"))
