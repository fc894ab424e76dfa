"""Trained models as compiled programs, for processes without training code.

`save` writes a model for graphs of a given size with `jax.export` (needs `pip install
'jaxgnn[export]'`), `load` calls it.
"""

from jaxgnn.export._load import ExportedModel, load
from jaxgnn.export._save import save

__all__ = ["ExportedModel", "load", "save"]
