#!/bin/sh
# Runs tests with the CPU module under AddressSanitizer, UBSan and libstdc++'s assertions.
#
#   scripts/sanitize_cpu.sh [PYTHON [TESTS...]]     (TESTS: what pytest takes; default: all)
#
# PYTHON needs what scripts/dev_build.sh needs, and pytest. The module is built into a copy of the
# package, so that the checkout's own stays. PYTEST_OPTIONS are more of pytest's.
set -eu

cd "$(dirname "$0")/.."
python=$(command -v "${1:-python3}")
[ $# -eq 0 ] || shift
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

PATH="$(dirname "$python"):$PATH" cmake -S . -B "$copy/build" -G Ninja \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_EXECUTABLE="$python" -DJAXGNN_CUDA=OFF \
  -DJAXGNN_SANITIZE=address,undefined -DJAXLIB_INCLUDE="${JAXLIB_INCLUDE:-}" >/dev/null
cmake --build "$copy/build" >/dev/null
cp -r jaxgnn jaxgnn_cli "$copy"
rm -f "$copy"/jaxgnn/_c*.so
cp "$copy"/build/cpu/_cpu*.so "$copy/jaxgnn/"

# Leaks: Python and XLA free nothing at their end. The first error ends the process, and so the run.
compiler=${CXX:-c++}
export LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export PYTHONPATH="$copy${PYTHONPATH:+:$PYTHONPATH}" JAX_PLATFORMS=cpu
export PYTHONSAFEPATH=1  # not the checkout's package
"$python" -c "import sys, jaxgnn._cpu as m; sys.exit(not m.__file__.startswith('$copy'))"
# Not those that measure memory, or run out of it: AddressSanitizer keeps what is freed, and ends
# the process where `new` would throw.
# shellcheck disable=SC2086
"$python" -m pytest -q -p no:cacheprovider ${PYTEST_OPTIONS:-} "${@:-tests}" \
  --deselect=tests/graph/test_windows.py::test_out_of_memory_is_a_memory_error \
  --deselect=tests/graph/test_graph.py::test_building_takes_no_more_than_three_times_the_result \
  --deselect=tests/data/test_fuzz.py::test_peaks_and_messages_are_seen
