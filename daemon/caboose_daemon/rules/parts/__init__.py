"""What rules share: findings, baselines, curves, lasting conditions, and how a rule describes itself."""
