"""The checks before a run: one per file, in the order of `catalogue.CHECKS`; `running.preflight` runs them."""
