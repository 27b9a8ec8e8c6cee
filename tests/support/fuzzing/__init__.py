"""Fuzzing of the daemon through step close, scrape, page, journal and restart; see docs/reliability.md."""
