"""The checks before a run: one a file, in the order of `catalogue.CHECKS`; `running.preflight` makes them."""
