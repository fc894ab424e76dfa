#!/bin/sh
# Runs the CUDA kernels under compute-sanitizer (memory errors, then races in shared memory), on
# the tests that cover every mapping, split rows and the derivatives. Needs a GPU and jaxgnn._cuda.
#
#   scripts/sanitize.sh [PYTHON [TOOLS [TESTS]]]
set -eu

cd "$(dirname "$0")/.."
python=${1:-python3}
tools=${2:-memcheck racecheck}
tests=${3:-spmm sddmm edges windows maxk_kernels maxk_fused gat_attention}
files=$(for test in $tests; do echo "tests/test_$test.py"; done)
# One allocation a buffer, so that an access past its end is seen.
export XLA_PYTHON_CLIENT_ALLOCATOR=platform JAX_PLATFORMS=cuda,cpu
# The sanitizer itself ended with a segmentation fault, at a test or another, under CUDA graphs.
export XLA_FLAGS="--xla_gpu_enable_command_buffer= ${XLA_FLAGS:-}"
for tool in $tools; do
  # shellcheck disable=SC2086  # a word a file
  compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
    "$python" -m pytest -q -o addopts= -p no:cacheprovider -p no:benchmark -p no:xdist $files \
    -k "(long_rows and not float16) or finite_differences or expand_rows or order_of_rows \
    or -6-float32 or -32-float32 or -100-bfloat16 or sanitized"
done
