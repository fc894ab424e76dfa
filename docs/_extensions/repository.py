"""Links from pages to the repository's other files: on the site they are copies to download."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s:]+)(?:#[^)]*)?\)")


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    docs = Path(app.srcdir).resolve()
    folder = (docs / name).parent

    def link(match: re.Match[str]) -> str:
        path = (folder / match["path"]).resolve()
        outside = path.is_file() and not path.is_relative_to(docs)
        return f"](path:{match['path']})" if outside else match[0]

    source[0] = _LINK.sub(link, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
