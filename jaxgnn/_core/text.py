"""Text of unknown content, made safe to print on one line."""

from __future__ import annotations


def printable(text: object, length: int | None = None) -> str:
    r"""`text` with everything that a terminal would not show as it is escaped.

    Control characters become `\x1b`, line breaks `\n`, and the bytes of a path that is no UTF-8
    (which Python holds as lone surrogates) `\xff`.

    Args:
        text: anything that `str` takes.
        length: the number of characters in the result at most; the middle of more is left out.
    """
    text = str(text)
    if length is None:
        return _escape(text)
    # Both ends suffice, however long the text is.
    left, right = text[:length], text[-length:]
    escaped = _escape(left)
    if len(text) <= length and len(escaped) <= length:
        return escaped
    head = length * 2 // 3
    return f"{escaped[:head]}...{_escape(right)[head + 3 - length :]}"


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape_character(c) for c in text)


def _escape_character(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
