"""Caboose itself: can its silence be believed? Ingest, rules, journal, and what the agents cost and lose."""

from grafana_foundation_sdk.builders import dashboard as build

from caboose_daemon.out.metrics.table import JOB
from dashboards.source.board import board, chosen
from dashboards.source.look import NOTED, PAGED, WARNED, YES_IS_GOOD
from dashboards.source.panels import Column, Curve, Panel, curves, number, table
from dashboards.source.queries import ANY_JOB, gauge, increase, rate, select

SCRAPE_SECONDS = 0.15
TURN_SECONDS = 1.0
OVERHEAD = 0.01
"""What is promised of a scrape, of the receiving loop, and of the agent's share of a step."""
DAEMON = "{{instance}}"


def itself() -> build.Dashboard:
    """The dashboard."""
    return board(
        "itself",
        "Caboose itself",
        "Whether Caboose can be believed: does it hear all ranks, keep up, judge, and write?",
        [
            ("Now", _now()),
            ("Taking in", _ingest()),
            ("Judging", _rules()),
            ("Keeping", _journal()),
            ("Agents", _agents()),
        ],
        jobs="many",
        extra=[
            chosen(
                "instance",
                "Daemon",
                "label_values(caboose_daemon_info, instance)",
                is_many=True,
                about="The daemons, by the address Prometheus scrapes.",
            )
        ],
        since="now-12h",
        refresh="1m",
    )


def _now() -> list[Panel]:
    up_for = f"time() - {gauge('caboose_daemon_start_time_seconds')}"
    return [
        number(
            "Daemons seen",
            f"count({select('caboose_daemon_info')})",
            unit="none",
            rules=("CabooseDown", "CabooseAbsent", "CabooseWatchdog"),
        ),
        number(
            "Youngest has been up for",
            up_for,
            unit="s",
            about="Falls to 0 when a daemon restarts.",
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
            "Jobs not shown",
            gauge("caboose_jobs_hidden", operator="sum"),
            unit="none",
            steps=((1, WARNED),),
            rules=("CabooseJobsHidden",),
        ),
        number(
            "Rules that raised, last hour",
            increase("caboose_rule_failures_total", window="1h"),
            unit="none",
            decimals=0,
            steps=((1, PAGED),),
            rules=("CabooseRuleFailing",),
        ),
        number(
            "Agents off",
            f"sum({gauge('caboose_agents_disabled', JOB, job=ANY_JOB)})",
            unit="none",
            steps=((1, WARNED),),
            rules=("CabooseJobUnwatched", "monitor_blind"),
        ),
        table(
            "Daemons",
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
            about="One line per daemon: what it runs, how much it holds, and how long a scrape of it takes.",
            size=(24, 5),
        ),
    ]


def _ingest() -> list[Panel]:
    return [
        curves(
            "Ingest",
            Curve(rate("caboose_received_bytes_total", "instance"), DAEMON),
            unit="Bps",
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
            about="Per second.",
        ),
        curves(
            "Refused",
            Curve(rate("caboose_messages_refused_total", "reason"), "{{reason}}"),
            unit="short",
            size=(8, 8),
            is_open_ended=True,
            least=0,
            about="Per second, by reason.",
            rules=("CabooseMessagesRefused",),
        ),
        curves(
            "Ranks connected and jobs known",
            Curve(gauge("caboose_peers_connected", operator="sum"), "ranks"),
            Curve(gauge("caboose_jobs_known", operator="sum"), "jobs"),
            unit="none",
            size=(8, 8),
            least=0,
        ),
        curves(
            "Is it keeping up",
            Curve(gauge("caboose_loop_lag_seconds"), "age of the report judged last"),
            Curve(gauge("caboose_loop_turn_seconds"), "a turn of the loop"),
            unit="s",
            steps=((TURN_SECONDS, WARNED),),
            size=(8, 8),
            least=0,
            rules=("CabooseLoopLagging", "CabooseLoopSlow"),
        ),
        curves(
            "Scrape",
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
            "What the rules cost",
            Curve(f"topk(10, {spent})", "{{rule}}"),
            unit="percentunit",
            about="Seconds per second, which is the share of one core; the ten dearest.",
            is_open_ended=True,
            least=0,
            rules=("CabooseRulesSlow",),
        ),
        curves(
            "What one run of a rule costs",
            Curve(f"topk(10, {spent} / ({runs} > 0))", "{{rule}}"),
            unit="s",
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Rules that raised",
            Curve(increase("caboose_rule_failures_total", "rule"), "{{rule}}"),
            unit="none",
            steps=((1, PAGED),),
            is_open_ended=True,
            is_counted=True,
            least=0,
            rules=("CabooseRuleFailing",),
        ),
        curves(
            "Findings opened",
            Curve(f"sum by (rule) ({select('caboose_findings_total', job=ANY_JOB)})", "{{rule}}"),
            unit="none",
            about="Since each job was first seen; a line that climbs all day is a rule to tune.",
            is_open_ended=True,
            least=0,
        ),
    ]


def _journal() -> list[Panel]:
    return [
        curves(
            "Journal",
            Curve(gauge("caboose_journal_size_bytes", "instance"), DAEMON),
            unit="bytes",
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Journal in trouble",
            Curve(increase("caboose_journal_failures_total"), "failed writes"),
            Curve(increase("caboose_journal_lost_rows_total"), "rows given up"),
            unit="none",
            steps=((1, PAGED),),
            is_counted=True,
            least=0,
            rules=("CabooseJournalLosingRows", "CabooseJournalUnwritable"),
        ),
        curves(
            "Handed on",
            Curve(rate("caboose_exports_total", "target"), "{{target}}"),
            unit="short",
            about="To Grafana and the mirrors, per second.",
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Not handed on",
            Curve(increase("caboose_exports_dropped_total", "target"), "dropped: {{target}}"),
            Curve(increase("caboose_export_failures_total", "target"), "failed: {{target}}"),
            unit="none",
            about="A slow or failing mirror has holes; what is above has not.",
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
            "The agent's share of a step",
            Curve(gauge("caboose_agent_overhead_ratio", JOB, job=ANY_JOB), name),
            unit="percentunit",
            steps=((OVERHEAD, WARNED),),
            size=(8, 8),
            is_open_ended=True,
            least=0,
        ),
        curves(
            "The agent's time in the last step",
            Curve(gauge("caboose_agent_step_seconds", JOB, job=ANY_JOB), name),
            unit="s",
            size=(8, 8),
            is_open_ended=True,
            least=0,
        ),
        curves(
            "Reports that never arrived",
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
            about="What the agents of each job cannot see; the rules that need it abstain.",
            rules=("monitor_blind", "CabooseJobBlind", "config_advice"),
            size=(12, 7),
            none="everything is seen",
        ),
        table(
            "Rules that abstain",
            {
                JOB: Column("job"),
                "value": Column("rules", gauge("caboose_rules_abstaining", JOB, job=ANY_JOB), steps=((10, NOTED),)),
            },
            size=(12, 7),
        ),
    ]
