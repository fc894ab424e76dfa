"""The options of `jaxgnn train`, as the command line gives them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from jaxgnn.train.reports.records import read_config
from jaxgnn.train.runs.choose_k import automatic
from jaxgnn.train.settings.config import HEAD_K_AUTO, TrainConfig
from jaxgnn.train.settings.options import ConfigError, option
from jaxgnn.train.settings.presets import preset
from jaxgnn.train.settings.saved_settings import check_same_settings, from_settings
from jaxgnn_cli.help_texts import in_paragraphs
from jaxgnn_cli.status import UsageError

_AUTO = {"--k": "0", "--head-k": str(HEAD_K_AUTO)}

# What says how a run is kept and watched, and what `jaxgnn plan` refuses.
_OF_RUNS = ("run_directory", "profile", "plain", "checkpoint_interval", "checkpoint_steps")
_NOT_PLANNED = ("folds", *_OF_RUNS, "resume", "task", "edge_weights")

T = TypeVar("T")
Planned = TypeVar("Planned", bound="Options")


@dataclasses.dataclass(frozen=True)
class Options(TrainConfig):
    __doc__ = TrainConfig.__doc__

    preset: Annotated[str, tyro.conf.arg(help_behavior_hint="(optional)")] = ""
    """Begin with a model's published settings: agnn, edgeconv, gat, gatv2, gcn, gcn-pyg, gin, mlp,
    monet, sage, sage_embedding or transformer. Other options replace single ones."""

    folds: int = 0
    """With --task graph: train a run for each of the splits 0 to FOLDS - 1, in fold0, fold1, ... of
    --run-directory, and print mean and standard deviation. The same command again goes on after an
    interruption. 0: the run of --split alone."""

    def config(self) -> TrainConfig:
        """Without what only the command line has."""
        return TrainConfig(**_fields(self))


def parse_train(arguments: list[str], name: str = "train") -> TrainConfig | None:
    """The options of `jaxgnn train`; with `--resume`, over those of that run.

    Returns None if help was asked for, and printed.

    Raises:
        UsageError, ConfigError: options that cannot be.
    """
    found = parse_run(arguments, name)
    if found is None:
        return None
    config, folds = found
    if folds:
        raise ConfigError(f"--folds: expected jaxgnn train with it, got jaxgnn {name}")
    if name != "train":
        # Of a run that is named the rest is its own.
        given = ("profile", "plain") if config.resume else _OF_RUNS
        _check_of_train(name, config, TrainConfig(), given)
    return config


def _check_of_train(name: str, options: Any, usual: Any, keys: Collection[str]) -> None:
    """Refuses options of runs, which a command that makes none would ignore."""
    for key in keys:
        if getattr(options, key) != getattr(usual, key):
            raise ConfigError(f"{option(key)}: expected jaxgnn train with it, got jaxgnn {name}")


def parse_run(arguments: list[str], name: str = "train") -> tuple[TrainConfig, int] | None:
    """`parse_train`, and the number of folds; 0: one run."""
    arguments = _rewrite(arguments)
    options = _parse(arguments, name, Options())
    if options is None:
        return None
    if options.resume is not None:
        if options.folds:
            raise ConfigError("--folds: expected --run-directory to continue, got --resume")
        return _resumed(arguments, options), 0
    if options.preset:
        base = preset(options.preset, options.dataset)
    else:
        base = TrainConfig.for_dataset(options.dataset)
    base = base.for_task(options.task)
    options = _parse(arguments, name, Options(**_fields(base)))
    assert options is not None
    return options.config().check(), options.folds


def parse_planned(kind: type[Planned], arguments: list[str]) -> Planned | None:
    """The options of `jaxgnn plan`, a class with more than those of `jaxgnn train`.

    Returns None if help was asked for, and printed.

    Raises:
        UsageError, ConfigError: options that cannot be.
    """
    arguments, usual = _rewrite(arguments), kind()
    options = parse_options(kind, arguments, "plan", usual, _NOT_PLANNED)
    if options is None:
        return None
    if options.resume is not None:
        raise ConfigError("--resume: expected jaxgnn train with it, got jaxgnn plan")
    _check_of_train("plan", options, usual, ("folds", *_OF_RUNS))
    base = TrainConfig.for_dataset(options.dataset)
    if options.preset:
        base = preset(options.preset, options.dataset)
    own = {name: getattr(kind, name) for name in ("devices", "shard")}
    return parse_options(kind, arguments, "plan", kind(**(_fields(base) | own)))


def names_a_dataset(arguments: list[str]) -> bool:
    """Whether one is given, beside the options."""
    options = _parse(_rewrite(arguments), "info", Options(dataset=""))
    return options is None or bool(options.dataset)


def _resumed(arguments: list[str], options: Options) -> TrainConfig:
    """The settings of the run that is continued."""
    resume = options.resume or options.run_directory
    if resume is None:
        raise ConfigError("--resume: expected the directory of a run, got none")
    if options.run_directory not in (None, resume):
        raise ConfigError(
            f"--run-directory: a run continues in its own directory, got {options.run_directory}"
        )
    if options.preset:
        raise ConfigError(
            f"--preset: a run continues with its own settings, got {options.preset!r}"
        )
    record = read_config(Path(resume))
    saved = record["settings"]
    given = _parse(arguments, "train", Options(**_fields(from_settings(saved))))
    assert given is not None
    config = given.config()
    match record.get("chosen_k"):
        # The command that began the run, with --resume: what auto chose is chosen.
        case {"option": "k" | "head_k" as name} if automatic(config) == name:
            defaults = {"k_epochs": TrainConfig.k_epochs, "k_tolerance": TrainConfig.k_tolerance}
            config = dataclasses.replace(config, **defaults, **{name: saved[name]})
    check_same_settings(saved, config.check())
    return dataclasses.replace(config, resume=resume, run_directory=resume)


def _fields(config: TrainConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}


def _rewrite(arguments: list[str]) -> list[str]:
    """Makes `--dataset X` positional, auto the number that says so, and gives a `--resume`
    without a value an empty one."""
    rewritten: list[str] = []
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else None
        if argument == "--dataset" and following is not None:
            continue
        if argument.startswith("--dataset="):
            argument = argument.partition("=")[2]
        for name, number in _AUTO.items():
            if argument == f"{name}=auto":
                argument = f"{name}={number}"
            elif argument == "auto" and arguments[i - 1 : i] == [name]:
                argument = number
        rewritten.append(argument)
        if argument == "--resume" and (following is None or following.startswith("--")):
            rewritten.append("")
    return rewritten


def _parse(arguments: list[str], name: str, default: Options) -> Options | None:
    return parse_options(Options, arguments, name, default)


def parse_options(
    kind: type[T],
    arguments: list[str],
    name: str,
    default: T | None = None,
    hidden: Collection[str] = (),
) -> T | None:
    """tyro's parse, its errors as a `UsageError` of one line; None after `--help`, which does not
    name the `hidden` options."""
    errors = io.StringIO()
    if {"-h", "--help"} & {*arguments}:
        kind, default = in_paragraphs(kind, default, hidden)
    try:
        with contextlib.redirect_stderr(errors):
            prog, flags = f"jaxgnn {name}", (tyro.conf.FlagCreatePairsOff,)
            if default is None:
                return tyro.cli(kind, prog=prog, args=arguments, config=flags)
            return tyro.cli(kind, prog=prog, args=arguments, default=default, config=flags)
    except SystemExit as stop:
        if not stop.code:
            return None
        message = _plain_message(errors.getvalue())
        raise UsageError(f"{message} (see jaxgnn {name} --help)") from None


# Python's own message for a text that is no number, behind tyro's.
_NO_NUMBER = re.compile(
    r"^Error parsing (\S+): "
    r"(?:(invalid literal for int\(\) with base 10)|could not convert string to float): "
)


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
    joined = " ".join(message).strip().rstrip(".") or "arguments that cannot be parsed"
    return _NO_NUMBER.sub(_expected_number, joined)


def _expected_number(found: re.Match[str]) -> str:
    return f"{found[1]}: expected {'an integer' if found[2] else 'a number'}, got "
