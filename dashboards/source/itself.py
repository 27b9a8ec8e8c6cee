"""Caboose itself: is it working? Ingest, rules, journal, exports, cost and losses of the agents."""

from grafana_foundation_sdk.builders import dashboard as build

from caboose_daemon.out.metrics.metric import JOB
from dashboards.source.board import board, daemons
from dashboards.source.look import NOTED, PAGED, WARNED, YES_IS_GOOD
from dashboards.source.panels import Column, Curve, Panel, curves, number, table
from dashboards.source.queries import ANY_JOB, gauge, increase, rate, select

SCRAPE_SECONDS = 0.15
TURN_SECONDS = 1.0
OVERHEAD = 0.01
"""Limits on a scrape, on a turn of the receiving loop, and on the agent's share of a step."""
DAEMON = "{{instance}}"


def itself() -> build.Dashboard:
    return board(
        "itself",
        "Caboose itself",
        "Health of Caboose: does it receive all ranks, keep up, run its rules, and write its journal?",
        [
            ("Now", _now()),
            ("Ingest", _ingest()),
            ("Rules", _rules()),
            ("Journal and exports", _journal()),
            ("Agents", _agents()),
        ],
        jobs="many",
        extra=[daemons()],
        since="now-12h",
        refresh="1m",
    )


def _now() -> list[Panel]:
    up_for = f"time() - {gauge('caboose_daemon_start_time_seconds')}"
    return [
        number(
            "Running daemons",
            f"count({select('caboose_daemon_info')})",
            unit="none",
            about="Daemons that Prometheus scrapes. Fewer than usual: a daemon is down.",
            rules=("CabooseDown", "CabooseAbsent", "CabooseWatchdog"),
        ),
        number(
            "Shortest daemon uptime",
            up_for,
            unit="s",
            about="Uptime of the daemon that started last. It falls to 0 when a daemon restarts.",
            rules=("CabooseRestarting",),
        ),
        number(
            "Journal writable",
            gauge("caboose_journal_writable", operator="min"),
            unit="none",
            mappings=YES_IS_GOOD,
            rules=("CabooseJournalUnwritable",),
        ),
        number(
            "Hidden jobs",
            gauge("caboose_jobs_hidden", operator="sum"),
            unit="none",
            steps=((1, WARNED),),
            rules=("CabooseJobsHidden",),
        ),
        number(
            "Rule failures, last hour",
            increase("caboose_rule_failures_total", window="1h"),
            unit="none",
            about="Exceptions raised by rules in the last hour. 0 is normal: each one is a bug.",
            decimals=0,
            steps=((1, PAGED),),
            rules=("CabooseRuleFailing",),
        ),
        number(
            "Disabled agents",
            f"sum({gauge('caboose_agents_disabled', JOB, job=ANY_JOB)})",
            unit="none",
            steps=((1, WARNED),),
            rules=("CabooseJobUnwatched", "monitor_blind"),
        ),
        table(
            "Daemon overview",
            {
                "instance": Column("daemon"),
                "version": Column("version"),
                "info": Column("", f"max by (instance, version) ({select('caboose_daemon_info')})", width=40),
                "jobs": Column("jobs known", gauge("caboose_jobs_known", "instance"), steps=((900, WARNED),)),
                "peers": Column("ranks connected", gauge("caboose_peers_connected", "instance")),
                "journal": Column("journal", gauge("caboose_journal_size_bytes", "instance"), "bytes"),
                "scrape": Column(
                    "scrape", gauge("caboose_scrape_seconds", "instance"), "s", steps=((SCRAPE_SECONDS, WARNED),)
                ),
            },
            about="One row per daemon: version, jobs, ranks, journal size and scrape time. Coloured cells are above"
            " their limit.",
            size=(24, 5),
        ),
    ]


