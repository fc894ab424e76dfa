"""Loads the compiled modules, registers their XLA FFI targets, and calls them."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxgnn._core.version import VERSION


def _import(platform: str) -> ModuleType:
    """A platform's compiled module: this package's own, else that of the wheel with CUDA's.

    Raises:
        ImportError: there is none, it does not load, or it is of another version.
    """
    own = f"jaxgnn._{platform}"
    try:
        return importlib.import_module(own)
    except ModuleNotFoundError as error:
        if platform != "cuda" or error.name != own:
            raise
    # As JAX's plugins, beside the package and of its version.
    try:
        plugin = importlib.import_module(_PLUGIN)
    except ModuleNotFoundError as error:
        if error.name != _PLUGIN:
            raise
        raise ImportError(f"No module named {own!r} or {_PLUGIN!r}") from None
    if plugin.__version__ != VERSION:
        name = _PLUGIN.replace("_", "-")
        problem = f"{name}: expected version {VERSION}, as jaxgnn, got {plugin.__version__}"
        advice = f"pip install {name}=={VERSION}"
        warnings.warn(f"{problem}; GPUs run the JAX reference: {advice}", RuntimeWarning, 2)
        raise ImportError(f"{problem}: {advice}")
    return importlib.import_module(f"{_PLUGIN}._{platform}")


def _load(platform: str) -> tuple[ModuleType | None, str | None]:
    """Imports a platform's compiled module and registers its targets, or says why it is missing."""
    try:
        module = _import(platform)
    except ImportError as error:
        return None, str(error)
    for target, handler in module.registrations().items():
        jax.ffi.register_ffi_target(target, handler, platform=_XLA_NAMES[platform])
        targets[platform].add(target)
    return module, None


_PLUGIN = "jaxgnn_cuda13"
_XLA_NAMES = {"cpu": "cpu", "cuda": "CUDA"}
# By the platform's name in lowering.
targets: dict[str, set[str]] = {platform: set() for platform in _XLA_NAMES}
cpu_module, cpu_error = _load("cpu")
cuda_module, cuda_error = _load("cuda")


def host_module(what: str) -> ModuleType:
    """The compiled CPU module, whose host functions `what` needs.

    Raises:
        RuntimeError: it is missing.
    """
    if cpu_module is None:
        raise RuntimeError(f"{what}: needs the compiled module jaxgnn._cpu ({cpu_error})")
    return cpu_module


def unify_varying(*trees: Any) -> Any:
    """Casts all arrays to the manual mesh axes that any of them varies over.

    Inside `shard_map(check_vma=True)` every operand of a custom call, and its result, must vary
    over the same axes; the cast's own transpose is the sum that a replicated operand's gradient
    needs, so it belongs before the derivative rule. Outside `shard_map` this does nothing.
    """

    def axes(array: Array) -> frozenset:
        return jax.typeof(array).manual_axis_type.varying

    varying = frozenset().union(*map(axes, jax.tree.leaves(trees)))

    def cast(array: Array) -> Array:
        missing = tuple(sorted(varying - axes(array)))
        return jax.lax.pcast(array, missing, to="varying") if missing else array

    return jax.tree.map(cast, trees) if varying else trees


def zeros(shape: tuple[int, ...], dtype: DTypeLike, *trees: Any) -> Array:
    """The result of an operation that has nothing to compute: it varies as that of a call would.

    `trees` are the operation's operands.
    """
    return unify_varying(jnp.zeros(shape, dtype), *trees)[0]


def zeros_like(array: Array) -> Array:
    """Zeros of the array's type, which vary as it does."""
    return zeros(array.shape, array.dtype, array)


def call(
    target: str,
    operands: Sequence[Array],
    results: Sequence[tuple[tuple[int, ...], DTypeLike]],
    aliases: Mapping[int, int] | None = None,
    /,
    **attributes: int | float | Sequence[int],
) -> list[Array]:
    """Calls an FFI target, its results varying over the operands' manual mesh axes.

    Args:
        target: the registered name.
        operands: arrays, already of the shapes and dtypes that the target takes.
        results: shape and dtype of each result.
        aliases: numbers of operands, of which a result is the same memory, and of these results.
        attributes: numbers; integers, also in sequences, reach C++ as int64, floats as double.
    """
    operands = unify_varying(*operands)
    aval = jax.typeof(operands[0])

    def result_type(shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        if aval.manual_axis_type.varying:
            # Derived from an operand's type: a bare ShapeDtypeStruct would be taken for
            # replicated, which inside shard_map is silently wrong.
            return aval.update(shape=shape, dtype=np.dtype(dtype), weak_type=False)
        return jax.ShapeDtypeStruct(shape, np.dtype(dtype))

    types = [result_type(shape, dtype) for shape, dtype in results]
    typed = {
        name: np.asarray(value, np.float64 if isinstance(value, float) else np.int64)[()]
        for name, value in attributes.items()
    }
    ffi_call = jax.ffi.ffi_call(target, types, input_output_aliases=dict(aliases or {}))
    outputs = ffi_call(*operands, **typed)
    return list(outputs)
