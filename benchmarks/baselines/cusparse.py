"""cuSPARSE's sparse-dense product through its C interface, one algorithm at a time.

`torch.sparse` and JAX take the default algorithm only; the best one is the honest baseline.
The matrices are torch tensors on the GPU; all dense ones are row-major.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import sys
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p

import torch

# cusparseSpMMAlg_t, those for CSR.
ALGORITHMS = {"default": 0, "csr_alg1": 4, "csr_alg2": 6, "csr_alg3": 12}

_VALUE_TYPE = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType
_COMPUTE_FLOAT32 = 0
_INDEX_32 = 2
_BASE_ZERO = 0
_NON_TRANSPOSE = 0
_ROW_MAJOR = 2


def _load() -> ctypes.CDLL:
    """The library that torch has loaded, else one among the packages or of the toolkit."""
    places = (*(f"{folder}/nvidia/*/lib" for folder in sys.path), "/usr/local/cuda/lib64")
    found = [path for place in places for path in sorted(glob.glob(f"{place}/libcusparse.so.*"))]
    for name in ("libcusparse.so.12", "libcusparse.so.13", "libcusparse.so", *found):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise OSError("libcusparse: found neither in the process nor beside the CUDA packages")


class CuSparse:
    """A handle of the library on torch's current stream."""

    def __init__(self) -> None:
        self.library = _load()
        self.handle = c_void_p()
        self.call("cusparseCreate", byref(self.handle))
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("cusparseSetStream", self.handle, stream)

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self.library, name)
        function.restype = c_int
        status = function(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with status {status}")


class Product:
    """A prepared product `out = A x`; calling it enqueues one.

    The preprocessing of the algorithm is done here, untimed.
    """

    def __init__(
        self,
        cusparse: CuSparse,
        row_offsets: torch.Tensor,
        columns: torch.Tensor,
        values: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        algorithm: str,
    ) -> None:
        if not (x.is_contiguous() and out.is_contiguous() and row_offsets.dtype == torch.int32):
            raise ValueError("x, out: expected contiguous rows, and int32 row offsets")
        self._cusparse = cusparse
        self._keep = (row_offsets, columns, values, x)
        self.out = out
        value_type = _VALUE_TYPE[x.dtype]
        self._matrix, self._x, self._out = c_void_p(), c_void_p(), c_void_p()
        cusparse.call(
            "cusparseCreateCsr",
            byref(self._matrix),
            *map(c_int64, (out.shape[0], x.shape[0], columns.numel())),
            *(c_void_p(array.data_ptr()) for array in (row_offsets, columns, values)),
            *map(c_int, (_INDEX_32, _INDEX_32, _BASE_ZERO, value_type)),
        )
        for descriptor, dense in ((self._x, x), (self._out, out)):
            rows, width = dense.shape
            cusparse.call(
                "cusparseCreateDnMat",
                byref(descriptor),
                *map(c_int64, (rows, width, width)),
                c_void_p(dense.data_ptr()),
                *map(c_int, (value_type, _ROW_MAJOR)),
            )
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._arguments = (
            cusparse.handle,
            c_int(_NON_TRANSPOSE),
            c_int(_NON_TRANSPOSE),
            byref(self._one),
            self._matrix,
            self._x,
            byref(self._zero),
            self._out,
            c_int(_COMPUTE_FLOAT32),
            c_int(ALGORITHMS[algorithm]),
        )
        size = c_size_t()
        cusparse.call("cusparseSpMM_bufferSize", *self._arguments, byref(size))
        self._buffer = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)
        self._pointer = c_void_p(self._buffer.data_ptr())
        cusparse.call("cusparseSpMM_preprocess", *self._arguments, self._pointer)
        self._spmm = cusparse.library.cusparseSpMM

    def __call__(self) -> torch.Tensor:
        status = self._spmm(*self._arguments, self._pointer)
        if status != 0:
            raise RuntimeError(f"cusparseSpMM failed with status {status}")
        return self.out

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The product with another matrix of the same shape, in memory of its own."""
        x = x.contiguous()
        self.out, self._keep = torch.empty_like(x), self._keep[:3]
        for descriptor, dense in ((self._x, x), (self._out, self.out)):
            pointer = c_void_p(dense.data_ptr())
            self._cusparse.call("cusparseDnMatSetValues", descriptor, pointer)
        out, self.out = self(), None
        return out

    def close(self) -> None:
        """Frees the descriptors; the tensors go with the object."""
        self._cusparse.call("cusparseDestroySpMat", self._matrix)
        self._cusparse.call("cusparseDestroyDnMat", self._x)
        self._cusparse.call("cusparseDestroyDnMat", self._out)
