"""Annotations in Grafana: when something was found, and when the run was rolled back."""
