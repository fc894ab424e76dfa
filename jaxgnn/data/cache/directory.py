"""The user's cache directory: downloads, and the cache of built graphs."""

from __future__ import annotations

import os
import pathlib
import sys

from jaxgnn.data.files.limits import DataError

VARIABLE = "JAXGNN_CACHE"


def user_cache() -> pathlib.Path:
    """`JAXGNN_CACHE`, or `jaxgnn` in the platform's cache directory, as pooch and platformdirs.

    Raises:
        DataError: the user has no home directory.
    """
    mac = sys.platform == "darwin"
    base = "~/Library/Caches" if mac else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = os.environ.get(VARIABLE) or os.path.join(base, "jaxgnn")
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(f"{VARIABLE}: expected a directory, for the user has no home") from error


def graph_cache() -> pathlib.Path | None:
    """The directory of built graphs; None where an empty `JAXGNN_CACHE` turns the cache off, or
    there is no place for it."""
    if os.environ.get(VARIABLE) == "":
        return None
    try:
        return user_cache() / "graphs"
    except DataError:
        return None
