"""Everything that people and programs read from a daemon: JSON API, live page, Prometheus metrics, exports."""
