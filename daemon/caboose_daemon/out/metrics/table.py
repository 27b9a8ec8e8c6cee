"""Every metric by name: its type, unit, labels, help, and how to read it.

Design
------
The only place where a metric name is defined. Families and docs are generated from it, alerts and dashboards are
checked against it, and a test compares every scrape with it. `tells` is for people who read dashboards: what is normal
and what is not.

The number of series per job has a constant limit, whatever the number of ranks and layers: see `ranks` and `layers`.
"""

from dataclasses import dataclass
from typing import Literal

from caboose_daemon.out.metrics.units import unit_of
from caboose_daemon.steps.columns import PART_COLUMNS, RANK_COLUMNS

Kind = Literal["gauge", "counter"]
JOB = "training_job"


@dataclass(frozen=True)
class Metric:
    """One metric family."""

    name: str
    """As scraped: counters end in `_total`."""
    help: str
    tells: str
    labels: tuple[str, ...] = ()
    kind: Kind = "gauge"

    @property
    def unit(self) -> str:
        return unit_of(self.name)


@dataclass(frozen=True)
class Section:
    """A group of metrics, one section of docs/metrics.md."""

    title: str
    about: str
    entries: tuple[Metric, ...]


def _of_job(name: str, text: str, tells: str, *labels: str, kind: Kind = "gauge") -> Metric:
    return Metric(name, text, tells, (JOB, *labels), kind)


def _counted(name: str, text: str, tells: str, *labels: str) -> Metric:
    return _of_job(name, text, tells, *labels, kind="counter")


JOBS = Section(
    "Jobs",
    "One series per job, as long as the daemon knows it.",
    (
        _of_job(
            "caboose_job_info",
            "Wrapper, optimizer and precision of the job, as labels; the value is always 1",
            "Join it with other metrics to show these labels.",
            "wrapper",
            "optimizer",
            "precision",
        ),
        _of_job(
            "caboose_job_up",
            "1 while at least one rank is live, 0 otherwise",
            "0 after the job has ended, failed or gone silent.",
        ),
        _of_job("caboose_job_failed", "1 if a rank exited with an error, 0 otherwise", "0 is normal. 1 is a crash."),
        _of_job(
            "caboose_job_severity",
            "Severity of the worst open incident: 0 none, 1 info, 2 warning, 3 critical",
            "0 is healthy.",
        ),
        _of_job(
            "caboose_job_world_ranks",
            "Number of ranks the job was started with",
            "Compare it with caboose_job_live_ranks.",
        ),
        _of_job(
            "caboose_job_live_ranks",
            "Ranks that have not exited and reported within warn_seconds of the rule rank_silent",
            "All ranks is normal. Fewer: a rank is gone.",
        ),
        _of_job(
            "caboose_job_missing_ranks",
            "Ranks that should report and do not: silent, failed, or never seen",
            "0 is normal, also after the end of the job. Above 0 for long: a rank is gone.",
        ),
        _of_job("caboose_job_attempt", "Number of the current attempt", "Rises with every restart and rollback."),
        _of_job(
            "caboose_job_step", "Last aligned step", "Rises steadily. It falls when an older checkpoint is resumed."
        ),
        _counted(
            "caboose_job_steps_total",
            "Steps aligned since the job was first seen",
            "Its rate is steps per second. A rate of 0 while the job runs is a stall.",
        ),
        _of_job(
            "caboose_job_quarantined",
            "1 while the job is not judged, because the daemon failed on it repeatedly",
            "0 is normal. 1: no rule watches this job. The log of the daemon has the reason.",
        ),
        _counted(
            "caboose_job_duplicates_refused_total",
            "Processes of other launches that claimed this job's name and were refused, because 99 runs have it",
            "0 is normal. Above 0: two launches use one name; give each its own CABOOSE_JOB.",
        ),
    ),
)