def _ingest() -> list[Panel]:
    return [
        curves(
            "Ingest rate",
            Curve(rate("caboose_received_bytes_total", "instance"), DAEMON),
            unit="Bps",
            about="Bytes per second received from agents. Steady while jobs run is normal; 0 means that no agent"
            " reports.",
            size=(8, 8),
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Messages by type",
            Curve(rate("caboose_messages_received_total", "type"), "{{type}}"),
            unit="short",
            log=10,
            size=(8, 8),
            is_open_ended=True,
            about="Messages accepted per second, by type. Steady while jobs run is normal.",
        ),
        curves(
            "Refused messages",
            Curve(rate("caboose_messages_refused_total", "reason"), "{{reason}}"),
            Curve(rate("caboose_http_connections_dropped_total", "reason"), "HTTP: {{reason}}"),
            Curve(rate("caboose_relay_messages_dropped_total"), "dropped by relays"),
            Curve(rate("caboose_job_throttled_messages_total", JOB, job=ANY_JOB), "throttled: {{training_job}}"),
            unit="short",
            size=(8, 8),
            is_open_ended=True,
            least=0,
            about="Messages refused and HTTP connections dropped per second, by reason. 0 is normal.",
            rules=("CabooseMessagesRefused", "CabooseRelayDropping"),
        ),
        curves(
            "Caught errors, jobs in quarantine",
            Curve(rate("caboose_internal_errors_total", "stage"), "{{stage}}"),
            Curve(gauge("caboose_job_quarantined", operator="sum"), "jobs in quarantine"),
            unit="short",
            size=(8, 8),
            is_open_ended=True,
            least=0,
            about="Exceptions that the daemon caught per second, by stage, and jobs that it does not judge for that"
            " reason. 0 is normal; each exception is a bug.",
            rules=("CabooseJobQuarantined",),
        ),
        curves(
            "Connected ranks, known jobs",
            Curve(gauge("caboose_peers_connected", operator="sum"), "ranks"),
            Curve(gauge("caboose_relay_ranks", operator="sum"), "of them behind relays"),
            Curve(gauge("caboose_relays_connected", operator="sum"), "relays"),
            Curve(gauge("caboose_jobs_known", operator="sum"), "jobs"),
            unit="none",
            about="Ranks registered with the daemons, relays, and jobs in memory. A sudden fall of ranks: a job ended"
            " or lost its connection.",
            size=(8, 8),
            least=0,
        ),
        curves(
            "Loop lag and duration",
            Curve(gauge("caboose_loop_lag_seconds"), "age of the last judged report"),
            Curve(gauge("caboose_loop_behind_seconds"), "behind its mailbox"),
            Curve(gauge("caboose_loop_turn_seconds"), "duration of a turn"),
            Curve(gauge("caboose_relay_buffered_seconds"), "oldest message in a relay"),
            unit="s",
            about="Age of the last judged report, and duration of one turn of the loop. Turns below 1 s are normal; a"
            " growing age means overload.",
            steps=((TURN_SECONDS, WARNED),),
            size=(8, 8),
            least=0,
            rules=("CabooseLoopLagging", "CabooseLoopSlow"),
        ),
        curves(
            "Scrape duration",
            Curve(gauge("caboose_scrape_seconds", "instance"), DAEMON),
            unit="s",
            steps=((SCRAPE_SECONDS, WARNED),),
            size=(8, 8),
            is_open_ended=True,
            least=0,
            rules=("CabooseScrapeSlow",),
        ),
    ]


