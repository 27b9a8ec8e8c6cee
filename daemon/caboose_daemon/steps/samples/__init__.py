"""Sampled steps: statistics of every layer and module, reduced over the ranks."""
