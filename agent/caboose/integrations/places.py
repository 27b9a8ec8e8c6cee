"""Where a checkpoint is, as it is reported."""

import os
from typing import Any


def place_of(path: Any) -> str:
    """The absolute path of a file, since a resumed process may start elsewhere; a URL stays as it is."""
    text = str(path)
    return text if "://" in text else os.path.abspath(text)
