"""Grafana's side: what is pushed into it by a command, and what a running daemon posts."""
