"""Every public name has one entry in the reference, and a docstring for it to show."""

import importlib
import inspect
import re
from collections import Counter
from types import ModuleType
from typing import Any

import jaxgnn
from tests.support.paths import ROOT

# Names are public where a module lists them, else where it defines them without an underscore. An
# object has its entry under the first module that has it.
MODULES = (
    *("", "nn", "transform", "batch", "algebra", "tiles", "metrics"),
    *("data", "distributed", "train", "export", "config", "ops"),
)
ENTRY = re.compile(r"^\.\. (?:auto\w+|py:data|py:module):: (\S+)", re.M)
OPERATIONS = re.compile(r"jaxgnn\.ops\.")
SHAPE = re.compile(r"\w\[(Array|ArrayLike), |-> '?(Blocks|NegativeEdges)\b")


def public_names() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for short in MODULES:
        if short == "ops":
            module: ModuleType = importlib.import_module("jaxgnn.ops")
        else:
            module = getattr(jaxgnn, short) if short else jaxgnn
        names = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        prefix = f"jaxgnn.{short}." if short else "jaxgnn."
        for name in names:
            value = getattr(module, name)
            if not any(value is other for other in found.values()):
                found[prefix + name] = value
    return found


def entries(folder=ROOT / "docs" / "api") -> Counter[str]:
    pages = sorted(folder.glob("*.md"))
    return Counter(name for page in pages for name in ENTRY.findall(page.read_text("utf-8")))


def problems(names: dict[str, Any], found: Counter[str]) -> list[str]:
    missing = [f"{name}: expected an entry on a page of docs/api, got none" for name in names]
    return [text for text in missing if text.split(":")[0] not in found] + [
        f"{name}: expected one entry, got {count}"
        if name in names
        else f"{name}: is in docs/api, but not public"
        for name, count in found.items()
        if count > 1 or name not in names
    ]


def test_every_public_name_is_in_the_reference_once():
    assert problems(public_names(), entries()) == []


def test_what_is_missing_or_twice_is_named():
    names, found = public_names(), entries()
    found.subtract(["jaxgnn.spmm"])
    changed = +found + Counter(["jaxgnn.nn.GCN", "jaxgnn.nothing"])
    assert [text.split(":")[0] for text in problems(names, changed)] == [
        "jaxgnn.spmm",
        "jaxgnn.nn.GCN",
        "jaxgnn.nothing",
    ]


def test_entries_have_docstrings():
    names = public_names()
    own = {name: value for name, value in names.items() if inspect.isroutine(value)}
    own |= {name: value for name, value in names.items() if inspect.isclass(value)}
    assert [name for name, value in own.items() if not inspect.getdoc(value)] == []
    # Operations say what they raise, and their signatures the shapes.
    operations = [value for value in own.values() if OPERATIONS.match(value.__module__)]
    operations = [value for value in operations if inspect.isfunction(value)]
    assert len(operations) > 15
    without = [value.__name__ for value in operations if "Raises:" not in inspect.getdoc(value)]
    assert without == []
    signatures = {value.__name__: str(inspect.signature(value)) for value in operations}
    assert [name for name, text in signatures.items() if not SHAPE.search(text)] == []


def test_modules_of_the_package_are_looked_at():
    folders = {path.stem for path in (ROOT / "jaxgnn").iterdir() if not path.stem.startswith("_")}
    assert {name for name in folders if name in jaxgnn.__all__} <= set(MODULES)
    listed = {name for name in jaxgnn.__all__ if inspect.ismodule(getattr(jaxgnn, name))}
    assert listed <= set(MODULES)
