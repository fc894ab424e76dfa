"""The command `jaxgnn`: a package beside `jaxgnn`, so that it starts before JAX is imported.

Nothing here is imported by the library. Ctrl-C is handled from the first line on
(`jaxgnn_cli.interrupts`); `jaxgnn_cli.status` turns what goes wrong into one line and an exit
status.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; see `jaxgnn_cli.status.run_command`."""
    from jaxgnn_cli.interrupts import watch

    with watch():
        from jaxgnn_cli.status import run_command

        return run_command(arguments)


def process() -> None:
    """The entry point of a process, which ends with the command's exit status."""
    import os

    from jaxgnn_cli.interrupts import watch

    with watch():
        status = main()
        # Not by the interpreter's shutdown, in which Ctrl-C would print a traceback.
        os._exit(status)
