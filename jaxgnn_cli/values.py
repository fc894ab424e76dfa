"""Values of options that are more than a type says: ranges, and lists such as 10,25."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxgnn_cli.status import UsageError


def integers(text: str, name: str, least: int, most: int) -> list[int]:
    """The numbers of a list such as 10,25."""
    numbers = []
    for part in text.split(","):
        sign, digits = ("-", part[1:]) if part[:1] == "-" else ("", part)
        known = digits.isascii() and digits.isdigit() and len(digits) < 12
        if not known or not least <= int(sign + digits) <= most:
            raise UsageError(f"{name}: expected integers from {least} to {most}, got {text!r}")
        numbers.append(int(sign + digits))
    return numbers


def shares(text: str, name: str) -> list[float]:
    """The numbers, from 0 to less than 1, of a list such as 0.2,0.4."""
    numbers = []
    for part in text.split(","):
        known = re.fullmatch(r"[0-9]{0,9}\.?[0-9]{0,20}", part) and part not in ("", ".")
        # As `InferenceSample` has it: a share of twelve decimals is kept.
        if not known or not round(1 - float(part), 12) > 0:
            raise UsageError(f"{name}: expected numbers from 0 to less than 1, got {text!r}")
        numbers.append(float(part))
    return numbers


def choices(text: str, name: str, known: Sequence[str]) -> list[str]:
    """The words of a list such as bucket,stride."""
    words = text.split(",")
    for word in words:
        if word not in known:
            raise UsageError(f"{name}: expected some of {', '.join(known)}, got {text!r}")
    return words


def check_between(value: int, field: str, least: int, most: int) -> None:
    """That the integer of an option's field is in its range."""
    if not least <= value <= most:
        name = "--" + field.replace("_", "-")
        raise UsageError(f"{name}: expected an integer from {least} to {most}, got {value}")
