"""`python -m jaxgnn_cli`."""

from jaxgnn_cli import process

process()
