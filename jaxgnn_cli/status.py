"""From what goes wrong to one line and an exit status."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from jaxgnn_cli.interrupts import watch
from jaxgnn_cli.output import OutputClosed, guarded, print_error

_USAGE = """\
usage: jaxgnn COMMAND [OPTIONS]

Graph neural networks for JAX whose aggregation runs in custom kernels (C++ on the CPU, CUDA on
NVIDIA GPUs).

commands:
  train [DATASET]   train a model (the default dataset: handwritten digits)
  info [DATASET]    print what this installation consists of, a graph's statistics, and with the
                    options of train the kernels that a model runs
  evaluate RUN [DATASET]
                    score a trained model; or measure its inference with a part of the edges
  predict RUN [DATASET] --output FILE
                    write a trained model's classes and probabilities, as .csv or .npz; with
                    --pairs the scores of links
  compare RUN...    compare runs: the settings that differ, means over seeds
  export RUN --output DIRECTORY
                    write a trained model as a program that needs no training code
  download NAME     fetch a data set's files, and check them
  partition DATASET OUT
                    split a graph into parts, a folder each
  plan DATASET      estimate memory and time of training over several devices
  embed GRAPH       embed the nodes of a graph file by GraphSAGE over sampled neighbors

options:
  -h, --help        show this help; after a command, its own
  --version         print the version
"""

# The packages of the extra `train`, as they are imported.
_EXTRA = ("matplotlib", "optax", "orbax", "rich", "sklearn", "tyro")

_FAILURE, _USER_ERROR, _INTERRUPTED, _OUTPUT_CLOSED = 1, 2, 130, 141


class UsageError(ValueError):
    """A command line that cannot be."""


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    0; 1 if training diverged, or a disk or memory gave out; 2 for a user's error; 130 if
    interrupted; 141 if who read standard output went away. All but 0 and 141 with one line on
    stderr. A traceback is a bug.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with guarded():
            return _dispatch(arguments)
    except OutputClosed:
        return _OUTPUT_CLOSED  # as a process that died of SIGPIPE, without a message
    except KeyboardInterrupt as stop:
        with watch() as interrupts:
            said = filter(None, [str(stop) or "interrupted", interrupts.advice()])
            print_error("; ".join(said))
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        command = arguments[0] if arguments else ""
        print_error(f"{command} needs {package}: pip install 'jaxgnn[train]'")
        return _USER_ERROR
    except Exception as error:
        status = _status_of(error)
        if status is None:
            raise
        print_error(_message_of(error))
        return status


def _status_of(error: Exception) -> int | None:
    """The exit status for an error that one line explains."""
    if isinstance(error, UsageError):
        return _USER_ERROR
    if isinstance(error, OSError | MemoryError):
        return _FAILURE
    from jaxgnn.data import DataError

    if isinstance(error, DataError):
        return _USER_ERROR
    with contextlib.suppress(ModuleNotFoundError):
        from jaxgnn.train import CheckpointError, ConfigError, DivergenceError, RunError

        if isinstance(error, CheckpointError | ConfigError):
            return _USER_ERROR
        if isinstance(error, DivergenceError | RunError):
            return _FAILURE
    return None


def _message_of(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return reason if error.filename is None else f"{error.filename}: {reason}"
    return str(error)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    command, *rest = arguments
    if command == "--version":
        import jaxgnn

        print(f"jaxgnn {jaxgnn.__version__}")
    elif command == "train":
        from jaxgnn_cli.train import train

        train(rest)
    elif command == "info":
        from jaxgnn_cli.info import info

        info(rest)
    elif command == "evaluate":
        from jaxgnn_cli.evaluate import evaluate

        evaluate(rest)
    elif command == "predict":
        from jaxgnn_cli.predict import predict

        predict(rest)
    elif command == "compare":
        from jaxgnn_cli.compare import compare

        compare(rest)
    elif command == "export":
        from jaxgnn_cli.export import export

        export(rest)
    elif command == "download":
        from jaxgnn_cli.download import download

        download(rest)
    elif command == "partition":
        from jaxgnn_cli.partition import partition

        partition(rest)
    elif command == "plan":
        from jaxgnn_cli.plan import plan

        plan(rest)
    elif command == "embed":
        from jaxgnn_cli.embed import embed

        embed(rest)
    else:
        raise UsageError(
            "expected train, info, evaluate, predict, compare, export, download, partition, plan "
            f"or embed, got {command!r} (see jaxgnn --help)"
        )
    return 0
