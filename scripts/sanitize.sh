#!/bin/sh
# Runs the CUDA kernels under compute-sanitizer (memory errors, then races in shared memory), on
# the tests that cover every mapping, split rows and the derivatives. Needs a GPU and jaxgnn._cuda.
#
#   scripts/sanitize.sh [PYTHON [TOOLS]]
set -eu

cd "$(dirname "$0")/.."
python=${1:-python3}
tools=${2:-memcheck racecheck}
# One allocation a buffer, so that an access past its end is seen.
export XLA_PYTHON_CLIENT_ALLOCATOR=platform JAX_PLATFORMS=cuda
for tool in $tools; do
  compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
    "$python" -m pytest -q -o addopts= -p no:cacheprovider -p no:benchmark -p no:xdist \
    tests/test_spmm.py tests/test_sddmm.py tests/test_edges.py tests/test_windows.py \
    tests/test_maxk_kernels.py tests/test_dot_attention.py tests/test_gatv2_attention.py \
    -k "(long_rows and not float16) or finite_differences or large_scores \
    or expand_rows or -6-float32 or -32-float32 or -100-bfloat16 or sanitized"
done
