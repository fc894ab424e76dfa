"""The `jaxgnn` command."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from jaxgnn.data import NodeDataset
    from jaxgnn.train.config import TrainConfig

_USAGE = """\
usage: jaxgnn COMMAND [OPTIONS]

Graph neural networks for JAX whose aggregation runs in XLA custom calls.

commands:
  train [DATASET]   train a model (the default dataset: handwritten digits)
  info [DATASET]    print what this installation consists of, a graph's statistics, and with the
                    options of train the kernels that a model runs

options:
  -h, --help        show this help; after a command, its own
  --version         print the version
"""

# The packages of the extra `train`, as they are imported.
_EXTRA = ("matplotlib", "optax", "orbax", "rich", "sklearn", "tyro")

_USER_ERROR, _FAILURE, _INTERRUPTED = 2, 1, 130


class UsageError(ValueError):
    """A command line that cannot be."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    0; 1 if training diverged; 2, with one line on stderr, for a user's error; 130 if interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # The reader went away: as for a process that died of SIGPIPE, without a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        package = error.name.partition(".")[0]
        command = arguments[0] if arguments else ""
        return _fail(f"{command} needs {package}: pip install 'jaxgnn[train]'", _USER_ERROR)
    except (ValueError, ArithmeticError) as error:
        if not _is_user_error(error):
            raise
        status = _FAILURE if isinstance(error, ArithmeticError) else _USER_ERROR
        return _fail(str(error), status)


def _fail(message: str, status: int) -> int:
    print(f"jaxgnn: {' '.join(message.split())}", file=sys.stderr)
    return status


def _is_user_error(error: Exception) -> bool:
    from jaxgnn.data import DataError

    kinds: tuple[type[Exception], ...] = (UsageError, DataError)
    with contextlib.suppress(ModuleNotFoundError):
        from jaxgnn.train import CheckpointError, ConfigError, DivergenceError

        kinds += (CheckpointError, ConfigError, DivergenceError)
    return isinstance(error, kinds)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    command, *rest = arguments
    if command == "--version":
        import jaxgnn

        print(f"jaxgnn {jaxgnn.__version__}")
        return 0
    if command == "train":
        return _train(rest)
    if command == "info":
        return _info(rest)
    raise UsageError(f"expected train or info, got {command!r} (see jaxgnn --help)")


def _train(arguments: list[str]) -> int:
    from rich.console import Console

    config = parse_train(arguments)
    if config is None:
        return 0
    import jax

    from jaxgnn.train import run

    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    run(config, Console())
    return 0


def parse_train(arguments: list[str]) -> TrainConfig | None:
    """The options of `jaxgnn train`; with `--resume`, over those of that run.

    Returns None if help was asked for, and printed.

    Raises:
        UsageError, ConfigError: options that cannot be.
    """
    import dataclasses
    from pathlib import Path

    from jaxgnn.train.config import (
        ConfigError,
        TrainConfig,
        check_same_settings,
        from_settings,
    )
    from jaxgnn.train.records import read_config

    arguments = _rewrite(arguments)
    config = _parse(TrainConfig, arguments)
    if config is None:
        return None
    if config.resume is None:
        defaults = TrainConfig.for_dataset(config.dataset)
        config = _parse(TrainConfig, arguments, default=defaults)
        assert config is not None
        return config.check()
    resume = config.resume or config.run_directory
    if resume is None:
        raise ConfigError("--resume: expected the directory of a run, got none")
    if config.run_directory not in (None, resume):
        raise ConfigError(
            f"--run-directory: a run continues in its own directory, got {config.run_directory}"
        )
    saved = read_config(Path(resume))["settings"]
    given = _parse(TrainConfig, arguments, default=from_settings(saved))
    assert given is not None
    check_same_settings(saved, given.check())
    return dataclasses.replace(given, resume=resume, run_directory=resume)


def _rewrite(arguments: list[str]) -> list[str]:
    """Makes `--dataset X` positional, and gives a `--resume` without a value an empty one."""
    rewritten: list[str] = []
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else None
        if argument == "--dataset" and following is not None:
            continue
        if argument.startswith("--dataset="):
            argument = argument.partition("=")[2]
        rewritten.append(argument)
        if argument == "--resume" and (following is None or following.startswith("--")):
            rewritten.append("")
    return rewritten


def _parse(kind: type, arguments: list[str], name: str = "train", **options: Any) -> Any:
    """tyro's parse, its errors as a `UsageError` of one line; None after `--help`."""
    import tyro

    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                kind,
                prog=f"jaxgnn {name}",
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
                **options,
            )
    except SystemExit as stop:
        if not stop.code:
            return None
        message = _plain_message(errors.getvalue())
        raise UsageError(f"{message} (see jaxgnn {name} --help)") from None


