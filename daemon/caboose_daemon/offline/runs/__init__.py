"""Runs, read from a running daemon, a journal or a log of another tool."""
