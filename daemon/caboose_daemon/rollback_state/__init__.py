"""What rollback knows of a job: ledger, decisions, triage, cost, ladder. Nothing here acts."""
