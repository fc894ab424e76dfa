"""Benchmarks of jaxgnn against the libraries that a user would otherwise call.

`python -m benchmarks.run SUITE`; see `docs/benchmarks.md`.
"""