CURVES = Section(
    "Curves",
    "Values of the last aligned step. NaN is exported as NaN; alerts use the counters instead.",
    (
        _of_job(
            "caboose_loss",
            "Training loss of the last step over the ranks: mean, min and max",
            "A slow fall is normal. A large gap between min and max: one rank differs.",
            "stat",
        ),
        _of_job(
            "caboose_learning_rate",
            "Learning rate of a parameter group",
            "Follows the schedule. A jump outside the schedule is a fault.",
            "group",
        ),
        _of_job(
            "caboose_gradient_norm",
            "Global L2 norm of the gradient before clipping",
            "Stable or slowly falling is normal. A rise is the earliest sign of most spikes.",
        ),
        *(_of_job(column.metric, column.help, column.tells, "part") for column in PART_COLUMNS),
        _of_job(
            "caboose_clip_ratio",
            "Factor the gradient was multiplied by when it was clipped; 1 without clipping",
            "Near 1 is normal. Far below 1 for long: the clipping bound, not the learning rate, sets the step size.",
        ),
        _counted(
            "caboose_clipped_steps_total",
            "Steps whose gradient was clipped",
            "Divide its rate by that of caboose_job_steps_total to get the share of clipped steps.",
        ),
        _counted("caboose_non_finite_steps_total", "Steps with a NaN or infinite loss or gradient", "Must not rise."),
        _of_job(
            "caboose_loss_scale",
            "Loss scale of mixed precision",
            "One halving now and then is normal. Repeated halvings mean overflow.",
        ),
        _counted(
            "caboose_skipped_steps_total",
            "Steps the loss scaler skipped",
            "A few at the start are normal: the scaler searches for its scale.",
        ),
        _of_job(
            "caboose_gradient_noise_ratio",
            "Gradient noise scale divided by the batch size, from local and averaged norms",
            "About 1 is efficient. Far above 1: the batch is too small. Far below 1: the batch is wastefully large.",
        ),
        _of_job(
            "caboose_validation_loss",
            "Last validation loss",
            "Falls with the training loss in a healthy run. Rising while training falls: overfitting.",
        ),
        _of_job("caboose_validation_step", "Step of the last validation", "Shows how old the validation is."),
        _of_job(
            "caboose_validation_metric",
            "Last value of a validation metric that the user reports, by name",
            "What is normal depends on the metric.",
            "stat",
        ),
    ),
)

SPEED = Section(
    "Speed",
    "Means over the ranks of the last aligned step.",
    (
        _of_job(
            "caboose_phase_seconds",
            "Mean duration of a phase of the last step, over the ranks",
            "Shows where the time of a step goes. Stable is normal.",
            "phase",
        ),
        _of_job(
            "caboose_samples_per_second",
            "Samples of all ranks per second, over the last steps",
            "Stable is normal. A lasting fall is a slowdown.",
        ),
        _of_job(
            "caboose_tokens_per_second",
            "Tokens of all ranks per second, over the last steps",
            "Stable is normal. A lasting fall is a slowdown.",
        ),
        _of_job(
            "caboose_agent_step_seconds",
            "Mean time the agent took on the training thread in the last step",
            "Below 1 % of the step time is normal.",
        ),
        _of_job(
            "caboose_agent_overhead_ratio",
            "Share of the step time that the agent takes, over the last steps",
            "Below 0.01 is normal: that is the default limit.",
        ),
    ),
)

LAYER_STATISTICS = {
    "gradient_norm": "gradient norm before clipping",
    "weight_norm": "norm of the weights",
    "update_ratio": "size of the last update divided by the size of the weights",
    "activation_std": "standard deviation of the output of a module",
    "dead_units_ratio": "share of units whose output is 0 for every sample",
    "saturated_units_ratio": "share of units on the flat ends of sigmoid or tanh",
}
"""The statistics per layer or module, and their description."""
LAYER_TELLS = {
    "gradient_norm": "A steady fall towards depth 00: vanishing. One layer far above the others: start there.",
    "weight_norm": "Slow changes are normal.",
    "update_ratio": "About 1e-3 is normal. Above 1e-1 the learning rate is too high, below 1e-6 too low.",
    "activation_std": "Stable is normal. Near 0: collapsed. Growing with depth: badly scaled.",
    "dead_units_ratio": "Below 0.4 is normal.",
    "saturated_units_ratio": "High values in hidden layers block the gradients there.",
}


