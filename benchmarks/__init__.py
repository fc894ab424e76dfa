"""Benchmarks of jaxgnn against the libraries that a user would otherwise call.

`python -m benchmarks.run SUITE`; see `docs/benchmarks.md`.
"""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
# `python -m` puts the checkout first on the path. Unless jaxgnn was built in place, it has no
# compiled modules there, and the installed package is meant.
if not any((_ROOT / "jaxgnn").glob("_cpu*.so")):
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != _ROOT] + [str(_ROOT)]
