"""Mathematics as MathML, which browsers render without scripts or a network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

# What docutils' converter does not know, and what stands for it: MathML's parentheses grow anyway.
_SPELLINGS = (
    (re.compile(r"\\dots\b"), r"\\ldots"),
    (re.compile(r"\\[Bb]igg?[lr]?(?![a-zA-Z])"), ""),
)
_LOGGER = logging.getLogger(__name__)


def _mathml(node: nodes.Node, block: bool) -> str:
    source = node.astext()
    for pattern, spelling in _SPELLINGS:
        source = pattern.sub(spelling, source)
    try:
        return tex2mathml(source, as_block=block)
    except MathError as error:
        _LOGGER.warning("mathematics: %s in %r", error, source, location=node)
        return f"<code>{source}</code>"


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_mathml(node, block=False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(_mathml(node, block=True))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
