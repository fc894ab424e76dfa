"""How long a GPU waits between kernels."""

from benchmarks.harness.trace import Kernel, busy


def test_kernels_that_overlap_count_once():
    kernels = [Kernel("b", 0.5, 2.0), Kernel("a", 0.0, 1.0), Kernel("d", 3.2, 3.5)]
    kernels.append(Kernel("c", 3.0, 4.0))
    assert busy(kernels) == 3.0
    assert busy(kernels[:1]) == 1.5
    assert busy([]) == 0.0