def _of_layers() -> tuple[Metric, ...]:
    entries = []
    for name, what in LAYER_STATISTICS.items():
        tells = LAYER_TELLS[name]
        entries += [
            _of_job(f"caboose_layer_{name}", f"Min, median and max over all layers: {what}", tells, "stat"),
            _of_job(f"caboose_depth_{name}", f"Median per depth, in 32 parts: {what}", tells, "depth"),
            _of_job(f"caboose_worst_layer_{name}", f"The ten worst layers by name: {what}", tells, "layer"),
        ]
    return tuple(entries)


LAYERS = Section(
    "Layers",
    "Gradients are those of the last step; the rest comes from the last sample. Depth 00 is the input side, 31 the"
    " output side, in the order in which the model registers its parameters. A layer enters the ten worst only if it is"
    " twice as bad as the one it replaces, and then stays for 15 minutes.",
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
        _of_job(
            "caboose_rank_step",
            "Last step of one rank",
            "Equal on all ranks is normal. Behind the others: the rank is stuck.",
            "rank",
            "host",
        ),
        _of_job(
            "caboose_rank_silent_seconds",
            "Time since the last message of one rank",
            "Below 10 s is normal. Growing: the rank is gone.",
            "rank",
            "host",
        ),
        _of_job(
            "caboose_replicas_compared",
            "Replicas whose fingerprints were compared last",
            "Normal is the number of data-parallel replicas.",
        ),
        _of_job("caboose_replicas_differing", "Replicas that differ from the majority", "Must be 0."),
    ),
)

