"""Exports of a running daemon: annotations to Grafana, curves to trackers."""
