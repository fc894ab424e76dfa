"""Reads the pickles of numeric data without running anything that they name.

A pickle is a program: `pickle.load` calls whatever it asks for. Here the opcodes are decoded by
the standard library's `pickletools` and interpreted on plain Python containers. The few globals
that arrays, SciPy's CSR matrices and neighbor lists need become inert records; any other
global, and any opcode without a place in such a pickle, is refused. What is built is charged
before it is built. An object that a pickle uses again and again is charged each time, as it could
otherwise make very many of few bytes. Arrays are checked before NumPy or SciPy see them.
"""

from __future__ import annotations

import dataclasses
import math
import pickletools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from jaxgnn.data.files.checks import check_csr
from jaxgnn.data.files.limits import Budget, DataError, quote

# Old and new homes of one thing: Python 2 and 3, NumPy 1 and 2, SciPy before and after 1.8.
_GLOBALS = {
    "numpy dtype": "dtype",
    "numpy ndarray": "ndarray",
    "numpy.core.multiarray _reconstruct": "reconstruct",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "numpy.core.multiarray scalar": "scalar",
    "numpy._core.multiarray scalar": "scalar",
    "scipy.sparse.csr csr_matrix": "csr",
    "scipy.sparse._csr csr_matrix": "csr",
    "scipy.sparse._csr csr_array": "csr",
    "collections defaultdict": "defaultdict",
    "__builtin__ list": "list",
    "builtins list": "list",
    "__builtin__ dict": "dict",
    "builtins dict": "dict",
    "__builtin__ object": "object",
    "builtins object": "object",
    "copy_reg _reconstructor": "reconstructor",
    "copyreg _reconstructor": "reconstructor",
    "_codecs encode": "encode",
    "__builtin__ bytes": "bytes",
}
_DTYPES = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f2", "f4", "f8", "b1"}
_VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()

# Bytes of Python's objects at most: what an opcode leaves behind, with its places on the stack and
# in the memo, and what an item of a container takes.
_OPCODE_BYTES, _ITEM_BYTES = 256, 48
_OPCODES = 64  # charged at once
_LONGEST_NAME = 256


@dataclasses.dataclass(eq=False)
class _Global:
    """An admitted global; only `_Machine.reduce` gives it a meaning."""

    kind: str


@dataclasses.dataclass(eq=False)
class _Record:
    """A dtype, an array or a matrix under construction."""

    kind: str
    state: Any = None


def loads(data: bytes, budget: Budget | None = None) -> Any:
    """What a pickle holds: Python containers, and records for `as_array` and `as_matrix`.

    Raises:
        DataError: a global or an opcode that is not admitted, a program that makes no sense, or
            more than the budget allows.
    """
    budget = Budget() if budget is None else budget
    # A string is decoded before its size is known, to four bytes a character at most.
    budget.charge(6 * len(data), "the pickle")
    machine = _Machine(budget, len(data))
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count % _OPCODES == 0:
            budget.charge(_OPCODES * _OPCODE_BYTES, "the objects of the pickle")
        if opcode.name == "STOP":
            return machine.pop()
        machine.step(opcode.name, argument)
    raise DataError("the pickle has no end")


def as_array(value: Any, budget: Budget | None = None) -> np.ndarray:
    """The NumPy array that a record describes; copies."""
    if not isinstance(value, _Record) or value.kind != "array" or value.state is None:
        raise DataError(f"expected a pickled NumPy array, got {_kind(value)}")
    _, shape, dtype, fortran, raw = value.state
    dtype = _as_dtype(dtype)
    if budget is not None and isinstance(raw, bytes | str):
        budget.charge(2 * len(raw), "a pickled array")
    raw = _as_bytes(raw)
    if not isinstance(shape, tuple) or len(shape) > 2 or not all(_is_count(n) for n in shape):
        raise DataError(f"expected a pickled array of at most 2 axes, got the shape {quote(shape)}")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise DataError(f"a pickled {dtype}{quote(shape)} with {len(raw)} bytes of values")
    array = np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran is True else "C")
    return array.astype(dtype.newbyteorder("="))


