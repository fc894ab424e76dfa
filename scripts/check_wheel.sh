#!/usr/bin/env bash
# From a wheel to a trained model, in a new virtual environment: prints the seconds of each step.
#
#   scripts/check_wheel.sh WHEEL [PYTHON]
set -euo pipefail

wheel=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"  # not the checkout: its package would be imported
start=$SECONDS
"${2:-python3}" -m venv venv
venv/bin/pip install --quiet "$wheel[train]"
installed=$SECONDS
venv/bin/jaxgnn train --run-directory run
trained=$SECONDS
venv/bin/python -c '
import os, jaxgnn
assert jaxgnn.build_info().cpu, jaxgnn.build_info().cpu_error
assert os.path.isfile(os.path.join(jaxgnn.include_dir(), "ffi", "check.h"))'
echo "install $((installed - start)) s, jaxgnn train $((trained - installed)) s"
