"""Rollback: when it is worth it, which snapshot to use, the commands to the ranks, and the outcome."""
