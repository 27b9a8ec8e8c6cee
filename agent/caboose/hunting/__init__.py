"""The NaN hunt: runs one captured batch again, with every module and operation watched, and names what broke first."""
