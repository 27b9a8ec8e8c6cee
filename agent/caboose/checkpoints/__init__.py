"""Checkpoints on disk: written aside by all ranks, whole or not there, and the plan by which a run resumes from one."""
