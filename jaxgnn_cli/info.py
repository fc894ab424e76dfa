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
    from rich.console import Console
    from rich.table import Table

    from jaxgnn.data import GraphSet, NodeDataset, PlainGraph
    from jaxgnn.train import TrainConfig
    from jaxgnn.train.planning.estimate import Estimate


def info(arguments: list[str]) -> None:
    """Prints the build, and what is asked for of a dataset and a model."""
    from rich.console import Console

    from jaxgnn.data import load, names
    from jaxgnn.data.cache.downloads import SOURCES

    if arguments and arguments[0] in ("-h", "--help"):
        print(
            "usage: jaxgnn info [DATASET] [OPTIONS OF TRAIN]\n\n"
            "Prints what this installation consists of; of a dataset, the graph's statistics; and\n"
            "with options of jaxgnn train, such as --model gcn --activation maxk --k 32, that\n"
            "model's size, the kernels it would run, and the memory and time that a step would\n"
            "take here (on the digits without DATASET; of a mini-batch with --num-neighbors and\n"
            "with --task graph).\n"
            f"DATASET: a name ({', '.join(names())}; {', '.join(SOURCES)}, once downloaded) or\n"
            "the path of a directory or a file in one of the layouts of docs/data.md: a set of\n"
            "nodes, of graphs, or a graph alone."
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

    from jaxgnn.data import load
    from jaxgnn.data.loading.directions import load_undirected
    from jaxgnn.train import ConfigError, Recovery
    from jaxgnn.train.loop.epochs import lower
    from jaxgnn.train.planning.estimate import estimate
    from jaxgnn.train.problems.graph_problem import GraphProblem
    from jaxgnn.train.problems.graph_step import lower_graphs
    from jaxgnn.train.problems.problem import make_problem
    from jaxgnn.train.runs.runner import describe_activation, describe_kernels
    from jaxgnn_cli import info_maxk
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
    recovery = Recovery()
    with recovery.errors():
        problem = make_problem(config, None, recovery)
        program, state = problem.build()
        task: Any = problem.task
        lowered = lower_graphs if isinstance(problem, GraphProblem) else lower
        step, _, kernels = lowered(program, state, task)  # type: ignore[arg-type]
        guess = None if config.features_on == "host" else estimate(program, state, task)
    console = Console()
    _print_build(console)
    if names_a_dataset(arguments):
        data = load_undirected(config.dataset) if config.undirected else load(config.dataset)
        _print_statistics(console, data, config)
    title = Text(printable(f"{config.model} on {problem.name}"))
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_row("layers, hidden width", f"{config.layers}, {config.hidden}")
    table.add_row("activation", describe_activation(config))
    table.add_row("parameters", f"{sum(p.size for p in jax.tree.leaves(state.params)):,}")
    table.add_row("kernels", Text(describe_kernels(config, kernels)))
    if config.activation == "maxk":
        table.add_row("MaxK's rows", info_maxk.rows(step))
    if config.head_k:
        table.add_row("--head-k", info_maxk.head_rows(config))
    if config.dtype != "float64" and info_maxk.aggregates_maxk(program, step):
        info_maxk.add_engines(table, task.graph, config)
    what = "a step" if program.batches is None else "a mini-batch"
    if guess is None:
        table.add_row(f"{what} (estimate)", "none with --features-on host")
    else:
        _add_estimate(table, guess, what)
    console.print(table)


def _add_estimate(table: Table, guess: Estimate, what: str) -> None:
    """What `jaxgnn.train.planning.estimate` says of a step."""
    if guess.peak_bytes:
        held = f"{guess.argument_bytes / 1e6:,.1f} MB of data, parameters and optimizer"
        table.add_row(f"memory of {what}", f"{guess.peak_bytes / 1e6:,.1f} MB, with {held}")
    parts = {
        "matrix products": guess.products,
        "kernels": guess.kernels,
        "rows gathered and scattered": guess.moved,
        "random numbers": guess.random,
        "negatives": guess.negatives,
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
