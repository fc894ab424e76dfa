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


def options_named(text: str) -> set[tuple[str, str]]:
    """Commands and options of them in code: in a line of a block, or between back quotes."""
    text = re.sub(r"\\\n\s*", " ", text)
    calls = re.findall(
        r"`jaxgnn (\w+)([^`]*)`|^(?:\w+ |\w+=\S+ )*jaxgnn (\w+)([^#\n]*)", text, re.M
    )
    return {
        (inline or line, option)
        for inline, rest, line, words in calls
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest + words)
    }


def test_options_of_the_pages_exist():
    commands = script()
    page = commands.PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## jaxgnn (\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    known = {name: set(re.findall(r"--[a-z][\w-]*", text)) for name, text in sections.items()}
    known["info"] |= known["train"]
    assert ("train", "--k") in options_named("`jaxgnn train\nX --k 8`")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages if path != commands.PAGE)
    named = options_named(text)
    assert len(named) > 50
    assert sorted(pair for pair in named if pair[1] not in known.get(pair[0], ())) == []
