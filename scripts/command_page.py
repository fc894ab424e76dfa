"""Writes docs/commands.md from what each command prints for `--help`.

    python scripts/command_page.py

`tests/docs/test_commands.py` fails where the page and the commands differ.
"""

from __future__ import annotations

import contextlib
import io
import os
import textwrap
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
COMMANDS = (
    *("train", "info", "evaluate", "predict", "compare", "export"),
    *("download", "partition", "plan", "embed"),
)
_WIDTH = 100
_HEAD = """\
# Command line

What `jaxgnn` and each of its commands print for `--help`. What to do with them is on the pages of
[training](training.md) and [trained models](serving.md). It is also `python -m jaxgnn`.
"""


def help_of(command: str | None) -> str:
    """What `jaxgnn COMMAND --help`, or `jaxgnn --help`, prints."""
    from jaxgnn_cli import main

    # The width of the terminal: tyro and rich ask for it by these.
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=str(_WIDTH), NO_COLOR="1")
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            status = main(["--help"] if command is None else [command, "--help"])
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    if status:
        raise RuntimeError(f"{command}: expected the status 0 of --help, got {status}")
    lines: list[str] = []
    for line in out.getvalue().splitlines():  # paragraphs are one line each, for the terminal
        lines += textwrap.wrap(line, _WIDTH) if len(line) > _WIDTH else [line.rstrip()]
    return "\n".join(lines).strip()


def page() -> str:
    """The page's text."""
    sections = [_HEAD]
    for command in (None, *COMMANDS):
        title = f"jaxgnn {command}" if command else "jaxgnn"
        sections.append(f"## {title}\n\n```text\n{help_of(command)}\n```\n")
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
