"""The user's cache directory: downloads, and the cache of built graphs."""

from __future__ import annotations

import os
import pathlib
import sys

VARIABLE = "JAXGNN_CACHE"


def user_cache() -> pathlib.Path:
    """`JAXGNN_CACHE`, or `jaxgnn` in the platform's cache directory, as pooch and platformdirs."""
    if given := os.environ.get(VARIABLE):
        return pathlib.Path(given).expanduser()
    if sys.platform == "darwin":
        return pathlib.Path("~/Library/Caches/jaxgnn").expanduser()
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxgnn"


def graph_cache() -> pathlib.Path | None:
    """The directory of built graphs; None where an empty `JAXGNN_CACHE` turns the cache off."""
    return None if os.environ.get(VARIABLE) == "" else user_cache() / "graphs"
