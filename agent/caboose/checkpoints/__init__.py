"""Checkpoints on disk: written by all ranks, complete or absent, and the plan from which a run resumes."""
