"""The series of the daemon: ingest, cost of the rules, journal, exports."""

from caboose_daemon.jobs.job_guard import STAGES
from caboose_daemon.jobs.state import State
from caboose_daemon.out.links import Links
from caboose_daemon.out.metrics.samples import MetricSamples
from caboose_daemon.version import __version__

REASONS = ("no_descriptors", "slow_body", "slow_head", "slow_reader", "too_many", "too_many_of_peer")
"""Start at 0: a series that starts at 1 has no increase."""


def add_daemon(state: State, samples: MetricSamples, now: float) -> None:
    """Adds every series without a job label."""
    samples.add("caboose_daemon_info", 1.0, __version__)
    links = Links.of(state)
    samples.add("caboose_daemon_links_info", 1.0, links.page.rstrip("/"), f"{links.page}runbooks", links.grafana)
    samples.add("caboose_daemon_start_time_seconds", state.started)
    samples.add("caboose_jobs_known", len(state.jobs))
    samples.add("caboose_peers_connected", state.num_peers)
    relays = state.relays.live(now)
    samples.add("caboose_relays_connected", len(relays))
    samples.add("caboose_relay_ranks", state.relays.num_ranks)
    samples.add("caboose_relay_buffered_seconds", max((relay.buffered_seconds for relay in relays), default=0.0))
    samples.add("caboose_relay_messages_dropped_total", state.relays.num_dropped)
    samples.add("caboose_received_bytes_total", state.num_bytes)
    for kind, count in sorted(state.num_frames.items()):
        samples.add("caboose_messages_received_total", count, kind)
    for reason, count in sorted(state.num_refused.items()):
        samples.add("caboose_messages_refused_total", count, reason)
    for stage in STAGES:  # also at 0, so that the first one is an increase
        count = sum(num for (at, _), num in state.num_errors.items() if at == stage)
        samples.add("caboose_internal_errors_total", count, stage)
    samples.add("caboose_loop_turn_seconds", state.turn_seconds)
    samples.add("caboose_loop_behind_seconds", state.behind_seconds)
    for rule, stats in sorted(state.rule_stats.items()):
        samples.add("caboose_rule_seconds_total", stats.seconds, rule)
        samples.add("caboose_rule_runs_total", stats.runs, rule)
        samples.add("caboose_rule_failures_total", stats.failures, rule)
    samples.add("caboose_journal_size_bytes", state.journal_bytes)
    samples.add("caboose_journal_writable", float(not state.journal_error))
    samples.add("caboose_journal_failures_total", state.journal_failures)
    samples.add("caboose_journal_lost_rows_total", state.journal_lost)
    samples.add("caboose_journal_refused_rows_total", state.journal_refused)
    samples.add("caboose_journal_quarantined_rows", state.journal_quarantined)
    for reason, count in sorted((dict.fromkeys(REASONS, 0) | state.http_dropped).items()):
        samples.add("caboose_http_connections_dropped_total", count, reason)
    if state.scrape_seconds is not None:
        samples.add("caboose_scrape_seconds", state.scrape_seconds)
    samples.add("caboose_store_backlog_rows", state.store_backlog)
    for target, tally in sorted(state.exports.items()):
        samples.add("caboose_exports_total", tally.num_sent, target)
        samples.add("caboose_exports_dropped_total", tally.num_dropped + tally.num_withdrawn, target)
        samples.add("caboose_export_failures_total", tally.num_failed, target)
