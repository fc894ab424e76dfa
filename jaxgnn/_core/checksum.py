"""A checksum of arrays, which goes on from one of those before them."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np


def checksum(*arrays: Any, after: str = "0") -> str:
    """CRC-32 of arrays, their shapes and dtypes.

    Args:
        arrays: on any device.
        after: the checksum of arrays before these; the result is that of all of them.
    """
    crc = int(after, 16)
    for array in arrays:
        array = np.ascontiguousarray(array)
        crc = zlib.crc32(repr((array.shape, array.dtype.str)).encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, crc)
    return f"{crc:08x}"
