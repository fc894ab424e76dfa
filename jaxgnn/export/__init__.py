"""Trained models as compiled programs, for processes without training code.

`save` writes a model for graphs of a given size with `jax.export` (needs `pip install
'jaxgnn[export]'`), `load` and `load_links` call it.
"""

from jaxgnn.export._load import load, load_links
from jaxgnn.export._models import ExportedLinkModel, ExportedModel
from jaxgnn.export._save import save

__all__ = ["ExportedLinkModel", "ExportedModel", "load", "load_links", "save"]
