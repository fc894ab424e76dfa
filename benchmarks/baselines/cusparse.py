"""cuSPARSE's sparse-dense product through its C interface, one algorithm at a time.

`torch.sparse` and JAX take the default algorithm only; the best one is the honest baseline.
The matrices are torch tensors on the GPU; all dense ones are row-major.
"""

from __future__ import annotations

import ctypes
import glob
import os
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
    """The library that torch has loaded, else one on the search path or among the packages."""
    names = ["libcusparse.so.12", "libcusparse.so.13", "libcusparse.so.11", "libcusparse.so"]
    for folder in sys.path:
        names += sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", "libcusparse.so.*")))
    for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root:
            names += sorted(glob.glob(os.path.join(root, "lib64", "libcusparse.so.*")))
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("libcusparse: found neither in the process nor beside the CUDA packages")


class CuSparse:
    """A handle of the library on torch's current stream."""

    def __init__(self) -> None:
        self._library = _load()
        self._handle = c_void_p()
        self._call("cusparseCreate", byref(self._handle))
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        self._call("cusparseSetStream", self._handle, stream)

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, name)
        function.restype = c_int
        status = function(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with status {status}")

    def product(
        self,
        row_offsets: torch.Tensor,
        columns: torch.Tensor,
        values: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        algorithm: str,
    ) -> Product:
        """Prepares `out = A x`; the preprocessing of the algorithm is done here, untimed."""
        return Product(self, row_offsets, columns, values, x, out, ALGORITHMS[algorithm])


class Product:
    """A prepared product; calling it enqueues one."""

    def __init__(self, library, row_offsets, columns, values, x, out, algorithm) -> None:
        rows, width = out.shape
        if not (x.is_contiguous() and out.is_contiguous() and row_offsets.dtype == torch.int32):
            raise ValueError("x, out: expected contiguous rows, and int32 row offsets")
        self._library = library
        self._keep = (row_offsets, columns, values, x)
        self.out = out
        value_type = _VALUE_TYPE[x.dtype]
        self._matrix, self._x, self._out = c_void_p(), c_void_p(), c_void_p()
        library._call(
            "cusparseCreateCsr",
            byref(self._matrix),
            c_int64(rows),
            c_int64(x.shape[0]),
            c_int64(columns.numel()),
            c_void_p(row_offsets.data_ptr()),
            c_void_p(columns.data_ptr()),
            c_void_p(values.data_ptr()),
            c_int(_INDEX_32),
            c_int(_INDEX_32),
            c_int(_BASE_ZERO),
            c_int(value_type),
        )
        for descriptor, dense in ((self._x, x), (self._out, out)):
            library._call(
                "cusparseCreateDnMat",
                byref(descriptor),
                c_int64(dense.shape[0]),
                c_int64(width),
                c_int64(width),
                c_void_p(dense.data_ptr()),
                c_int(value_type),
                c_int(_ROW_MAJOR),
            )
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._arguments = (
            library._handle,
            c_int(_NON_TRANSPOSE),
            c_int(_NON_TRANSPOSE),
            byref(self._one),
            self._matrix,
            self._x,
            byref(self._zero),
            self._out,
            c_int(_COMPUTE_FLOAT32),
            c_int(algorithm),
        )
        size = c_size_t()
        library._call("cusparseSpMM_bufferSize", *self._arguments, byref(size))
        self._buffer = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)
        self._pointer = c_void_p(self._buffer.data_ptr())
        library._call("cusparseSpMM_preprocess", *self._arguments, self._pointer)
        self._spmm = library._library.cusparseSpMM

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
            self._library._call("cusparseDnMatSetValues", descriptor, pointer)
        out, self.out = self(), None
        return out

    def close(self) -> None:
        """Frees the descriptors; the tensors go with the object."""
        self._library._call("cusparseDestroySpMat", self._matrix)
        self._library._call("cusparseDestroyDnMat", self._x)
        self._library._call("cusparseDestroyDnMat", self._out)
