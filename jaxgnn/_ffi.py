"""Loads the compiled modules, registers their XLA FFI targets, and calls them."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

Impl = Literal["kernel", "jax"] | None


@dataclasses.dataclass(frozen=True)
class BuildInfo:
    """What this installation consists of; see `jaxgnn.build_info`.

    Attributes:
        cpu: whether the CPU kernels are loaded.
        cpu_error: why not.
        cpu_isa: the instruction set that the CPU kernels chose.
        cuda: whether the CUDA kernels are loaded.
        cuda_error: why not.
        cuda_architectures: the GPU architectures they were compiled for.
        jax, jaxlib: versions.
    """

    cpu: bool
    cpu_error: str | None
    cpu_isa: str | None
    cuda: bool
    cuda_error: str | None
    cuda_architectures: str | None
    jax: str
    jaxlib: str


def _load(name: str, platform: str) -> tuple[ModuleType | None, str | None]:
    """Imports a compiled module and registers its targets, or says why it is not there."""
    try:
        module = importlib.import_module(f"jaxgnn.{name}")
    except ImportError as error:
        return None, str(error)
    for target, handler in module.registrations().items():
        jax.ffi.register_ffi_target(target, handler, platform=platform)
        _targets[platform].add(target)
    return module, None


_targets: dict[str, set[str]] = {"cpu": set(), "CUDA": set()}
cpu_module, _cpu_error = _load("_cpu", "cpu")
cuda_module, _cuda_error = _load("_cuda", "CUDA")


def build_info() -> BuildInfo:
    """The build: which kernel modules are loaded, why one is not, versions."""
    return BuildInfo(
        cpu=cpu_module is not None,
        cpu_error=_cpu_error,
        cpu_isa=None if cpu_module is None else cpu_module.isa(),
        cuda=cuda_module is not None,
        cuda_error=_cuda_error,
        cuda_architectures=None if cuda_module is None else cuda_module.architectures(),
        jax=jax.__version__,
        jaxlib=importlib.metadata.version("jaxlib"),
    )


def kernels_available(*targets: str) -> bool:
    """Whether the platform that JAX computes on by default has our kernels, `targets` among them.

    Decided when a function is traced: XLA then picks the target registered for the platform
    that it compiles for. A GPU without the CUDA module, and a TPU, run the JAX reference.
    """
    platform = jax.default_backend()
    if platform == "cpu":
        return cpu_module is not None and _targets["cpu"].issuperset(targets)
    if platform in ("gpu", "cuda"):
        loaded = cuda_module is not None and cpu_module is not None
        return loaded and _targets["CUDA"].issuperset(targets)
    return False


def use_kernel(impl: Impl, *targets: str) -> bool:
    """Resolves an operation's `impl` argument; `targets` are those that it is going to call.

    Raises:
        ValueError: not one of `None`, `"kernel"`, `"jax"`.
        RuntimeError: `"kernel"` where this platform has none.
    """
    if impl is None:
        return kernels_available(*targets)
    if impl == "jax":
        return False
    if impl != "kernel":
        raise ValueError(f"impl: expected None, 'kernel' or 'jax', got {impl!r}")
    if not kernels_available(*targets):
        raise RuntimeError(
            f"impl='kernel': jaxgnn has no kernels for the platform {jax.default_backend()!r} "
            f"(_cpu: {_cpu_error or 'loaded'}; _cuda: {_cuda_error or 'loaded'})"
        )
    return True


def unify_varying(*trees: Any) -> Any:
    """Casts all arrays to the manual mesh axes that any of them varies over.

    Inside `shard_map(check_vma=True)` every operand of a custom call, and its result, must vary
    over the same axes; the cast's own transpose is the sum that a replicated operand's gradient
    needs, so it belongs before the `custom_vjp`. Outside `shard_map` this does nothing.
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


def call(
    target: str,
    operands: Sequence[Array],
    results: Sequence[tuple[tuple[int, ...], DTypeLike]],
    **attributes: int | float,
) -> list[Array]:
    """Calls an FFI target, its results varying over the operands' manual mesh axes.

    Args:
        target: the registered name.
        operands: arrays, already of the shapes and dtypes that the target takes.
        results: shape and dtype of each result.
        attributes: numbers; integers reach C++ as int64, floats as double.
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
        name: np.float64(value) if isinstance(value, float) else np.int64(value)
        for name, value in attributes.items()
    }
    outputs = jax.ffi.ffi_call(target, types)(*operands, **typed)
    return list(outputs)


def accumulation_dtype(dtype: DTypeLike) -> np.dtype:
    """float64 for float64, else float32."""
    return np.dtype(np.float64 if jnp.dtype(dtype) == jnp.float64 else np.float32)
