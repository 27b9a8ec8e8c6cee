"""Runs that are over: replay of logs, past runs, comparing, verifying, guided diagnosis, HTML report."""
