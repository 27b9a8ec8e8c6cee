"""Which configuration file a command reads."""

import os
from pathlib import Path


def default_file() -> Path | None:
    """The configuration file that is read unasked, if it is there."""
    path = Path("caboose.toml")
    return path if path.exists() else None


def configured_file() -> Path | None:
    """The configuration file of commands that take none: CABOOSE_CONFIG, else the one that is read unasked."""
    named = os.environ.get("CABOOSE_CONFIG")
    return Path(named) if named else default_file()
