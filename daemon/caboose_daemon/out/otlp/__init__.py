"""Metrics, incidents and attempts pushed over OTLP, for sites that do not scrape. Needs the extra `otel`."""
