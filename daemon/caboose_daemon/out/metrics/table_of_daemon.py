"""The metrics of the daemon itself."""

from caboose_daemon.out.metrics.metric import Metric, Section

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
