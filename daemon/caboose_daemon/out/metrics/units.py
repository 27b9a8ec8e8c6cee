"""The unit of each metric: the last word of its name if that is a unit, otherwise as listed here."""

IN_NAMES = ("seconds", "bytes", "ratio", "steps", "step", "ranks")
"""Units that names end in. OpenMetrics exports only these as `# UNIT`, because it requires the unit in the name."""
FLAG, ONE = "0 or 1", "always 1"
UNITS = {
    FLAG: "job_up job_failed job_quarantined incident_open incident_unresolved finding_open rollback_exhausted blind"
    " journal_writable",
    ONE: "job_info incident_info incident_text daemon_info daemon_links_info",
    "level, 0 to 3": "job_severity",
    "level, 0 to 2": "rollback_mode",
    "attempts": "job_attempt",
    "processes": "job_duplicates_refused_total",
    "unit of the loss": "loss validation_loss rank_loss part_loss",
    "unit of the metric": "validation_metric user_metric",
    "learning rate": "learning_rate part_learning_rate",
    "L2 norm": "gradient_norm part_gradient_norm layer_gradient_norm depth_gradient_norm worst_layer_gradient_norm"
    " layer_weight_norm depth_weight_norm worst_layer_weight_norm",
    "largest logit": "layer_attention_logit worst_layer_attention_logit",
    "unit of the activations": "layer_activation_std depth_activation_std worst_layer_activation_std",
    "factor": "loss_scale",
    "incidents": "incidents_total",
    "findings": "findings_total",
    "decisions": "decisions_total",
    "rollbacks": "rollback_budget_left",
    "snapshots": "snapshots_ready",
    "checkpoints": "checkpoints",
    "updates": "skipped_updates_total",
    "replicas": "replicas_compared replicas_differing",
    "samples per second": "samples_per_second",
    "tokens per second": "tokens_per_second",
    "rules": "rules_abstaining",
    "layers": "layers_unseen",
    "reports": "reports_late_total reports_missed_total reports_dropped_total",
    "steps": "steps_incomplete_total",
    "names": "names_hidden",
    "ranks": "agents_disabled peers_connected",
    "relays": "relays_connected",
    "jobs": "jobs_known jobs_hidden",
    "messages": "messages_received_total messages_refused_total relay_messages_dropped_total"
    " job_throttled_messages_total",
    "runs": "rule_runs_total",
    "failures": "internal_errors_total rule_failures_total journal_failures_total export_failures_total",
    "rows": "journal_lost_rows_total journal_refused_rows_total journal_quarantined_rows store_backlog_rows",
    "connections": "http_connections_dropped_total",
    "items": "exports_total exports_dropped_total",
}
_WRITTEN = {f"caboose_{name}": unit for unit, names in UNITS.items() for name in names.split()}


def unit_in_name(name: str) -> str:
    """The unit at the end of a name; empty if there is none."""
    family = name.removesuffix("_total")
    return next((unit for unit in IN_NAMES if family.endswith(f"_{unit}")), "")


def unit_of(name: str) -> str:
    """The unit of a metric; KeyError if the name is unknown."""
    return unit_in_name(name) or _WRITTEN[name]
