"""Whether a declared change improved a run: a test of before against after that may be inconclusive."""
