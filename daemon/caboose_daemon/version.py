"""The installed version, as the distribution's metadata has it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("caboose")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