FINDINGS = Section(
    "Findings and incidents",
    "Alerts read `caboose_incident_open`: one cause, one page. An incident is exported for at least two minutes after"
    " it opened, reopened or got worse, so that no scrape misses it.",
    (
        _of_job(
            "caboose_incident_open",
            "1 while an incident is open, 0 while it is acknowledged; `rule` is its lead rule, fixed when it opened",
            "Alerts read this metric.",
            "rule",
            "severity",
        ),
        _of_job(
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
        _of_job(
            "caboose_incident_onset_step",
            "Step at which an open incident began",
            "Use it to find the incident on the curves.",
            "incident",
        ),
        _counted(
            "caboose_incidents_total",
            "Incidents opened, by lead rule",
            "A count that keeps rising points to an unstable job.",
            "rule",
        ),
        _of_job(
            "caboose_finding_open",
            "1 while a rule has an open finding",
            "Incidents consist of findings.",
            "rule",
            "severity",
        ),
        _counted(
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
        _of_job(
            "caboose_rollback_mode",
            "Rollback mode: 0 off, 1 advise, 2 auto; `job` is what the owner of the job allows, `daemon` what"
            " the daemon allows, `effective` the lower of the two",
            "2 in all three: the run is rolled back automatically.",
            "stat",
        ),
        _counted(
            "caboose_decisions_total",
            "Decisions by `action` and outcome (label `reason`), counted when the outcome is known",
            "committed: all ranks did it. failed: the ranks accepted it and could not do it, and the run"
            " stopped. advised: it was only proposed.",
            "action",
            "reason",
        ),
        _of_job(
            "caboose_rollback_budget_left",
            "Rollbacks still allowed today, by the counts of job and daemon",
            "At 0 the next failure needs a person.",
        ),
        _of_job(
            "caboose_rollback_cooldown_steps",
            "Steps until the next rollback is allowed",
            "0: a rollback is allowed now.",
        ),
        _of_job(
            "caboose_rollback_exhausted",
            "1 while no rollback is left to try: the budget is used, or there is nothing to go back to",
            "Must be 0. At 1 the run continues broken, or was stopped, and needs a person.",
        ),
        _counted("caboose_rollback_lost_steps_total", "Steps undone by rollbacks", "The cost of all rollbacks so far."),
        _of_job(
            "caboose_rollback_seconds",
            "Time for which the last rollback held up the training, on the slowest rank",
            "About the time to copy one snapshot is normal.",
        ),
        _of_job(
            "caboose_model_step",
            "Updates contained in the weights of the last step",
            "Equal to caboose_job_step without rollbacks, and lower by the steps that rollbacks undid.",
        ),
        _of_job(
            "caboose_snapshots_ready",
            "Untainted snapshots that every rank holds, out of quarantine",
            "At least 1 is normal. 0 with rollback on auto: no snapshot to go back to.",
        ),
        _of_job(
            "caboose_snapshot_age_steps",
            "Steps since the newest usable snapshot",
            "The minimum cost of a rollback now.",
        ),
        _of_job(
            "caboose_snapshot_every_steps", "Current interval between snapshots", "Rises when snapshots cost too much."
        ),
        _of_job(
            "caboose_snapshot_size_bytes",
            "Size of one snapshot, on the rank with the largest",
            "Host memory needed per slot.",
        ),
        _of_job(
            "caboose_snapshot_seconds",
            "Time the last snapshot took on the training thread, on the slowest rank",
            "Divide it by caboose_snapshot_every_steps to get the cost per step.",
        ),
        _of_job(
            "caboose_checkpoints",
            "Known checkpoints on disk, by health",
            "Tainted ones were saved during or just before a failure: do not resume from them.",
            "stat",
        ),
        _of_job(
            "caboose_checkpoint_step",
            "Step of the newest checkpoint, of the newest healthy one, and of the best by validation",
            "A restart resumes from the healthy one.",
            "stat",
        ),
        _counted(
            "caboose_skipped_updates_total",
            "Updates that skip_step left out since attach",
            "A few are normal. Many: check the data or the learning rate.",
        ),
    ),
)

SIGHT = Section(
    "Blind spots and lost reports",
    "A quantity that Caboose cannot see is never exported as 0.",
    (
        _of_job(
            "caboose_blind",
            "1 for each quantity the agent cannot see",
            "No series is normal. The page of the job gives the reason.",
            "stat",
        ),
        _of_job(
            "caboose_rules_abstaining", "Rules that cannot judge this job", "`caboose rules` lists what they need."
        ),
        _of_job("caboose_layers_unseen", "Layers whose gradient was not measured in the last step", "0 is normal."),
        _counted(
            "caboose_reports_late_total",
            "Reports that arrived after their step was closed",
            "0 is normal. A rise: a slow network.",
        ),
        _counted(
            "caboose_steps_incomplete_total",
            "Steps closed without a report from every rank",
            "0 is normal. A rise: a rank is slow or gone.",
        ),
        _counted(
            "caboose_reports_missed_total",
            "Reports that never arrived, counted by gaps in sequence numbers",
            "0 is normal. A rise: reports are lost.",
        ),
        _counted(
            "caboose_reports_dropped_total",
            "Reports that agents dropped because their queue was full",
            "0 is normal. A rise: the daemon or the network is too slow.",
        ),
        _of_job(
            "caboose_names_hidden",
            "Groups, metrics, hosts, incidents and other names without series, because there are too many",
            "Must be 0. Above 0: the job keeps creating new names; see its page.",
        ),
        _of_job("caboose_agents_disabled", "Ranks whose agent turned itself off after failures", "Must be 0."),
    ),
)

DAEMON = Section(
    "The daemon",
    "Without the label `training_job`.",
    (
        Metric(
            "caboose_daemon_info",
            "Version of the daemon, as a label; the value is always 1",
            "Shows which version runs where.",
            ("version",),
        ),
        Metric("caboose_daemon_start_time_seconds", "Unix time at which the daemon started", "A change is a restart."),
        Metric("caboose_jobs_known", "Jobs in memory", "At most 1,000."),
        Metric(
            "caboose_jobs_hidden",
            "Jobs without series, because a daemon exports at most 256",
            "Must be 0: no alert can fire for a hidden job.",
        ),
        Metric(
            "caboose_peers_connected",
            "Ranks that are registered with the daemon",
            "All ranks of all running jobs is normal.",
        ),
        Metric(
            "caboose_received_bytes_total",
            "Bytes received from agents",
            "Its rate is the ingest. Steady while jobs run is normal.",
            kind="counter",
        ),
        Metric(
            "caboose_messages_received_total",
            "Messages accepted from agents, by type",
            "Its rate is steady while jobs run.",
            ("type",),
            "counter",
        ),
        Metric(
            "caboose_messages_refused_total",
            "Messages and peers refused, by reason",
            "Should not rise.",
            ("reason",),
            "counter",
        ),
        Metric(
            "caboose_internal_errors_total",
            "Exceptions that the daemon caught while it processed messages and jobs, by stage",
            "Must not rise: each one is a bug. The log of the daemon has the first of each kind.",
            ("stage",),
            "counter",
        ),
        Metric("caboose_loop_turn_seconds", "Duration of the last turn of the receiving loop", "Below 1 s is normal."),
        Metric(
            "caboose_loop_lag_seconds",
            "Age of the last report when it was judged, of the job with the largest",
            "Stable is normal. Growing: the daemon is overloaded.",
        ),
        Metric(
            "caboose_rule_seconds_total",
            "Time spent in each rule",
            "Its rate is the share of one core that the rule takes.",
            ("rule",),
            "counter",
        ),
        Metric(
            "caboose_rule_runs_total",
            "Runs of each rule",
            "Divide caboose_rule_seconds_total by it to get the time per run.",
            ("rule",),
            "counter",
        ),
        Metric(
            "caboose_rule_failures_total",
            "Exceptions raised by each rule",
            "Must not rise: each one is a bug.",
            ("rule",),
            "counter",
        ),
        Metric("caboose_journal_size_bytes", "Size of the journal", "Limited by the retention settings."),
        Metric(
            "caboose_journal_writable",
            "1 while the journal can be written, 0 otherwise",
            "Must be 1. 0: the disk is full or gone.",
        ),
        Metric("caboose_journal_failures_total", "Failed writes to the journal", "Must not rise.", kind="counter"),
        Metric(
            "caboose_journal_lost_rows_total",
            "Rows dropped by the journal",
            "Must not rise: the history then has gaps.",
            kind="counter",
        ),
        Metric(
            "caboose_journal_refused_rows_total",
            "Rows not written because they could not be read again",
            "Must not rise: each one is a bug, or a report that no agent sends.",
            kind="counter",
        ),
        Metric(
            "caboose_journal_quarantined_rows",
            "Rows set aside at a start because they could not be read",
            "0 is normal. Otherwise the journal was damaged or changed by hand; the table quarantine has the rows.",
        ),
        Metric(
            "caboose_http_connections_dropped_total",
            "HTTP connections closed, by reason",
            "0 is normal. Otherwise a client opens too many connections, or sends or reads too slowly.",
            ("reason",),
            "counter",
        ),
        Metric(
            "caboose_exports_total",
            "Steps, events and incidents exported to Grafana or a mirror",
            "Rises while jobs run. If it stops, the target hangs.",
            ("target",),
            "counter",
        ),
        Metric(
            "caboose_exports_dropped_total",
            "Items dropped because Grafana or a mirror was too slow",
            "0 is normal. Otherwise the data at the target has gaps; nothing else is affected.",
            ("target",),
            "counter",
        ),
        Metric(
            "caboose_export_failures_total",
            "Failed exports to Grafana or a mirror",
            "0 is normal. The log of the daemon has the reason, once.",
            ("target",),
            "counter",
        ),
        Metric(
            "caboose_scrape_seconds",
            "Duration of the previous scrape, from the request until the answer was sent",
            "Below 0.15 s is normal for one job. Above the scrape_timeout of Prometheus a scrape fails.",
        ),
    ),
)

SECTIONS = (JOBS, CURVES, FINDINGS, ROLLBACK, LAYERS, RANKS, SPEED, SIGHT, DAEMON)
ENTRIES = {entry.name: entry for section in SECTIONS for entry in section.entries}
