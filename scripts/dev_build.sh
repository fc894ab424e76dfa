#!/bin/sh
# Builds the compiled modules for one Python and copies them into jaxgnn/, so that the package runs
# from the checkout.
#
#   scripts/dev_build.sh [--cuda] [--debug] [PYTHON] [-- CMAKE_OPTIONS...]
#
# PYTHON (default: python3) needs nanobind and jaxlib installed. The environment variable
# JAXLIB_INCLUDE names other FFI headers than its jaxlib's: those of the oldest supported one, to
# build what a release builds. Files of different Pythons are named
# apart by their ABI tags and live side by side. Without --cuda only `_cpu` is built. With --debug
# the kernels run under AddressSanitizer and UBSan (start Python with LD_PRELOAD=libasan.so).
set -eu

cd "$(dirname "$0")/.."
cuda=OFF
python=python3
kind=dev
type=Release
sanitize=
while [ $# -gt 0 ]; do
  case "$1" in
    --cuda) cuda=ON ;;
    --debug) kind=debug type=RelWithDebInfo sanitize=address,undefined ;;
    --) shift && break ;;
    -*) echo "unknown option: $1" >&2 && exit 2 ;;
    *) python=$1 ;;
  esac
  shift
done

tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
build="build/$kind/$tag"
# nanobind's own install and the headers of jaxlib are found through this Python.
PATH="$(dirname "$(command -v "$python")"):$PATH" cmake -S . -B "$build" -G Ninja \
  -DCMAKE_BUILD_TYPE="$type" -DPython_EXECUTABLE="$(command -v "$python")" \
  -DJAXGNN_CUDA="$cuda" -DJAXGNN_SANITIZE="$sanitize" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
  -DJAXLIB_INCLUDE="${JAXLIB_INCLUDE:-}" "$@"
cmake --build "$build"
# A loaded module must not be overwritten in place: replace the file instead.
for module in "$build"/cpu/_cpu*.so "$build"/cuda/_cuda*.so; do
  [ -e "$module" ] || continue
  name=$(basename "$module")
  cp "$module" "jaxgnn/.$name.tmp" && mv -f "jaxgnn/.$name.tmp" "jaxgnn/$name"
done
