"""Every metric by name: its type, unit, labels, help, and what it tells whoever looks at it.

Design
------
The one place where a name is written. Families are made from it, the docs are generated from it, alerts and dashboards
are checked against it, and a test holds every scrape to it. `tells` is for people who build dashboards: when to look at
it, and what a healthy run looks like.

Series per job are bounded by a constant, whatever the number of ranks and layers: see `ranks` and `layers`.
"""

from dataclasses import dataclass
from typing import Literal

from caboose_daemon.out.metrics.units import unit_of
from caboose_daemon.steps.columns import RANK_COLUMNS

Kind = Literal["gauge", "counter"]
JOB = "training_job"


@dataclass(frozen=True)
class Metric:
    """One metric family."""

    name: str
    """As it is scraped: counters with `_total`."""
    help: str
    tells: str
    labels: tuple[str, ...] = ()
    kind: Kind = "gauge"

    @property
    def unit(self) -> str:
        """What it is counted in."""
        return unit_of(self.name)


@dataclass(frozen=True)
class Section:
    """Metrics that belong together."""

    title: str
    about: str
    entries: tuple[Metric, ...]


def _of_job(name: str, text: str, tells: str, *labels: str, kind: Kind = "gauge") -> Metric:
    return Metric(name, text, tells, (JOB, *labels), kind)


def _counted(name: str, text: str, tells: str, *labels: str) -> Metric:
    return _of_job(name, text, tells, *labels, kind="counter")


JOBS = Section(
    "A job",
    "One series per job, while the daemon knows it.",
    (
        _of_job(
            "caboose_job_info",
            "What the job is; always 1",
            "Join with it to see wrapper, optimizer and precision beside any other metric.",
            "wrapper",
            "optimizer",
            "precision",
        ),
        _of_job("caboose_job_up", "1 while any rank of the job is live", "0 after it ended, failed or fell silent."),
        _of_job(
            "caboose_job_failed", "1 if a rank left with an error", "A crash. The attempt before says what led to it."
        ),
        _of_job(
            "caboose_job_severity",
            "The worst open incident: 0 none, 1 info, 2 warning, 3 critical",
            "Health at a glance, for tables of many jobs.",
        ),
        _of_job("caboose_job_world_ranks", "Ranks the job was started with", "Compare with the live ones."),
        _of_job(
            "caboose_job_live_ranks",
            "Ranks that have not left and were heard within warn_seconds of rank_silent",
            "Below the world: somebody is gone.",
        ),
        _of_job(
            "caboose_job_missing_ranks",
            "Ranks that should speak and do not: silent, failed, or never seen",
            "Above 0 for long: somebody is gone. 0 once all have left, or nobody waits for the job any more.",
        ),
        _of_job("caboose_job_attempt", "Number of the current attempt", "Rises with every restart and rollback."),
        _of_job("caboose_job_step", "Last step that was aligned", "Its rate is steps per second."),
        _counted("caboose_job_steps_total", "Steps aligned since the job was first seen", "Never goes back."),
        _counted(
            "caboose_job_duplicates_refused_total",
            "Other processes that claimed this job's name",
            "Above 0: two launches under one name; give each a CABOOSE_JOB of its own.",
        ),
    ),
)

CURVES = Section(
    "Curves",
    "The last aligned step. A value that is NaN is exported as NaN; alerts use the counters instead.",
    (
        _of_job("caboose_loss", "Training loss over the ranks of the last step", "min and max: their spread.", "stat"),
        _of_job("caboose_learning_rate", "Learning rate of a parameter group", "Should follow the schedule.", "group"),
        _of_job(
            "caboose_gradient_norm",
            "Global L2 norm of the gradient before clipping",
            "The earliest sign of most spikes. Healthy runs fall slowly or stand.",
        ),
        _of_job(
            "caboose_clip_ratio",
            "What the gradient was multiplied by when it was clipped; 1 where it was not",
            "Far below 1 for long: clipping has become the optimizer.",
        ),
        _counted(
            "caboose_clipped_steps_total", "Steps whose gradient was clipped", "Its rate over steps' is the share."
        ),
        _counted(
            "caboose_non_finite_steps_total", "Steps with a NaN or infinite loss or gradient", "Any increase matters."
        ),
        _of_job("caboose_loss_scale", "Loss scale of mixed precision", "Sinking again and again: overflow."),
        _counted("caboose_skipped_steps_total", "Steps the loss scaler skipped", "A few at the start are its search."),
        _of_job(
            "caboose_gradient_noise_ratio",
            "Gradient noise scale over the batch size, from local and averaged norms",
            "About 1 is efficient; far above: the batch is small and noisy, far below: wastefully large.",
        ),
        _of_job("caboose_validation_loss", "Last validation loss", "Rising while training falls: overfitting."),
        _of_job("caboose_validation_step", "Step of the last validation", "How old the validation is."),
        _of_job("caboose_validation_metric", "Last value of a validation metric of the user's", "By its name.", "stat"),
    ),
)