def _plain_message(text: str) -> str:
    """The message inside tyro's box, between its title and its further rulers.

    The title is in the box's upper border, or where that is not drawn, above a ruler.
    """
    sections: list[list[str]] = [[]]
    bordered = False
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        line = line.strip().strip("│|").strip()
        if line.startswith(("╭", "╰", "+-")):
            bordered = True
        elif line and not line.strip("─-"):
            sections.append([])
        else:
            sections[-1].append(line)
    message = sections[0] if bordered or len(sections) == 1 else sections[1]
    return " ".join(message).strip().rstrip(".") or "arguments that cannot be parsed"


def _info(arguments: list[str]) -> int:
    from rich.console import Console

    from jaxgnn.data import load, names

    if arguments and arguments[0] in ("-h", "--help"):
        print(
            "usage: jaxgnn info [DATASET] [OPTIONS OF TRAIN]\n\n"
            "Prints what this installation consists of; of a dataset, the graph's statistics; and\n"
            "with options of jaxgnn train, such as --model gcn --activation maxk --k 32, that\n"
            "model's size and the kernels it would run (on the digits without DATASET).\n"
            f"DATASET: a name ({', '.join(names())}) or the path of Planetoid's raw files or of "
            "an .npz file."
        )
        return 0
    if any(argument.startswith("-") for argument in arguments):
        return _info_of_model(arguments)
    if len(arguments) > 1:
        raise UsageError(f"info: expected one dataset, got {' '.join(arguments)}")
    dataset = load(arguments[0]) if arguments else None
    console = Console()
    _print_build(console)
    _print_statistics(console, dataset)
    return 0


def _info_of_model(arguments: list[str]) -> int:
    """What `jaxgnn train` would run with these options: nothing is compiled or run."""
    import dataclasses

    import jax
    from rich.console import Console
    from rich.table import Table

    from jaxgnn.train import build, lower
    from jaxgnn.train.config import TrainConfig
    from jaxgnn.train.runner import (
        choose_split,
        describe_activation,
        describe_kernels,
        load_dataset,
        make_task,
    )

    arguments = _rewrite(arguments)
    unnamed = dataclasses.replace(TrainConfig(), dataset="")
    given = _parse(TrainConfig, arguments, name="info", default=unnamed)
    if given is None:
        return 0
    name = given.dataset or TrainConfig.dataset
    config = _parse(TrainConfig, arguments, name="info", default=TrainConfig.for_dataset(name))
    config.check()
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    dataset = load_dataset(config)
    task = make_task(config, dataset, choose_split(dataset, config.split))
    program, state = build(config, task)
    kernels = lower(program, state, task)[2]
    console = Console()
    _print_build(console)
    if given.dataset:
        _print_statistics(console, dataset)
    title = f"{config.model} on {dataset.name}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_row("layers, hidden width", f"{config.layers}, {config.hidden}")
    table.add_row("activation", describe_activation(config))
    table.add_row("parameters", f"{sum(p.size for p in jax.tree.leaves(state.params)):,}")
    table.add_row("kernels", describe_kernels(config, kernels))
    console.print(table)
    return 0


def _print_statistics(console: Console, dataset: NodeDataset | None) -> None:
    import dataclasses

    from rich.table import Table

    if dataset is not None:
        table = Table(title=dataset.name, title_justify="left", show_header=False)
        for name, value in dataset.statistics().items():
            table.add_row(name, _format(value))
        table.add_row("training, validation, test nodes", _sizes(dataset))
        table.add_row("metric", dataset.metric)
        for field in dataclasses.fields(dataset.metadata):
            value = getattr(dataset.metadata, field.name)
            if value and field.name != "metric":
                table.add_row(field.name, value)
        console.print(table)


def _print_build(console: Console) -> None:
    import jax
    from rich.table import Table

    import jaxgnn

    info = jaxgnn.build_info()
    table = Table(title=f"jaxgnn {jaxgnn.__version__}", title_justify="left", show_header=False)
    cpu = f"loaded, {info.cpu_isa}" if info.cpu else f"not loaded: {info.cpu_error}"
    table.add_row("CPU kernels", cpu)
    cuda = f"loaded, {info.cuda_architectures}" if info.cuda else f"not loaded: {info.cuda_error}"
    if info.cuda and info.cuda_error:
        cuda = f"loaded, but not used: {info.cuda_error}"
    table.add_row("CUDA kernels", cuda)
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


if __name__ == "__main__":
    sys.exit(main())
