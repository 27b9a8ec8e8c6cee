"""Chaos: real two-rank runs beside a real daemon, with faults injected from a seeded schedule (`make chaos`)."""
