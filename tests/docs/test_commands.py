"""The page of the command line is what the commands print for `--help`."""

import importlib.util
import re

from jaxgnn_cli import status
from tests.support.paths import ROOT

# Words alone: where lines break and how boxes are drawn is tyro's.
LAYOUT = re.compile(r"[─-╿]|\s+")


def script():
    spec = importlib.util.spec_from_file_location(
        "command_page", ROOT / "scripts" / "command_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(text: str) -> list[str]:
    return [word for word in LAYOUT.sub(" ", text).split() if word.strip("-+|=")]


def test_the_page_is_what_the_commands_print():
    commands = script()
    expected, found = words(commands.page()), words(commands.PAGE.read_text(encoding="utf-8"))
    different = [pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]]
    advice = "run python scripts/command_page.py"
    assert not different and len(expected) == len(found), f"{different[:1]}: {advice}"


def test_the_page_has_every_command():
    listed = re.findall(r"^  (\w+)(?: |$)", status._USAGE.split("options:")[0], re.M)
    assert tuple(listed) == script().COMMANDS
