"""`python -m jaxgnn`: the command `jaxgnn`, which itself starts before JAX is imported."""

from jaxgnn_cli import process

process()
