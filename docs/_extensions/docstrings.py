"""Docstrings are Markdown in Google's sections; autodoc reads reStructuredText: this converts."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|py:\w+|c?data):: (jaxgnn[\w.]*)", re.M)
_DISPLAY = re.compile(r"^( *)\$\$(.+?)\$\$", re.M | re.S)
_INLINE = re.compile(r"(?<![:`])`(?P<code>[^`]+)`(?!`)|\$(?P<math>[^$`]+?)\$")


@functools.cache
def _documented(folder: str) -> dict[str, str]:
    """The names with an entry in the reference, also by their last parts where those are unique."""
    found: dict[str, str] = {}
    names = [
        name
        for page in sorted(Path(folder).glob("*.md"))
        for name in _DIRECTIVE.findall(page.read_text(encoding="utf-8"))
    ]
    for name in names:
        parts = name.split(".")
        for start in range(len(parts)):
            short = ".".join(parts[start:])
            found[short] = "" if short in found and found[short] != name else name
    # `jaxgnn.x` is what a bare `x` means where modules share the name.
    found.update({name.removeprefix("jaxgnn."): name for name in names if name.count(".") == 1})
    return found


def _display(match: re.Match[str]) -> str:
    indent = match[1]
    lines = [f"{indent}   {line.strip()}" for line in match[2].strip().splitlines()]
    return "\n".join(["", f"{indent}.. math::", "", *lines, ""])


def _table(rows: list[str]) -> list[str]:
    cells = [
        [cell.strip() for cell in row.strip().strip("|").split("|")]
        for row in rows
        if "---" not in row
    ]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in cells:
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
    return ["", *lines, ""]


def _blocks(lines: list[str]) -> list[str]:
    """Tables, code (indented after a blank line) and lists, with the lines that separate them."""
    out: list[str] = []
    table: list[str] = []
    last = ""  # the last line that is not blank
    for line in lines:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            out += _table(table)
            table = []
        before = out[-1] if out else ""
        indented = len(line) - len(line.lstrip())
        begins = line.strip() and not before.strip()
        if begins and indented >= 4 and last and not last.startswith((" ", "- ", "..")):
            out += ["::", ""]
        item = line.lstrip().startswith("- ")
        follows_text = before.strip() and not before.lstrip().startswith("- ")
        if item and follows_text and len(before) - len(before.lstrip()) == indented:
            out.append("")
        out.append(line)
        last = line if line.strip() else last
    return out + (_table(table) if table else [])


def converted(text: str, names: dict[str, str]) -> str:
    def inline(match: re.Match[str]) -> str:
        if match["math"]:
            role = f":math:`{match['math'].strip()}`"
        else:
            code = " ".join(match["code"].split())
            target = names.get(code, "")
            role = f":py:obj:`{code} <{target}>`" if target else f"``{code}``"
        before = match.string[max(match.start() - 1, 0) : match.start()]
        after = match.string[match.end() : match.end() + 1]
        start = "\\ " if before and not (before.isspace() or before in "([{-/'\"") else ""
        return start + role + ("\\ " if after and (after.isalnum() or after in "_`$") else "")

    lines = "\n".join(_blocks(_DISPLAY.sub(_display, text).splitlines())).splitlines()
    # Code blocks stay as they are: from `::` to the next line that is not indented.
    out, block, is_code = [], [], False

    def close() -> None:
        joined = "\n".join(block)
        out.append(joined if is_code else _INLINE.sub(inline, joined))
        block.clear()

    for line in lines:
        starts = line == "::" or line.lstrip().startswith(".. math::")
        if starts or (is_code and line.strip() and not line.startswith(" ")):
            close()
            is_code = starts
        elif is_code and "math" in (block[0] if block else "") and line.strip():
            depth = len(block[0]) - len(block[0].lstrip())
            if len(line) - len(line.lstrip()) <= depth:
                close()
                is_code = False
        block.append(line)
    close()
    return "\n".join(out)


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    names = _documented(str(Path(app.srcdir) / "api"))
    lines[:] = converted("\n".join(lines), names).splitlines()
    if lines and lines[-1]:
        lines.append("")


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Fields of named tuples are in their classes' docstrings."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field") else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process, priority=100)  # before napoleon
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
