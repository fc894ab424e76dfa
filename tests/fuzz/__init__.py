"""Mutated files for the readers: `python -m tests.fuzz READER --files N --seed S`."""
