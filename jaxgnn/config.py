"""Settings of the whole library, honoured under `jax.jit`.

| setting | values | environment at import | meaning |
| --- | --- | --- | --- |
| `check_graphs` | `False` (default), `True` | `JAXGNN_CHECK_GRAPHS=0`, `1` | every operation checks that its graph's arrays fit each other, and raises an error where they do not: for a graph altered by other means than ours; of a `CBSR`, that its columns ascend below the width. Costs a pass over the edges |
| `deterministic` | `False` (default), `True` | `JAXGNN_DETERMINISTIC=0`, `1` | every operation gives the same bits in every run |
| `impl` | `None` (default), `"kernel"`, `"jax"` | `JAXGNN_IMPL=kernel`, `jax` | what runs where an operation's `impl` is not given: our kernel if the platform has one, our kernel or an error, the JAX reference |
| `maxk_accumulation` | `"auto"` (default), `"float"` | `JAXGNN_MAXK_ACCUMULATION` | how `maxk_spmm` adds on a GPU: `"auto"` also in fixed point, where a bound on the sums holds; `"float"` in floating point alone |
| `maxk_engine` | `"auto"` (default), `"rows"`, `"windows"`, `"dense"` | `JAXGNN_MAXK_ENGINE` | what `maxk_spmm` and its gradient run on a GPU: the fastest by estimate; the graph's rows; its windows, where it has them; `spmm` of the dense rows |

On the CPU every operation is deterministic anyway. A setting is part of the key under which
`jax.jit` stores what it compiled, so changing one traces again; what was traced before is kept
for when the setting comes back.

    jaxgnn.config.update("deterministic", True)     # for all threads, from now on
    with jaxgnn.config.use(deterministic=True):     # for this thread, in the block
        ...
    with jaxgnn.config.use(impl="jax"):             # every operation and module by its reference
        ...
    jaxgnn.config.deterministic                     # what holds here
"""  # noqa: E501

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax

check_graphs: bool
deterministic: bool
impl: Literal["kernel", "jax"] | None
maxk_accumulation: Literal["auto", "float"]
maxk_engine: Literal["auto", "rows", "windows", "dense"]


class _Setting(NamedTuple):
    """One setting: its values by their spelling in the environment, and its place in jit's key."""

    values: dict[str, Any]
    context: Any


def _from_environment(name: str, values: dict[str, Any], default: Any) -> _Setting:
    variable = f"JAXGNN_{name.upper()}"
    given = os.environ.get(variable, "")
    if given and given not in values:
        raise ValueError(f"{variable}: expected one of {', '.join(values)}, got {given!r}")
    return _Setting(values, jax.make_user_context(values.get(given, default)))


_SETTINGS = {
    "deterministic": _from_environment("deterministic", {"0": False, "1": True}, False),
    "impl": _from_environment("impl", {"kernel": "kernel", "jax": "jax", "": None}, None),
    "maxk_accumulation": _from_environment(
        "maxk_accumulation", {"auto": "auto", "float": "float"}, "auto"
    ),
    "maxk_engine": _from_environment(
        "maxk_engine", {name: name for name in ("auto", "rows", "windows", "dense")}, "auto"
    ),
    "check_graphs": _from_environment("check_graphs", {"0": False, "1": True}, False),
}


def _checked(name: str, value: Any) -> _Setting:
    if not isinstance(name, str) or name not in _SETTINGS:
        raise AttributeError(f"jaxgnn.config: expected one of {', '.join(_SETTINGS)}, got {name!r}")
    allowed = _SETTINGS[name].values.values()
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        options = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"jaxgnn.config.{name}: expected one of {options}, got {value!r}")
    return _SETTINGS[name]


def update(name: str, value: Any) -> None:
    """Sets a setting for all threads, except where one is inside `use`.

    Raises:
        AttributeError: there is no such setting.
        ValueError: it does not take this value.
    """
    _checked(name, value).context.set_global(value)


@contextlib.contextmanager
def use(**settings: Any) -> Iterator[None]:
    """Sets settings for this thread until the `with` block ends; raises as `update` does."""
    contexts = [_checked(name, value).context(value) for name, value in settings.items()]
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def pinned(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the settings that hold now, whenever it is called: JAX traces some functions
    only when a program is transposed or lowered."""
    settings = {name: setting.context.value for name, setting in _SETTINGS.items()}

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        with use(**settings):
            return function(*arguments)

    return run


class _Module(types.ModuleType):
    """Reads and assignments of a setting's name reach the setting."""

    def __getattr__(self, name: str) -> Any:
        if name in _SETTINGS:
            return _SETTINGS[name].context.value
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or name.startswith("_"):
            super().__setattr__(name, value)
        else:
            update(name, value)


sys.modules[__name__].__class__ = _Module