SPEED = Section(
    "Speed",
    "Means over the ranks of the last aligned step.",
    (
        _of_job("caboose_phase_seconds", "Mean over ranks of a phase of the last step", "Where time goes.", "phase"),
        _of_job("caboose_samples_per_second", "Samples of all ranks per second, over the last steps", "Throughput."),
        _of_job("caboose_tokens_per_second", "Tokens of all ranks per second, over the last steps", "Throughput."),
        _of_job(
            "caboose_agent_step_seconds",
            "Mean time the agent took on the training thread, last step",
            "What Caboose itself costs.",
        ),
        _of_job("caboose_agent_overhead_ratio", "The agent's share of a step, over the last steps", "Promised: 0.01."),
    ),
)

LAYER_STATISTICS = {
    "gradient_norm": "gradient norm of a layer, before clipping",
    "weight_norm": "norm of a layer's weights",
    "update_ratio": "size of the last update over that of the weights",
    "activation_std": "standard deviation of a module's output",
    "dead_units_ratio": "share of a module's units that fire for no sample",
    "saturated_units_ratio": "share of a module's units in the flat part of sigmoid or tanh",
}
"""What is known per layer or module, and how it is said."""
LAYER_TELLS = {
    "gradient_norm": "Falling geometrically towards depth 0: vanishing. One layer far above: look there first.",
    "weight_norm": "Should move slowly.",
    "update_ratio": "About 1e-3 is healthy; above 1e-1 too high, below 1e-6 too low a learning rate.",
    "activation_std": "Near 0: collapsed. Growing with depth: badly scaled.",
    "dead_units_ratio": "Above 0.4 is worth a look.",
    "saturated_units_ratio": "High in hidden layers stops gradients there.",
}


def _of_layers() -> tuple[Metric, ...]:
    entries = []
    for name, what in LAYER_STATISTICS.items():
        tells = LAYER_TELLS[name]
        entries += [
            _of_job(f"caboose_layer_{name}", f"Over all layers: {what}", tells, "stat"),
            _of_job(f"caboose_depth_{name}", f"Median in one of 32 parts of the depth: {what}", tells, "depth"),
            _of_job(f"caboose_worst_layer_{name}", f"Of the ten worst layers: {what}", tells, "layer"),
        ]
    return tuple(entries)


LAYERS = Section(
    "Layers",
    "Gradients are those of the last step, the rest of the last closer look. Depth 00 is the input side, 31 the output"
    " side, as the model registers its parameters. A layer enters the worst ten only if it is twice as bad as the one"
    " it replaces, and stays for 15 minutes.",
    _of_layers(),
)

RANKS = Section(
    "Ranks",
    "One series per rank and metric up to 512 ranks. Above that, the ten worst ranks of each, chosen as layers are.",
    (
        *(
            _of_job(column.metric, column.help, column.tells, "rank", "host")
            for column in RANK_COLUMNS
            if column.metric
        ),
        _of_job("caboose_rank_step", "Last step of one rank", "Behind the others: stuck.", "rank", "host"),
        _of_job(
            "caboose_rank_silent_seconds", "Time since one rank was last heard", "Growing: it is gone.", "rank", "host"
        ),
        _of_job("caboose_replicas_compared", "Replicas whose fingerprints were compared last", "Of data parallelism."),
        _of_job("caboose_replicas_differing", "Replicas that differ from the majority", "Must be 0."),
    ),
)

