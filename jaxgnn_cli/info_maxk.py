"""What `jaxgnn info` says of MaxK: which engines it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxgnn_cli.output import duration

if TYPE_CHECKING:
    from jax.stages import Lowered
    from rich.table import Table

    from jaxgnn import Graph
    from jaxgnn.train import TrainConfig
    from jaxgnn.train.step import Program


def aggregates_maxk(program: Program, step: Lowered) -> bool:
    """Whether a step aggregates MaxK's rows of the graph itself, by any engine; a mini-batch has
    another graph in each step."""
    return program.batches is None and "jaxgnn.maxk_spmm/" in step.as_text(debug_info=True)


def add_engines(table: Table, graph: Graph, config: TrainConfig) -> None:
    """What `maxk_spmm` and its gradient would run on a GPU: see `jaxgnn.config.maxk_engine`."""
    from jaxgnn import build_info
    from jaxgnn.graph._windows import MAX_WIDTH
    from jaxgnn.ops._maxk import choice

    if not build_info().cpu or graph.num_edges >= 1 << 31:
        return
    if graph.windows is None and config.hidden <= MAX_WIDTH:
        graph = graph.with_windows(width=config.hidden)
    moved = config.k if config.anneal_stages else config.anneal_from or config.k
    operations: dict[str, choice.Operation] = {"maxk_spmm": "spgemm", "its gradient": "sspmm"}
    case = choice.of_graph(graph, config.hidden, moved, config.dtype)
    for name, operation in operations.items():
        seconds = choice.estimate(case, operation)
        text = ", ".join(f"{engine} {duration(value)}" for engine, value in seconds.items())
        fastest = choice.choose(case, operation)
        table.add_row(f"{name}, H200 (estimate)", f"{text}: {fastest}")