def _rules() -> list[Panel]:
    runs = rate("caboose_rule_runs_total", "rule")
    spent = rate("caboose_rule_seconds_total", "rule")
    return [
        curves(
            "CPU share by rule",
            Curve(f"topk(10, {spent})", "{{rule}}"),
            unit="percentunit",
            about="Share of one core that each rule takes, the ten most expensive. A sum below 50 % is normal.",
            is_open_ended=True,
            least=0,
            rules=("CabooseRulesSlow",),
        ),
        curves(
            "Time per rule run",
            Curve(f"topk(10, {spent} / ({runs} > 0))", "{{rule}}"),
            unit="s",
            about="Mean time of one run of each rule, the ten slowest. Stable is normal.",
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Rule failures",
            Curve(increase("caboose_rule_failures_total", "rule"), "{{rule}}"),
            unit="none",
            steps=((1, PAGED),),
            is_open_ended=True,
            is_counted=True,
            least=0,
            rules=("CabooseRuleFailing",),
        ),
        curves(
            "Findings by rule",
            Curve(f"sum by (rule) ({select('caboose_findings_total', job=ANY_JOB)})", "{{rule}}"),
            unit="none",
            about="Episodes that each rule has opened since each job was first seen. A line that climbs all day: the"
            " thresholds of the rule may need tuning.",
            is_open_ended=True,
            least=0,
        ),
    ]


def _journal() -> list[Panel]:
    return [
        curves(
            "Journal size",
            Curve(gauge("caboose_journal_size_bytes", "instance"), DAEMON),
            unit="bytes",
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Journal failures",
            Curve(increase("caboose_journal_failures_total"), "failed writes"),
            Curve(increase("caboose_journal_lost_rows_total"), "rows dropped"),
            Curve(increase("caboose_journal_refused_rows_total"), "rows refused"),
            Curve(gauge("caboose_journal_quarantined_rows", operator="sum"), "rows set aside"),
            Curve(gauge("caboose_store_backlog_rows", operator="sum"), "rows that PostgreSQL lacks"),
            unit="none",
            about="Failed writes to the journal, rows dropped, refused or set aside, and rows that the common"
            " PostgreSQL does not have yet. 0 is normal; a row dropped, refused or set aside is a gap in the history.",
            steps=((1, PAGED),),
            is_counted=True,
            least=0,
            rules=("CabooseJournalLosingRows", "CabooseJournalUnwritable"),
        ),
        curves(
            "Exported items",
            Curve(rate("caboose_exports_total", "target"), "{{target}}"),
            unit="short",
            about="Items exported per second to Grafana and the mirrors. Steady while jobs run is normal.",
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Failed and dropped exports",
            Curve(increase("caboose_exports_dropped_total", "target"), "dropped: {{target}}"),
            Curve(increase("caboose_export_failures_total", "target"), "failed: {{target}}"),
            unit="none",
            about="Exports that failed or were dropped. 0 is normal; otherwise only the data at that target has gaps.",
            steps=((1, WARNED),),
            is_counted=True,
            least=0,
            rules=("CabooseExportsFailing",),
        ),
    ]


def _agents() -> list[Panel]:
    name = f"{{{{{JOB}}}}}"
    return [
        curves(
            "Agent overhead",
            Curve(gauge("caboose_agent_overhead_ratio", JOB, job=ANY_JOB), name),
            unit="percentunit",
            steps=((OVERHEAD, WARNED),),
            size=(8, 8),
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Agent time per step",
            Curve(gauge("caboose_agent_step_seconds", JOB, job=ANY_JOB), name),
            unit="s",
            size=(8, 8),
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Lost reports",
            Curve(increase("caboose_reports_missed_total", JOB, job=ANY_JOB), name),
            unit="none",
            steps=((1, WARNED),),
            size=(8, 8),
            is_open_ended=True,
            is_counted=True,
            least=0,
            rules=("CabooseReportsLost",),
        ),
        table(
            "Blind spots",
            {
                JOB: Column("job"),
                "stat": Column("cannot see"),
                "value": Column("", gauge("caboose_blind", JOB, "stat", job=ANY_JOB), width=40),
            },
            about="Quantities that the agents of each job cannot see; the rules that need them abstain. None is"
            " normal.",
            rules=("monitor_blind", "CabooseJobBlind", "config_advice"),
            size=(12, 7),
            none="no blind spots",
        ),
        table(
            "Abstaining rules",
            {
                JOB: Column("job"),
                "value": Column("rules", gauge("caboose_rules_abstaining", JOB, job=ANY_JOB), steps=((10, NOTED),)),
            },
            size=(12, 7),
        ),
    ]
