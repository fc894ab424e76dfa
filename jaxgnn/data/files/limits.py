"""What a reader may open, read, build and print, as `jaxgnn._core.limits` has it.

`jaxgnn.tiles.load` reads files too, from below this package.
"""

from jaxgnn._core.limits import (
    BYTES_PER_FILE_BYTE,
    DEFAULT_RANGE,
    MESSAGE_LENGTH,
    BoundedFile,
    Budget,
    DataError,
    display_path,
    head_of,
    quote,
    reading,
    stem_of,
)

__all__ = [
    "BYTES_PER_FILE_BYTE",
    "DEFAULT_RANGE",
    "MESSAGE_LENGTH",
    "BoundedFile",
    "Budget",
    "DataError",
    "display_path",
    "head_of",
    "quote",
    "reading",
    "stem_of",
]
