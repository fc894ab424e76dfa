"""`jaxgnn info`."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from jaxgnn._core.text import printable
from jaxgnn_cli.info_tiles import add_tiles
from jaxgnn_cli.output import duration
from jaxgnn_cli.status import UsageError

if TYPE_CHECKING:
    from jax.stages import Lowered
    from rich.console import Console
    from rich.table import Table

    from jaxgnn import Graph
    from jaxgnn.data import GraphSet, NodeDataset, PlainGraph
    from jaxgnn.train import TrainConfig
    from jaxgnn.train.estimate import Estimate
    from jaxgnn.train.step import Program


def info(arguments: list[str]) -> None:
    """Prints the build, and what is asked for of a dataset and a model."""
    from rich.console import Console

    from jaxgnn.data import load, names

    if arguments and arguments[0] in ("-h", "--help"):
        print(
            "usage: jaxgnn info [DATASET] [OPTIONS OF TRAIN]\n\n"
            "Prints what this installation consists of; of a dataset, the graph's statistics; and\n"
            "with options of jaxgnn train, such as --model gcn --activation maxk --k 32, that\n"
            "model's size, the kernels it would run, and the memory and time that a step would\n"
            "take here (on the digits without DATASET; of a mini-batch with --num-neighbors).\n"
            f"DATASET: a name ({', '.join(names())}) or the path of a directory or a file in\n"
            "one of the layouts of docs/data.md: a set of nodes, of graphs, or a graph alone."
        )
        return
    if any(argument.startswith("-") for argument in arguments):
        return _info_of_model(arguments)
    if len(arguments) > 1:
        raise UsageError(f"info: expected one dataset, got {' '.join(arguments)}")
    dataset = load(arguments[0]) if arguments else None
    console = Console()
    _print_build(console)
    _print_statistics(console, dataset)


def _info_of_model(arguments: list[str]) -> None:
    """What `jaxgnn train` would run with these options; the step is compiled, but not run."""
    import jax
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from jaxgnn import Graph
    from jaxgnn.train import ConfigError, Recovery, build, lower
    from jaxgnn.train.estimate import estimate
    from jaxgnn.train.node_problem import choose_split, load_dataset, make_task
    from jaxgnn.train.runner import describe_activation, describe_kernels
    from jaxgnn_cli.options import names_a_dataset, parse_train

    config = parse_train(arguments, "info")
    if config is None:
        return
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    if config.devices != "1":
        raise ConfigError(f"--devices: jaxgnn info expected 1, got {config.devices}: jaxgnn plan")
    if config.distributed:
        raise ConfigError("--distributed: jaxgnn info expected none, got it: jaxgnn plan")
    if config.task != "node":
        raise ConfigError(f"--task: jaxgnn info expected node, got {config.task}")
    dataset = load_dataset(config)
    task = make_task(config, dataset, choose_split(dataset, config.split), training=True)
    with Recovery().errors():
        program, state = build(config, task)
        step, _, kernels = lower(program, state, task)
        guess = None
        if config.features_on == "device" and config.features != "embedding":
            guess = estimate(program, state, task)
    console = Console()
    _print_build(console)
    if names_a_dataset(arguments):
        _print_statistics(console, dataset, config)
    title = Text(printable(f"{config.model} on {dataset.name}"))
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_row("layers, hidden width", f"{config.layers}, {config.hidden}")
    table.add_row("activation", describe_activation(config))
    table.add_row("parameters", f"{sum(p.size for p in jax.tree.leaves(state.params)):,}")
    table.add_row("kernels", Text(describe_kernels(config, kernels)))
    if config.dtype != "float64" and _aggregates_maxk(program, step):
        assert isinstance(task.graph, Graph)  # on one device
        _add_maxk(table, task.graph, config)
    if guess is not None:
        _add_estimate(table, guess, "a step" if program.batches is None else "a mini-batch")
    console.print(table)


def _add_estimate(table: Table, guess: Estimate, what: str) -> None:
    """What `jaxgnn.train.estimate` says of a step."""
    if guess.peak_bytes:
        held = f"{guess.argument_bytes / 1e6:,.1f} MB of data, parameters and optimizer"
        table.add_row(f"memory of {what}", f"{guess.peak_bytes / 1e6:,.1f} MB, with {held}")
    parts = {
        "matrix products": guess.products,
        "kernels": guess.kernels,
        "random numbers": guess.random,
        "new pages": guess.pages,
        "the rest": guess.rest,
    }
    shares = ", ".join(f"{name} {duration(value)}" for name, value in parts.items() if value)
    rough = f"; counted as spmm: {', '.join(guess.unknown)}" if guess.unknown else ""
    table.add_row(f"{what} (estimate)", f"{duration(guess.seconds)}: {shares}{rough}")


def _print_statistics(
    console: Console,
    dataset: NodeDataset | GraphSet | PlainGraph | None,
    config: TrainConfig | None = None,
) -> None:
    from rich.table import Table
    from rich.text import Text

    from jaxgnn.data import NodeDataset

    if dataset is not None:
        table = Table(title=Text(printable(dataset.name)), title_justify="left", show_header=False)
        for name, value in dataset.statistics().items():
            table.add_row(name, _format(value))
        add_tiles(table, dataset, config)
        if isinstance(dataset, NodeDataset):
            table.add_row("training, validation, test nodes", _sizes(dataset))
            table.add_row("metric", dataset.metric)
        for field in dataclasses.fields(dataset.metadata):
            value = getattr(dataset.metadata, field.name)
            if value and field.name != "metric":
                table.add_row(field.name, Text("yes" if value is True else printable(value)))
        console.print(table)


def _aggregates_maxk(program: Program, step: Lowered) -> bool:
    """Whether a step aggregates MaxK's rows of the graph itself, by any engine; a mini-batch has
    another graph in each step."""
    return program.batches is None and "jaxgnn.maxk_spmm/" in step.as_text(debug_info=True)


def _add_maxk(table: Table, graph: Graph, config: TrainConfig) -> None:
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


def _print_build(console: Console) -> None:
    import jax
    from rich.table import Table
    from rich.text import Text

    import jaxgnn

    info = jaxgnn.build_info()
    table = Table(title=f"jaxgnn {jaxgnn.__version__}", title_justify="left", show_header=False)
    cpu = f"loaded, {info.cpu_isa}" if info.cpu else f"not loaded: {info.cpu_error}"
    table.add_row("CPU kernels", Text(cpu))
    cuda = f"loaded, {info.cuda_architectures}" if info.cuda else f"not loaded: {info.cuda_error}"
    if info.cuda and info.cuda_error:
        cuda = f"loaded, but not used: {info.cuda_error}"
    table.add_row("CUDA kernels", Text(cuda))
    table.add_row("jax, jaxlib", f"{info.jax}, {info.jaxlib}")
    table.add_row("Python", sys.version.split()[0])
    table.add_row("devices", ", ".join(str(device) for device in jax.devices()))
    console.print(table)


def _sizes(dataset: Any) -> str:
    return ", ".join(f"{count:,}" for count in dataset.split(0).sizes)


def _format(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
