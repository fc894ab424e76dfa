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
    graphs; of a run with --edge-weights it is called with (graph, x, weights). Without --graph,
    --nodes and --edges the size is that of the run's own graph. Of a run of --task link it is
    encoder and decoder, for jaxgnn.export.load_links; of --task graph it takes unions of graphs, by
    default of the size of the run's batches, for jaxgnn.export.load_graphs.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The directory of a run of jaxgnn train."""

    output: Annotated[str, tyro.conf.arg(metavar="DIRECTORY", help_behavior_hint="(required)")] = ""
    """Where to write: a directory that is empty or not there."""

    graph: Annotated[str | None, _optional("DATASET")] = None
    """Data whose graph, or whose batches of graphs, have the size to export for."""

    graphs: Annotated[int | None, _optional("N")] = None
    """Of a run of --task graph: the most graphs of a union; by default its --batch-size."""

    nodes: Annotated[int | None, _optional("N")] = None
    """With --edges: the most nodes of a graph or union. The program has one more, for padding."""

    edges: Annotated[int | None, _optional("E")] = None
    """The most edges of a graph or union."""

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
    from jaxgnn.train.process.recovery import memory_errors
    from jaxgnn.train.reports.display import print_line

    links = is_link_run(options.run)
    with memory_errors():
        run = load(options.run, links=links)
        task = run.config.task
        if options.graphs is not None and task != "graph":
            raise UsageError(f"--graphs: expected a run of --task graph with it, got --task {task}")
        num_features, dtype = run.dataset.num_features or 0, run.config.dtype
        if task == "graph":
            nodes, edges = _union_size(options, run)
            num_features *= run.dataset.inputs != "degrees"
            categories = (run.dataset.node_categories, run.dataset.edge_categories)
            if categories != (None, None):
                dtype = "float32"  # 16 bits do not hold their numbers
            own: dict[str, Any] = {
                "num_graphs": options.graphs or run.config.batch_size,
                "num_edge_features": run.dataset.num_edge_features,
                "multilabel": run.dataset.targets == "labels",
                "class_names": run.dataset.class_names,
            }
        else:
            nodes, edges = _size(options, run)
            if run.has_embedding:
                nodes = _with_padding(options, run.dataset.num_nodes)
            own = {"decoder": run.model.decoder} if links else _of_nodes(run)
        written = jaxgnn.export.save(
            run.exportable(),
            Path(options.output),
            num_nodes=nodes,
            num_edges=edges,
            num_features=num_features,
            dtype=dtype,
            platforms=options.platforms.split(","),
            portable=options.portable,
            normalized_features=run.dataset.normalized,
            feature_names=getattr(run.dataset, "feature_names", None),
            **own,
        )
    for name, kernels in written.kernels.items():
        aggregates = edges > 0 and run.config.model != "mlp" and not options.portable
        if aggregates and not kernels:
            print_error(f"no kernels for {name} on this machine: the program has the JAX reference")
    console = Console()
    what = f"{'links, ' * links}graphs of"
    if written.num_graphs:
        what = f"unions of {written.num_graphs:,} graphs,"
    print_line(
        console,
        f"wrote {options.output}: {what} {nodes:,} nodes and {edges:,} edges, "
        f"{options.platforms}{', portable' * options.portable}",
    )
    if written.normalized_features:
        each = " of each graph" if written.num_graphs else ""
        expected = f"features{each} as jaxgnn.data.normalize_features has them"
        print_line(console, f"the model expects {expected}")
    if written.edge_weights:
        print_line(console, "the model takes the weights of the edges: model(graph, x, weights)")


def _of_nodes(run: Any) -> dict[str, Any]:
    return {
        "multilabel": run.dataset.multilabel,
        "class_names": run.dataset.class_names,
        "edge_weights": run.config.edge_weights,
    }


def _check(options: ExportOptions) -> None:
    if not options.output:
        raise UsageError("--output: expected a directory, got none (see jaxgnn export --help)")
    platforms = choices(options.platforms, "--platforms", ("cpu", "cuda"))
    if len(set(platforms)) < len(platforms):
        raise UsageError(f"--platforms: expected each once, got {options.platforms!r}")
    if options.graphs is not None:
        check_between(options.graphs, "graphs", 1, 2**31 - 2)
    if (options.nodes is None) != (options.edges is None):
        lacking, given = ("nodes", "edges") if options.nodes is None else ("edges", "nodes")
        raise UsageError(f"--{lacking}: expected a number with --{given}, got none")
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


def _union_size(options: ExportOptions, run: Any) -> tuple[int, int]:
    """The nodes and edges of the program of a run of many graphs."""
    if options.nodes is not None and options.edges is not None:
        return options.nodes + 1, options.edges
    data = run.own_data("RUN") if options.graph is None else run.load_data(options.graph)
    return run.union_size(data, options.graphs)


def _with_padding(options: ExportOptions, nodes: int) -> int:
    """Those whose embedding was learned, and one for padding."""
    if options.nodes not in (None, nodes):
        raise UsageError(
            f"--nodes: expected the {nodes} nodes whose embedding was learned, got {options.nodes}"
        )
    return nodes + 1
