"""The texts of `--help`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

T = TypeVar("T")


def in_paragraphs(kind: type[T], default: T | None) -> tuple[type[T], T | None]:
    """The class of options and its default, with the text of each option as paragraphs that the
    terminal wraps.

    tyro (1.0) keeps the line ends of texts that are indented, as those of attributes are.
    """
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= _texts(base)
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        (field.name, Annotated[hints[field.name], _help(texts.get(field.name))], _default(field))
        for field in dataclasses.fields(kind)  # pyright: ignore[reportArgumentType]
    ]
    made: Any = dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True)
    made.__doc__ = kind.__doc__
    if default is None:
        return made, None
    return made, made(**{name: getattr(default, name) for name, *_ in fields})


def _help(text: str | None) -> Any:
    return tyro.conf.arg(help=text)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return dataclasses.field(default=field.default)
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory)
    return dataclasses.field()


def _texts(kind: type) -> dict[str, str]:
    """By the names of a class's attributes, the strings below them, without their line ends."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for above, below in zip(definition.body, definition.body[1:], strict=False):
        match above, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                parts = re.split(r"\n\s*\n", text)
                found[name] = "\n\n".join(" ".join(part.split()) for part in parts)
    return found