def as_matrix(value: Any, budget: Budget | None = None) -> np.ndarray | scipy.sparse.csr_array:
    """The NumPy array or SciPy CSR matrix that a record describes."""
    budget = Budget() if budget is None else budget
    if not isinstance(value, _Record) or value.kind != "csr":
        return as_array(value, budget)
    state = value.state
    if not isinstance(state, dict):
        raise DataError("a pickled CSR matrix without contents")
    shape = state.get("_shape", state.get("shape"))
    if not isinstance(shape, tuple) or len(shape) != 2:
        raise DataError(f"expected a pickled CSR matrix of 2 axes, got the shape {quote(shape)}")
    rows, columns = (_as_integer(n) for n in shape)
    data, indices, indptr = (
        as_array(state.get(key), budget) for key in ("data", "indices", "indptr")
    )
    return check_csr(data, indices, indptr, (rows, columns), "pickled CSR matrix", budget)


def as_neighbor_lists(
    value: Any, most: int | None = None, budget: Budget | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of each edge of a dict from a node to the list of its neighbors, int64.

    `most` neighbors, all together: a list may stand in the dict many times.
    """
    if not isinstance(value, dict):
        raise DataError(f"expected a pickled dict of neighbor lists, got {_kind(value)}")
    count = 0
    for neighbors in value.values():
        if not isinstance(neighbors, list):
            raise DataError(f"expected a list of neighbors, got {_kind(neighbors)}")
        count += len(neighbors)
    if most is not None and count > most:
        raise DataError(
            f"a pickle of {most} bytes with {count} neighbors, in lists used repeatedly"
        )
    if budget is not None:
        budget.charge(16 * count, f"{count:,} neighbors")
    sources, targets = np.empty(count, np.int64), np.empty(count, np.int64)
    place = 0
    for node, neighbors in value.items():
        end = place + len(neighbors)
        sources[place:end] = _as_integer(node)
        for neighbor in neighbors:
            targets[place] = _as_integer(neighbor)
            place += 1
    return sources, targets


class _Machine:
    """The pickle machine, with a stack, marks and a memo, and no way to call anything."""

    def __init__(self, budget: Budget, size: int) -> None:
        self.budget = budget
        self.uses_left = 4 * size + 1024
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def value(self, argument: Any) -> Any:
        """A number or a text, charged."""
        if isinstance(argument, str | bytes):
            self.budget.charge(sys.getsizeof(argument), "a text of the pickle")
        elif isinstance(argument, int) and argument.bit_length() > 64:
            raise DataError(f"expected integers of at most 64 bits, got {quote(argument)}")
        return argument

    def use(self, value: str | bytes) -> None:
        """Charges a text that is about to be copied."""
        self.uses_left -= len(value)
        if self.uses_left < 0:
            raise DataError("a pickle that uses one text again and again")
        self.budget.charge(2 * len(value), "a text of the pickle")

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise DataError("a pickle that takes a mark for a value")
        return value

    def pop_to_mark(self) -> list[Any]:
        items = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise DataError(f"a pickle that fills a {_kind(self.stack[-1])} as a {kind.__name__}")
        return self.stack[-1]

    def step(self, name: str, argument: Any) -> None:
        """Runs one opcode."""
        if name in _VALUES:
            self.stack.append(self.value(argument))
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            items = [self.pop() for _ in range(_TUPLES[name])]
            self.stack.append(tuple(items[::-1]))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.memo[argument])
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "MARK":
            self.stack.append(_MARK)
        elif name == "EMPTY_LIST":
            self.stack.append([])
        elif name == "EMPTY_DICT":
            self.stack.append({})
        elif name == "TUPLE":
            self.stack.append(tuple(self.pop_to_mark()))
        elif name == "LIST":
            self.stack.append(self.pop_to_mark())
        elif name == "DICT":
            items = self.pop_to_mark()
            self.stack.append({})
            self.set_items(items)
        elif name == "APPEND":
            item = self.pop()
            self.top(list).append(item)
        elif name == "APPENDS":
            items = self.pop_to_mark()
            self.top(list).extend(items)
        elif name == "SETITEM":
            value, key = self.pop(), self.pop()
            self.set_items([key, value])
        elif name == "SETITEMS":
            self.set_items(self.pop_to_mark())
        elif name == "GLOBAL":
            self.push_global(argument)
        elif name == "STACK_GLOBAL":
            attribute, module = self.pop(), self.pop()
            if not isinstance(attribute, str) or not isinstance(module, str):
                raise DataError(f"a pickle that names a {_kind(module)} {_kind(attribute)}")
            self.push_global(f"{module[:_LONGEST_NAME]} {attribute[:_LONGEST_NAME]}")
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = self.pop(), self.pop()
            self.stack.append(_reduce(function, arguments, self.use))
        elif name == "BUILD":
            state = self.pop()
            _build(self.top(_Record), state)
        else:
            raise DataError(f"a pickle with the opcode {name}, which numeric data do not need")

    def set_items(self, items: list[Any]) -> None:
        self.budget.charge(_ITEM_BYTES * len(items), "the objects of the pickle")
        target = self.top(dict)
        if len(items) % 2:
            raise DataError("a pickled dict with a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing nested tuples can take exponential time; node ids and names are enough.
            if isinstance(key, _Record) and key.kind == "number":
                key = key.state
            if not isinstance(key, int | str) or (
                isinstance(key, str) and len(key) > _LONGEST_NAME
            ):
                raise DataError(f"expected pickled dict keys to be int or str, got {_kind(key)}")
            target[key] = value

    def push_global(self, name: str) -> None:
        if name not in _GLOBALS:
            raise DataError(
                f"a pickle that names {quote('.'.join(name.split(' ')))}: only NumPy arrays, "
                "SciPy CSR matrices, dicts and lists are admitted"
            )
        self.stack.append(_Global(_GLOBALS[name]))


def _reduce(function: Any, arguments: Any, use: Callable[[str | bytes], None]) -> Any:
    """What calling an admitted global stands for."""
    kind = function.kind if isinstance(function, _Global) else None
    if not isinstance(arguments, tuple):
        raise DataError("a pickle that calls without a tuple of arguments")
    first = arguments[0] if arguments else None
    named = first.kind if isinstance(first, _Global) else None
    if kind == "dtype" and isinstance(first, str):
        if first not in _DTYPES:
            raise DataError(f"a pickled array of dtype {quote(first)}: expected plain numbers")
        return _Record("dtype", np.dtype(first))
    if kind == "reconstruct" and named == "ndarray":
        return _Record("array")
    if (kind == "csr" and not arguments) or (kind == "reconstructor" and named == "csr"):
        return _Record("csr")
    if kind == "scalar" and len(arguments) == 2:
        if isinstance(arguments[1], str | bytes):
            use(arguments[1])
        dtype, raw = _as_dtype(first), _as_bytes(arguments[1])
        if len(raw) != dtype.itemsize:
            raise DataError(f"a pickled {dtype} of {len(raw)} bytes")
        return _Record("number", np.frombuffer(raw, dtype)[0].item())
    if kind == "defaultdict" and len(arguments) <= 1 and named in ("list", None):
        return {}
    if kind in ("dict", "list", "bytes") and not arguments:
        return {"dict": dict, "list": list, "bytes": bytes}[kind]()
    if kind == "encode" and isinstance(first, str) and len(arguments) == 2:
        encoding = arguments[-1]
        if isinstance(encoding, str) and encoding == "latin1":
            use(first)
            return first.encode("latin1")
    raise DataError(f"a pickle that calls {kind or _kind(function)} in an unexpected way")


def _build(record: _Record, state: Any) -> None:
    """Takes a record's state: of a dtype, only the byte order is anything but fixed."""
    if record.kind == "dtype":
        if (
            not isinstance(state, tuple)
            or not 5 <= len(state) <= 9
            or (any(part is not None for part in state[2:5]))
        ):
            raise DataError("a pickled structured dtype: expected plain numbers")
        if not isinstance(state[1], str) or state[1] not in ("<", ">", "|", "="):
            raise DataError(f"a pickled dtype of byte order {quote(state[1])}")
        record.state = record.state.newbyteorder(state[1])
    elif record.kind == "array":
        if not isinstance(state, tuple) or len(state) != 5:
            raise DataError("a pickled array in an unknown format")
        record.state = state
    elif record.kind == "csr" and isinstance(state, dict):
        record.state = state
    else:
        raise DataError(f"a pickle that sets the state of a {record.kind} in an unexpected way")


def _as_dtype(value: Any) -> np.dtype:
    if not isinstance(value, _Record) or value.kind != "dtype":
        raise DataError(f"expected a pickled dtype, got {_kind(value)}")
    return value.state


def _as_bytes(value: Any) -> bytes:
    """Raw values; Python 2's byte strings are decoded as latin-1."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("latin1")
    raise DataError(f"expected the bytes of a pickled array, got {_kind(value)}")


def _as_integer(value: Any) -> int:
    if isinstance(value, _Record) and value.kind == "number":
        value = value.state
    if not isinstance(value, int) or isinstance(value, bool):
        raise DataError(f"expected an integer, got {_kind(value)}")
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _kind(value: Any) -> str:
    return value.kind if isinstance(value, _Record | _Global) else type(value).__name__