FINDINGS = Section(
    "Findings and incidents",
    "Alerts read `caboose_incident_open`: one cause, one page. An incident stays exported for two minutes at"
    " least, counted from when it opened, was opened again or got worse, so that no scrape misses it.",
    (
        _of_job(
            "caboose_incident_open",
            "1 while an incident is open, 0 while it is acknowledged; `rule` is its lead, fixed when it opened",
            "What alerts read.",
            "rule",
            "severity",
        ),
        _of_job(
            "caboose_incident_info",
            "Where an open incident began and its likely cause; always 1",
            "For annotations: who, where, why.",
            "rule",
            "severity",
            "incident",
            "cause",
            "rank",
            "host",
            "layer",
            "phase",
        ),
        _of_job(
            "caboose_incident_onset_step", "The step an open incident began at", "For links into a run.", "incident"
        ),
        _counted("caboose_incidents_total", "Incidents opened, by lead rule", "How restless a job is.", "rule"),
        _of_job(
            "caboose_finding_open", "1 while a rule's finding is open", "The parts of incidents.", "rule", "severity"
        ),
        _counted(
            "caboose_findings_total",
            "Episodes a rule has opened",
            "By the severity they began with.",
            "rule",
            "severity",
        ),
    ),
)

ROLLBACK = Section(
    "Rollback",
    "What may be done to a run, what it could go back to, and what was done. Snapshots are told of where the run keeps"
    " any, checkpoints where it told of one.",
    (
        _of_job(
            "caboose_rollback_mode",
            "0 off, 1 advise, 2 auto, by whom: `job` is what its owner allows, `daemon` what the daemon does,"
            " `effective` the lower of the two",
            "A run that should be guarded stands at 2 in all three.",
            "stat",
        ),
        _counted(
            "caboose_decisions_total",
            "Decisions by `action` and, as `reason`, what became of them; counted when they got there",
            "committed: all ranks did it. failed: they agreed and could not, and the run stopped. advised: it would"
            " have been done.",
            "action",
            "reason",
        ),
        _of_job(
            "caboose_rollback_budget_left",
            "Rollbacks that may still be made today, by both sides' count",
            "0: the next trouble calls people.",
        ),
        _of_job("caboose_rollback_cooldown_steps", "Steps until a rollback is allowed again", "0: it is."),
        _of_job(
            "caboose_rollback_exhausted",
            "1 while nothing is left to try: the budget is spent, or there is nothing to go back to",
            "The run goes on as it is, or was stopped; either way it needs a person.",
        ),
        _counted(
            "caboose_rollback_lost_steps_total", "Steps whose work rollbacks have undone", "What the cures have cost."
        ),
        _of_job(
            "caboose_rollback_seconds",
            "How long the last rollback held up the slowest rank's training",
            "About what copying a snapshot takes.",
        ),
        _of_job(
            "caboose_model_step",
            "Updates that are in the weights of the last step",
            "Falls behind caboose_job_step by what rollbacks undid.",
        ),
        _of_job(
            "caboose_snapshots_ready",
            "Snapshots that every rank holds, out of quarantine and untainted",
            "0 with auto in force: there is nothing in memory to go back to.",
        ),
        _of_job(
            "caboose_snapshot_age_steps",
            "Steps since the newest snapshot that could be gone back to",
            "What a rollback would cost now, at least.",
        ),
        _of_job("caboose_snapshot_every_steps", "The cadence of snapshots in force", "Rises when they cost too much."),
        _of_job(
            "caboose_snapshot_size_bytes", "Of one snapshot, on the rank with the largest", "Host memory per slot."
        ),
        _of_job(
            "caboose_snapshot_seconds",
            "What the last snapshot took on the training thread of the slowest rank",
            "Divide by the cadence: its cost per step.",
        ),
        _of_job(
            "caboose_checkpoints",
            "Checkpoints on disk that are known, by health",
            "tainted ones were saved in or just before trouble: do not resume from them.",
            "stat",
        ),
        _of_job(
            "caboose_checkpoint_step",
            "Step of the newest checkpoint, of the newest healthy one, and of the best by validation",
            "healthy is where a restart would resume from.",
            "stat",
        ),
        _counted(
            "caboose_skipped_updates_total",
            "Updates that skip_step has left out since attach",
            "A few are what it is for; many: the data or the learning rate.",
        ),
    ),
)

