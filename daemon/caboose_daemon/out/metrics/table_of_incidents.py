"""The metrics of findings, incidents and rollbacks."""

from caboose_daemon.out.metrics.metric import Section, counted, of_job, text_of_job

FINDINGS = Section(
    "Findings and incidents",
    "Alerts read `caboose_incident_open`: one cause, one page. An incident is exported for at least two minutes after"
    " it opened, reopened or got worse, so that no scrape misses it.",
    (
        of_job(
            "caboose_incident_open",
            "1 while an incident is open, 0 while it is acknowledged; `rule` is its lead rule, fixed when it opened",
            "Alerts read this metric.",
            "rule",
            "severity",
        ),
        of_job(
            "caboose_incident_unresolved",
            "1 for what was open when the run ended, 0 once it is acknowledged; gone with the next launch",
            "An alert that fired before the end keeps firing, without a further notification, until this is 0.",
            "rule",
            "severity",
        ),
        of_job(
            "caboose_incident_info",
            "Place and likely cause of an open incident, as labels; the value is always 1",
            "For annotations and tables.",
            "rule",
            "severity",
            "incident",
            "cause",
            "rank",
            "host",
            "layer",
            "phase",
        ),
        text_of_job(
            "caboose_incident_text",
            "The words of an incident's alert and the links to it, as labels; the value is always 1",
            "For the annotations of alerts. Made when it opens, opens again or gets worse, and the same since.",
            "rule",
            "severity",
            "incident",
            "summary",
            "description",
            "page",
            "runbook",
            "grafana",
        ),
        of_job(
            "caboose_incident_onset_step",
            "Step at which an open incident began",
            "Use it to find the incident on the curves.",
            "incident",
        ),
        counted(
            "caboose_incidents_total",
            "Incidents opened, by lead rule",
            "A count that keeps rising points to an unstable job.",
            "rule",
        ),
        of_job(
            "caboose_finding_open",
            "1 while a rule has an open finding",
            "Incidents consist of findings.",
            "rule",
            "severity",
        ),
        counted(
            "caboose_findings_total",
            "Episodes a rule has opened, by their first severity",
            "A count that rises all day: the thresholds of the rule may need tuning.",
            "rule",
            "severity",
        ),
    ),
)

ROLLBACK = Section(
    "Rollback",
    "What may be done to a run, what it can go back to, and what was done. Snapshot metrics exist where the run keeps"
    " snapshots, checkpoint metrics where it has reported a checkpoint.",
    (
        of_job(
            "caboose_rollback_mode",
            "Rollback mode: 0 off, 1 advise, 2 auto; `job` is what the owner of the job allows, `daemon` what"
            " the daemon allows, `effective` the lower of the two",
            "2 in all three: the run is rolled back automatically.",
            "stat",
        ),
        counted(
            "caboose_decisions_total",
            "Decisions by `action` and outcome (label `reason`), counted when the outcome is known",
            "committed: all ranks did it. failed: the ranks accepted it and could not do it, and the run"
            " stopped. advised: it was only proposed.",
            "action",
            "reason",
        ),
        of_job(
            "caboose_rollback_budget_left",
            "Rollbacks still allowed today, by the counts of job and daemon",
            "At 0 the next failure needs a person.",
        ),
        of_job(
            "caboose_rollback_cooldown_steps",
            "Steps until the next rollback is allowed",
            "0: a rollback is allowed now.",
        ),
        of_job(
            "caboose_rollback_exhausted",
            "1 while no rollback is left to try: the budget is used, or there is nothing to go back to",
            "Must be 0. At 1 the run continues broken, or was stopped, and needs a person.",
        ),
        counted("caboose_rollback_lost_steps_total", "Steps undone by rollbacks", "The cost of all rollbacks so far."),
        of_job(
            "caboose_rollback_seconds",
            "Time for which the last rollback held up the training, on the slowest rank",
            "About the time to copy one snapshot is normal.",
        ),
        of_job(
            "caboose_model_step",
            "Updates contained in the weights of the last step",
            "Equal to caboose_job_step without rollbacks, and lower by the steps that rollbacks undid.",
        ),
        of_job(
            "caboose_snapshots_ready",
            "Untainted snapshots that every rank holds, out of quarantine",
            "At least 1 is normal. 0 with rollback on auto: no snapshot to go back to.",
        ),
        of_job(
            "caboose_snapshot_age_steps",
            "Steps since the newest usable snapshot",
            "The minimum cost of a rollback now.",
        ),
        of_job(
            "caboose_snapshot_every_steps", "Current interval between snapshots", "Rises when snapshots cost too much."
        ),
        of_job(
            "caboose_snapshot_size_bytes",
            "Size of one snapshot, on the rank with the largest",
            "Host memory needed per slot.",
        ),
        of_job(
            "caboose_snapshot_seconds",
            "Time the last snapshot took on the training thread, on the slowest rank",
            "Divide it by caboose_snapshot_every_steps to get the cost per step.",
        ),
        of_job(
            "caboose_checkpoints",
            "Known checkpoints on disk, by health",
            "Tainted ones were saved during or just before a failure: do not resume from them.",
            "stat",
        ),
        of_job(
            "caboose_checkpoint_step",
            "Step of the newest checkpoint, of the newest healthy one, and of the best by validation",
            "A restart resumes from the healthy one.",
            "stat",
        ),
        counted(
            "caboose_skipped_updates_total",
            "Updates that skip_step left out since attach",
            "A few are normal. Many: check the data or the learning rate.",
        ),
    ),
)
