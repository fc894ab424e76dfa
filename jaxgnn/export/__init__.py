"""Trained models as compiled programs, for processes without training code.

`save` writes a model for graphs of a given size with `jax.export` (needs `pip install
'jaxgnn[export]'`), `load`, `load_links` and `load_graphs` read it.
"""

from jaxgnn.export._load import load, load_graphs, load_links
from jaxgnn.export._models import ExportedGraphModel, ExportedLinkModel, ExportedModel
from jaxgnn.export._save import save

__all__ = [
    "ExportedGraphModel",
    "ExportedLinkModel",
    "ExportedModel",
    "load",
    "load_graphs",
    "load_links",
    "save",
]
