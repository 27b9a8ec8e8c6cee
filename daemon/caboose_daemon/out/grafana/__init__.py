"""Grafana annotations for incidents, rollbacks and new attempts."""
