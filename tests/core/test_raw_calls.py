"""Every FFI target called raw, with operands, results and attributes that do not fit: an error each
time, or a valid call, but never a crash. The calls are made in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jaxgnn._core import ffi
from tests.support.paths import ROOT
from tests.support.processes import PACKAGES
from tests.support.raw_calls import (
    BOOLEANS,
    CALLS,
    CPU_CALLS,
    CUDA_CALLS,
    F32,
    I32,
    U8,
    Call,
    Graph,
)
from tests.support.raw_calls.common import COLUMNS, HEADS, ROWS

PARTS = 6


def resized(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Cut, or padded with zeros."""
    cut = np.take(array, np.arange(min(size, array.shape[axis])), axis)
    missing = [(0, size - cut.shape[axis] if i == axis else 0) for i in range(array.ndim)]
    return np.pad(cut, missing)


def other_dtypes(dtype: Any) -> list[Any]:
    return [t for t in (F32, np.float16, I32, U8) if t != dtype]


def mutations(call: Call) -> Iterator[tuple[str, bool, Call]]:
    """What was changed, whether the call may be valid nevertheless, and the call."""

    def with_operand(name: str, array: np.ndarray) -> Call:
        return call._replace(operands={**call.operands, name: array})

    def with_result(name: str, shape: tuple[int, ...], dtype: Any) -> Call:
        return call._replace(results={**call.results, name: (shape, dtype)})

    for name, array in call.operands.items():
        if array.size == 0:
            continue  # an absent operand may have any shape
        yield f"{name}, rank + 1", False, with_operand(name, array[None])
        yield f"{name}, rank 0", False, with_operand(name, array.reshape(-1)[0])
        if array.ndim > 1:
            yield f"{name}, flat", False, with_operand(name, array.reshape(-1))
        for dtype in other_dtypes(array.dtype.type):
            yield f"{name}, {np.dtype(dtype)}", False, with_operand(name, array.astype(dtype))
        for axis, size in enumerate(array.shape):
            label = f"{name}, axis {axis}"
            for other in {size - 1, size + 1} - {0}:
                changed = with_operand(name, resized(array, axis, other))
                may = not call.free.isdisjoint({label, f"{label}, {other}"})
                yield f"{label}, {other}", may, changed
            # Without elements an operand is absent, which many may be.
            yield f"{label}, 0", True, with_operand(name, resized(array, axis, 0))
    for name, (shape, dtype) in call.results.items():
        if 0 in shape:
            continue
        more_axes = f"{name}, rank + 1"
        yield more_axes, more_axes in call.free, with_result(name, (1, *shape), dtype)
        yield f"{name}, rank 0", False, with_result(name, (), dtype)
        for other_dtype in other_dtypes(dtype):
            yield f"{name}, {np.dtype(other_dtype)}", False, with_result(name, shape, other_dtype)
        for axis, size in enumerate(shape):
            label = f"{name}, axis {axis}"
            for other in {size - 1, size + 1, 0}:
                changed = with_result(name, (*shape[:axis], other, *shape[axis + 1 :]), dtype)
                yield f"{label}, {other}", label in call.free or other == 0, changed
    for name, value in call.attributes.items():
        without = {key: v for key, v in call.attributes.items() if key != name}
        yield f"no {name}", False, call._replace(attributes=without)
        if isinstance(value, float):
            continue
        if isinstance(value, tuple):
            shorter = call._replace(attributes={**call.attributes, name: value[:-1]})
            yield f"{name}, one less", False, shorter
            for i in range(len(value)):
                for other in (value[i] - 1, value[i] + 1, -1, 1 << 40):
                    changed = (*value[:i], other, *value[i + 1 :])
                    attributes = {**call.attributes, name: changed}
                    yield f"{name} = {changed}", False, call._replace(attributes=attributes)
            continue
        for other in {value - 1, value + 1, 0, -1, 1 << 40} - {value}:
            attributes = {**call.attributes, name: other}
            may = name in BOOLEANS or (name in call.free and other != 1 << 40)
            may = may or name.endswith("chunk_length")  # with a long one rows are whole
            may = may or (name == "longest_row" and other >= 0)  # a bound, however large
            yield f"{name} = {other}", may, call._replace(attributes=attributes)


