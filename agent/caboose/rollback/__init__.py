"""Rollback: snapshots in host memory, and the agreement of all ranks to act at one step boundary or not at all."""
