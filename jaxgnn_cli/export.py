"""`jaxgnn export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxgnn_cli.options import parse_options
from jaxgnn_cli.output import print_error
from jaxgnn_cli.predict import is_link_run, load
from jaxgnn_cli.status import UsageError
from jaxgnn_cli.values import check_between, choices


def _optional(metavar: str) -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(optional)")


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Write a trained model as a compiled program for graphs of one size.

    jaxgnn.export.load(DIRECTORY)(graph, x) calls it, without training code, and pads smaller
    graphs. Without --graph, --nodes and --edges the size is that of the run's own graph. Of a run
    of --task link it is encoder and decoder, for jaxgnn.export.load_links.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The directory of a run of jaxgnn train."""

    output: Annotated[str, tyro.conf.arg(metavar="DIRECTORY", help_behavior_hint="(required)")] = ""
    """Where to write: a directory that is empty or not there."""

    graph: Annotated[str | None, _optional("DATASET")] = None
    """Data whose graph has the size to export for."""

    nodes: Annotated[int | None, _optional("N")] = None
    """With --edges: the most nodes of a graph. The program has one more, for padding."""

    edges: Annotated[int | None, _optional("E")] = None
    """The most edges of a graph."""

    platforms: str = "cpu"
    """Where it is to run: cpu, cuda or cpu,cuda."""

    portable: bool = False
    """Take the JAX reference of every operation: the program needs JAX alone, and is slower."""


def export(arguments: list[str]) -> None:
    """Exports a trained model, or prints the help."""
    options = parse_options(ExportOptions, arguments, "export")
    if options is None:
        return
    _check(options)
    from rich.console import Console

    import jaxgnn
    from jaxgnn.train.display import print_line
    from jaxgnn.train.recovery import memory_errors

    links = is_link_run(options.run)
    with memory_errors():
        run = load(options.run, links=links)
        if run.config.task == "graph":
            raise UsageError("RUN: expected a run of --task node or link, got --task graph")
        nodes, edges = _size(options, run)
        if run.has_embedding:
            nodes = _with_padding(options, run.dataset.num_nodes)
        own: dict[str, Any] = (
            {"decoder": run.model.decoder}
            if links
            else {"multilabel": run.dataset.multilabel, "class_names": run.dataset.class_names}
        )
        written = jaxgnn.export.save(
            run.exportable(),
            Path(options.output),
            num_nodes=nodes,
            num_edges=edges,
            num_features=run.dataset.num_features or 0,
            dtype=run.config.dtype,
            platforms=options.platforms.split(","),
            portable=options.portable,
            **own,
        )
    for name, kernels in written.kernels.items():
        aggregates = run.config.model != "mlp" and not options.portable
        if aggregates and not kernels:
            print_error(f"no kernels for {name} on this machine: the program has the JAX reference")
    console = Console()
    print_line(
        console,
        f"wrote {options.output}: {'links, ' * links}graphs of {nodes:,} nodes and {edges:,} "
        f"edges, {options.platforms}{', portable' * options.portable}",
    )


def _check(options: ExportOptions) -> None:
    if not options.output:
        raise UsageError("--output: expected a directory, got none (see jaxgnn export --help)")
    platforms = choices(options.platforms, "--platforms", ("cpu", "cuda"))
    if len(set(platforms)) < len(platforms):
        raise UsageError(f"--platforms: expected each once, got {options.platforms!r}")
    if (options.nodes is None) != (options.edges is None):
        raise UsageError("--nodes: expected both --nodes and --edges, or neither")
    if options.nodes is not None and options.edges is not None:
        if options.graph is not None:
            raise UsageError("--graph: expected no --nodes and no --edges with it")
        check_between(options.nodes, "nodes", 1, 2**31 - 2)
        check_between(options.edges, "edges", 0, 2**31 - 1)


def _size(options: ExportOptions, run: Any) -> tuple[int, int]:
    """The nodes and edges of the program."""
    if options.nodes is not None and options.edges is not None:
        # A graph with all of these nodes and fewer edges needs a padding node.
        return options.nodes + 1, options.edges
    if options.graph is not None:
        graph = run.load_data(options.graph).graph
        return graph.num_nodes, graph.num_edges
    return run.dataset.num_nodes, run.dataset.num_edges


def _with_padding(options: ExportOptions, nodes: int) -> int:
    """Those whose embedding was learned, and one for padding."""
    if options.nodes not in (None, nodes):
        raise UsageError(
            f"--nodes: expected the {nodes} nodes whose embedding was learned, got {options.nodes}"
        )
    return nodes + 1
