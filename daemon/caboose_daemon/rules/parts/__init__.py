"""Code that rules share: findings, baselines, curves, counters of lasting conditions, and the description of a rule."""
