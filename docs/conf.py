"""The site: `sphinx-build -W -n docs build/site`. Pages are Markdown, read on the web as well."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))
if importlib.util.find_spec("jaxgnn") is None:
    sys.path.append(str(ROOT))  # a checkout that is not installed: docstrings need no kernels

import jaxgnn  # noqa: E402

project = "jaxgnn"
author = "the jaxgnn authors"
copyright = author
version = release = jaxgnn.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstrings",  # Markdown in docstrings
    "mathml",  # mathematics without a network
    "repository",  # links to files outside of docs/
]
exclude_patterns = ["_extensions"]

# MyST: what the pages use, as GitHub renders it.
myst_enable_extensions = ["alert", "dollarmath"]
myst_heading_anchors = 4
myst_dmath_double_inline = True

# Docstrings.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # types are in the signatures
napoleon_use_rtype = False
napoleon_custom_sections = [("Source", "notes_style")]
# Names of other libraries, of typing's and jaxtyping's constructs, and private names in
# annotations have no page; a name of ours that does not exist is an error, with `-n`.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!jaxgnn\.).*"),
    (r"py:.*", r"jaxgnn\.(.*\.)?_.*"),
    (r"py:class", r"jaxgnn(\.\w+){3,}"),  # aliases of types, by the module that has them
]
suppress_warnings = ["ref.python"]  # several classes have an attribute of that name

html_theme = "furo"
html_title = f"jaxgnn {version}"
html_math_renderer = "mathml"
html_copy_source = False
