"""The texts of `--help`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Collection
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

T = TypeVar("T")


def in_paragraphs(
    kind: type[T], default: T | None, hidden: Collection[str] = ()
) -> tuple[type[T], T | None]:
    """The class of options and its default, with the text of each option as paragraphs that the
    terminal wraps, and without the `hidden` ones.

    tyro (1.0) keeps the line ends of texts that are indented, as those of attributes are.
    """
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= _texts(base)
    hints = get_type_hints(kind, include_extras=True)
    fields = []
    for field in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        hint = Annotated[hints[field.name], tyro.conf.arg(help=texts.get(field.name))]
        if field.name in hidden:
            hint = tyro.conf.Suppress[hint]
        fields.append((field.name, hint, _default(field)))
    made: Any = dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True)
    made.__doc__ = kind.__doc__
    if default is None:
        return made, None
    return made, made(**{name: getattr(default, name) for name, *_ in fields})


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
