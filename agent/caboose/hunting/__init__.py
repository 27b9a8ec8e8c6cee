"""The NaN hunt: runs a captured batch again, observes every module and operation, and names what broke first."""
