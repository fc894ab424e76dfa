#!/bin/sh
# Runs the CUDA kernels under compute-sanitizer (memory errors, then races in shared memory), on
# the tests that cover every mapping, rows in chunks and the derivatives. Needs a GPU and
# jaxgnn._cuda.
#
#   scripts/sanitize.sh [PYTHON [TOOLS [TESTS]]]     (TESTS: files or folders below tests/)
#
# Every test is a process of its own, JOBS of them at a time (default: 4), tried ATTEMPTS times at
# most (default: 3): where a process compiles many programs the sanitizer itself ends with a
# segmentation fault, at one test or another. No try takes more than LIMIT seconds (default: 300):
# racecheck is slow where rows are long. OPTIONS are the sanitizer's own (default: our kernels alone,
# since XLA's, of the references, take most of the time). A line for each test that is clean, else
# what it says; the last line counts them.
set -eu

cd "$(dirname "$0")/.."
python=${1:-python3}
tools=${2:-memcheck racecheck}
tests=${3:-aggregation/test_spmm.py aggregation/test_long_rows.py aggregation/test_sddmm.py aggregation/test_edges.py aggregation/test_extremum.py \
dropout/test_mask.py maxk/test_window_products.py maxk/test_weighted_window_products.py maxk/test_maxk_kernels.py maxk/test_maxk_fused.py \
attention/test_gat_attention.py attention/test_gat_attention_gradients.py attention/test_dot_attention.py \
attention/test_cosine_attention.py attention/test_cosine_gradients_gpu.py attention/test_gatv2_attention.py attention/test_sparse_attention.py \
attention/test_sparse_dot_attention.py attention/test_sparse_window_attention.py gaussian/test_gaussian_spmm.py sampling/test_sampled_edges.py sampling/test_sampled_spmm.py \
sampling/test_sample_neighbors.py sampling/test_sample_tree.py sampling/test_weighted_neighbors.py \
sampling/test_sage_embedding_gpu.py \
projection/test_weight_gradient_gpu.py train/test_host_features.py tiles/test_tiles_gpu.py tiles/test_cosine_tiles_gpu.py}
# One allocation a buffer, so that an access past its end is seen.
export XLA_PYTHON_CLIENT_ALLOCATOR=platform JAX_PLATFORMS=cuda,cpu
export pytest="$python -m pytest -q -o addopts= -p no:cacheprovider -p no:benchmark -p no:xdist"
chosen="(long_rows and not float16) or finite_differences or csr_row_ids or row_schedule \
or beyond_the_cache or several_keys or large_scores or -6-float32 or -32-float32 or -100-bfloat16 or short_rows or sanitized \
or (many_degrees and float32) or on_symmetric_graphs or of_the_masked_matrix or take_the_same \
or (test_rows and float32) or (test_narrow_rows and float32) \
or (weighted_products and (float32-32 or float32-6 or bfloat16-100)) or test_cosine_tiles_gpu"

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export results
: >"$results/clean"
# shellcheck disable=SC2016,SC2086  # $1 is the inner shell's; $pytest is a command with arguments
# The first test of each file, then the second of each: a run that is cut off has seen all kernels.
for test in $tests; do
  $pytest --collect-only "tests/$test" -k "$chosen" | grep '::' | cat -n
done | sort -n -s | cut -f 2 >"$results/tests"
for tool in $tools; do
  sed "s/^/$tool /" "$results/tests"
done | xargs -d '\n' -P "${JOBS:-4}" -n 1 sh -c '
  log=$(mktemp -p "$results")
  for attempt in $(seq "${ATTEMPTS:-3}"); do
    status=0
    timeout "${LIMIT:-300}" compute-sanitizer --tool "${1%% *}" --error-exitcode 9 --print-limit 5 \
      ${OPTIONS---kernel-regex kns=jaxgnn} $pytest "${1#* }" >"$log" 2>&1 || status=$?
    case $status in
      0) echo "$1: clean" | tee -a "$results/clean" && exit 0 ;;
      139) ;; # the segmentation fault
      *) break ;;
    esac
  done
  echo "$1: status $status, attempt $attempt"
  cat "$log"
' sh || true
clean=$(wc -l <"$results/clean")
wanted=$(($(wc -l <"$results/tests") * $(echo "$tools" | wc -w)))
echo "$clean of $wanted clean"
test "$clean" -eq "$wanted"
