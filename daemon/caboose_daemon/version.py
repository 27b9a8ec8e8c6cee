"""The installed version, from the distribution's metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("caboose")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
