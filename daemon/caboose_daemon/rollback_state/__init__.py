"""Rollback state of a job: ledger, decisions, triage, cost, ladder. Nothing here acts."""