SIGHT = Section(
    "What is not seen",
    "Blindness is a state that is shown, never a zero.",
    (
        _of_job("caboose_blind", "1 for each thing the agent cannot see", "The job's page says why.", "stat"),
        _of_job("caboose_rules_abstaining", "Rules that cannot judge this job", "`caboose rules` says what they miss."),
        _of_job("caboose_layers_unseen", "Layers whose gradient nobody looked at in the last step", "Should be 0."),
        _counted("caboose_reports_late_total", "Reports that came after their step had closed", "A slow link."),
        _counted("caboose_steps_incomplete_total", "Steps that closed without all ranks", "Somebody is slow or gone."),
        _counted("caboose_reports_missed_total", "Reports that never arrived, by gaps in sequence numbers", "Losses."),
        _counted(
            "caboose_reports_dropped_total", "Reports the agents dropped, their queue being full", "Too slow a link."
        ),
        _of_job(
            "caboose_names_hidden",
            "Groups, metrics, hosts, incidents and the like without series, because there are too many",
            "Must be 0. A job names things anew without end: see its page.",
        ),
        _of_job("caboose_agents_disabled", "Ranks whose agent has switched itself off after failures", "Must be 0."),
    ),
)

DAEMON = Section(
    "The daemon itself",
    "Without a job's label.",
    (
        Metric("caboose_daemon_info", "The daemon's version; always 1", "What runs where.", ("version",)),
        Metric("caboose_daemon_start_time_seconds", "Unix time at which the daemon started", "Restarts."),
        Metric("caboose_jobs_known", "Jobs in memory", "At most 1000."),
        Metric("caboose_jobs_hidden", "Jobs without series, because there are too many", "Must be 0."),
        Metric("caboose_peers_connected", "Ranks that are introduced to the daemon", "All ranks of all running jobs."),
        Metric("caboose_received_bytes_total", "Bytes received from agents", "Its rate is the ingest.", kind="counter"),
        Metric(
            "caboose_messages_received_total", "Messages accepted from agents, by type", "Ingest.", ("type",), "counter"
        ),
        Metric(
            "caboose_messages_refused_total",
            "Messages and peers refused, by reason",
            "Should not grow.",
            ("reason",),
            "counter",
        ),
        Metric("caboose_loop_turn_seconds", "How long the last turn of the receiving loop took", "Below a second."),
        Metric("caboose_loop_lag_seconds", "Age of the report that was judged last, when it was", "Growing: overload."),
        Metric("caboose_rule_seconds_total", "Time spent in each rule", "Which rule is dear.", ("rule",), "counter"),
        Metric("caboose_rule_runs_total", "Times each rule was run", "Divide by it.", ("rule",), "counter"),
        Metric("caboose_rule_failures_total", "Times each rule raised", "Must not grow: a bug.", ("rule",), "counter"),
        Metric("caboose_journal_size_bytes", "Size of the journal", "Bounded by retention."),
        Metric("caboose_journal_writable", "1 while the journal can be written", "0: the disk is full, or gone."),
        Metric("caboose_journal_failures_total", "Failed writes to the journal", "Must not grow.", kind="counter"),
        Metric("caboose_journal_lost_rows_total", "Rows given up by the journal", "History has holes.", kind="counter"),
        Metric(
            "caboose_exports_total",
            "Steps, events and incidents handed to Grafana or a mirror",
            "Standing while jobs run: a mirror hangs.",
            ("target",),
            "counter",
        ),
        Metric(
            "caboose_exports_dropped_total",
            "What was given up because Grafana or a mirror was too slow",
            "The mirrored curves have holes; nothing else has.",
            ("target",),
            "counter",
        ),
        Metric(
            "caboose_export_failures_total",
            "Times Grafana or a mirror failed to take something",
            "The daemon's log says why, once.",
            ("target",),
            "counter",
        ),
        Metric(
            "caboose_scrape_seconds",
            "Time the scrape before this one took, from the question until the answer was sent",
            "Below 0.15 for one job. Prometheus gives up after its scrape_timeout.",
        ),
    ),
)

SECTIONS = (JOBS, CURVES, FINDINGS, ROLLBACK, LAYERS, RANKS, SPEED, SIGHT, DAEMON)
ENTRIES = {entry.name: entry for section in SECTIONS for entry in section.entries}