def run(target: str, call: Call, device: jax.Device) -> None:
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in call.results.values()]
    typed = {
        name: np.asarray(value, np.float64 if isinstance(value, float) else np.int64)[()]
        for name, value in call.attributes.items()
    }
    operands = jax.device_put(list(call.operands.values()), device)
    jax.block_until_ready(jax.ffi.ffi_call(target, types)(*operands, **typed))


def main(platform: str, *targets: str) -> None:
    """Makes all calls of the targets; prints each before it is made."""
    device = jax.devices(platform)[0]
    accepted = [f"{target}: {label}" for target in targets for label in accepted_of(target, device)]
    if accepted:
        raise SystemExit(f"accepted: {'; '.join(accepted)}")


def accepted_of(target: str, device: jax.Device) -> list[str]:
    """What was changed where an invalid call raised no error."""
    call = {**CALLS, **CPU_CALLS, **CUDA_CALLS}[target](Graph(empty=device.platform != "cpu"))
    print(f"{target}: the valid call", flush=True)
    run(target, call, device)
    accepted = []
    for label, may_be_valid, changed in mutations(call):
        print(f"{target}: {label}", flush=True)
        try:
            run(target, changed, device)
        except (ValueError, TypeError, jax.errors.JaxRuntimeError):
            continue
        if not may_be_valid:
            accepted.append(label)
    return accepted


def check(platform: str, *targets: str) -> None:
    command = [sys.executable, "-m", "tests.core.test_raw_calls", platform, *targets]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((PACKAGES, str(ROOT)))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"exit status {done.returncode} at {last}: {done.stderr[-2000:]}"


@pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built")
def test_every_cpu_target_has_a_call():
    assert ffi.cpu_module is not None
    assert set(ffi.cpu_module.registrations()) == set(CALLS) | set(CPU_CALLS)


@pytest.mark.skipif(ffi.cuda_module is None, reason="jaxgnn._cuda is not built")
def test_every_cuda_target_has_a_call():
    assert ffi.cuda_module is not None
    assert set(ffi.cuda_module.registrations()) == set(CALLS) | set(CUDA_CALLS)


@pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built")
@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("jaxgnn_csr_row_ids", {"row_offsets": np.zeros(1, I32)}, "there are edges, but no rows"),
        (
            "jaxgnn_gat_attention",
            {"values": np.zeros((COLUMNS, 0), F32), "out": ((ROWS, 0), F32)},
            "there must be features",
        ),
        (
            "jaxgnn_pair_attention_gradients",
            {"loop_gradient": ((COLUMNS, HEADS), F32)},
            "by senders there are no gradients of the biases",
        ),
    ],
)
def test_results_that_no_kernel_would_write_are_refused(target, changes, message):
    call = CALLS[target](Graph(empty=False))
    operands, results, attributes = (
        {name: changes.get(name, value) for name, value in of.items()} for of in call[:3]
    )
    changed = Call(operands, results, attributes)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        run(target, changed, jax.devices("cpu")[0])


@pytest.mark.parametrize("target", CUDA_CALLS)
def test_calls_of_a_gpu_are_built(target):
    """Also where there is none to make them."""
    assert CUDA_CALLS[target](Graph(empty=True)).results


@pytest.mark.system
@pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built")
@pytest.mark.parametrize("part", range(PARTS))
def test_cpu(part):
    """Several targets a process, whose start takes longer than the calls of one."""
    check("cpu", *[*CALLS, *CPU_CALLS][part::PARTS])


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("target", [*CALLS, *CUDA_CALLS])
def test_cuda(target):
    check("gpu", target)


if __name__ == "__main__":
    main(*sys.argv[1:])
