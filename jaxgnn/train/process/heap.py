"""Memory that is freed and taken again in each step, kept by the process."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # malloc.h
_LARGEST_KEPT = 1 << 30
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keeps freed memory in the process, for training on a CPU.

    XLA takes the intermediates of a program as one block when it runs, and frees it after. glibc
    maps blocks of more than 32 MiB anew each time, so that the kernel clears all of their pages in
    each step. After this call blocks of up to 1 GiB are taken from the heap, and the heap is not
    given back: the process stays as large as its largest step. This is a setting of the whole
    process, which `jaxgnn train --task graph` makes. A GPU's memory is not touched.

    Returns:
        Whether it was set: it is glibc's, on Linux.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Older versions refuse so large a threshold: nothing is mapped then.
    kept = mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) or mallopt(_MMAP_MAX, 0)
    return bool(kept and mallopt(_TRIM_THRESHOLD, _MOST))
