"""What the first lines of an edge list say of the others: the delimiter, a header, names."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxgnn.data.files.limits import DataError, quote

_DELIMITERS = "\t,;|"
_LARGEST_ID = 2**31 - 2
_WORDS = "source src sender from head fromnodeid source_id u node1 id1"
_WORDS += " target dst receiver to tail tonodeid target_id v node2 id2"
_HEADERS = frozenset(_WORDS.split())


class EdgeListFormat(NamedTuple):
    """How the lines are read."""

    delimiter: str  # "\0": blanks or a comma, as the parser takes it
    names: bool
    skip_lines: int


def check_delimiter(delimiter: Any, comments: Any) -> None:
    """Refuses what is no single character, and comments that are no text."""
    one = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()
    if delimiter is not None and (not one or delimiter in "\r\n\0"):
        raise DataError(f"delimiter: expected one ASCII character, got {quote(delimiter)}")
    if not isinstance(comments, str) or not comments.isascii():
        raise DataError(f"comments: expected ASCII characters, got {quote(comments)}")


def edge_list_format(
    head: bytes,
    delimiter: str | None,
    comments: str,
    skip_lines: int | None,
    names: bool | None = None,
) -> EdgeListFormat:
    """The format by the first bytes of a file; what is given stays.

    Raises:
        DataError: it begins as a table of nodes.
    """
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(head.decode("utf-8-sig", "replace").split("\n"), 1):
        line = line.strip()
        if number > (skip_lines or 0) and line and line[0] not in comments:
            lines.append((number, line))
        if len(lines) == 2:
            break
    if not lines:
        return EdgeListFormat(delimiter or "\0", bool(names), skip_lines or 0)
    chosen = delimiter or next((c for c in _DELIMITERS if c in lines[0][1]), "\0")
    rows = [_ends(line, chosen) for _, line in lines]
    skipped, first = skip_lines or 0, rows[0]
    words = not any(map(_is_number, first))
    if skip_lines is None and words:
        _check_header(lines[0][0], first)
    known = {end.strip('"').lower() for end in first} <= _HEADERS
    if skip_lines is None and words and (known or (len(rows) == 2 and all(map(_is_id, rows[1])))):
        skipped, first = lines[0][0], rows[-1]
    if names is None:
        # A number that is no id, such as a negative one, is an error and no name.
        names = bool(first) and not all(map(_is_number, first))
        names |= bool(first) and all(end.isdigit() for end in first) and not all(map(_is_id, first))
    # Blanks or a comma, whichever, where the ids are numbers: "1, 2" is an edge too.
    default = delimiter is None and not names and chosen in "\t,"
    return EdgeListFormat("\0" if default else " " if chosen == "\0" else chosen, names, skipped)


def _check_header(number: int, ends: list[str]) -> None:
    for end in ends:
        if end.strip('"').lower() == "id":
            raise DataError(
                f"line {number}: expected sender and receiver first, got the column {quote(end)}: "
                "a table of nodes is read with its edges: give the directory with nodes.csv and "
                "edges.csv"
            )


def _ends(line: str, delimiter: str) -> list[str]:
    blanks = delimiter in "\0 "
    return [end.strip() for end in (line.split() if blanks else line.split(delimiter))[:2]]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.lower().lstrip("+-") not in ("nan", "inf", "infinity")


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _LARGEST_ID
