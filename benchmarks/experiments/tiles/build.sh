#!/bin/sh
# Builds ./tiles, and ./reddit.inputs for it: docs/kernels/tiles.md has what it printed.
set -eu
cd "$(dirname "$0")"
root=../../..
nvcc -std=c++17 -O3 -I "$root" -gencode arch=compute_90a,code=sm_90a -Xcompiler -pthread -o tiles tiles.cu \
  "$root/cpu/host/generate.cc" "$root/cpu/host/graph.cc" "$root/cpu/host/windows.cc"
PYTHONPATH="$root" python3 inputs.py reddit 1 reddit.inputs
echo "run ./tiles reddit.inputs"
