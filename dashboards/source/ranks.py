"""Ranks: one job by rank and host. Which rank is slow, silent, behind, or different from the others?"""

from grafana_foundation_sdk.builders import dashboard as build

from caboose_daemon.out.metrics.metric import JOB
from caboose_daemon.rules.rank_silent import RankSilentConfig
from caboose_daemon.rules.straggler import StragglerConfig
from dashboards.source.board import board, chosen
from dashboards.source.look import NOTED, PAGED, WARNED
from dashboards.source.panels import Column, Curve, Panel, curves, number, table
from dashboards.source.queries import gauge, increase

SILENT = RankSilentConfig()
SILENCES = ((SILENT.warn_seconds, WARNED), (SILENT.critical_seconds, PAGED))
LAGS = ((1 + StragglerConfig().lag_share, WARNED), (2.0, PAGED))
SHOWN = ('host=~"$host"', 'rank=~"$rank"')
NAME = "rank {{rank}} ({{host}})"


def _shown(name: str, operator: str = "max") -> str:
    """One series per chosen rank."""
    return gauge(name, "rank", "host", where=SHOWN, operator=operator)


def _of_host(name: str, operator: str) -> str:
    return gauge(name, "host", where=SHOWN, operator=operator)


MEDIAN = f"scalar(quantile(0.5, {gauge('caboose_rank_own_seconds', 'rank', 'host')}))"
"""The median own time of all ranks, chosen or not. Step times do not differ: all ranks wait for the slowest."""
SLOWNESS = f"{_shown('caboose_rank_own_seconds')} / {MEDIAN}"
BEHIND = f"scalar({gauge('caboose_rank_step')}) - {_shown('caboose_rank_step')}"


def ranks() -> build.Dashboard:
    return board(
        "ranks",
        "Ranks",
        "One job by rank and host: stragglers, silent ranks, replicas that differ, a loss unlike the others."
        " Above 512 ranks, the ten worst of each metric.",
        [("Now", _now()), ("Over time", _over_time()), ("Replicas and reports", _agreement())],
        jobs="one",
        extra=[
            chosen(
                "host",
                "Host",
                f'label_values(caboose_rank_step{{{JOB}="$job"}}, host)',
                is_many=True,
                about="Hosts of the job's ranks.",
            ),
            chosen(
                "rank",
                "Rank",
                f'label_values(caboose_rank_step{{{JOB}="$job", host=~"$host"}}, rank)',
                is_many=True,
                about="Ranks on the chosen hosts.",
                is_number=True,
            ),
        ],
        since="now-3h",
    )


def _now() -> list[Panel]:
    return [
        number("Live ranks", gauge("caboose_job_live_ranks"), unit="none"),
        number(
            "Missing ranks",
            gauge("caboose_job_missing_ranks"),
            unit="none",
            steps=((1, WARNED),),
            rules=("rank_silent",),
        ),
        number(
            "Longest silence",
            f"max({_shown('caboose_rank_silent_seconds')})",
            unit="s",
            steps=SILENCES,
            rules=("rank_silent",),
        ),
        number(
            "Slowest rank ratio",
            f"max({SLOWNESS})",
            unit="short",
            decimals=2,
            steps=LAGS,
            rules=("straggler",),
            about="Own time of the slowest rank divided by the median of all ranks. Near 1 is normal.",
        ),
        number(
            "Largest step lag",
            f"max({BEHIND})",
            unit="none",
            steps=((10, WARNED), (100, PAGED)),
            about="Steps that the last rank is behind the first. A few are normal: their reports are on the way.",
            rules=("job_stalled",),
        ),
        number(
            "Differing replicas",
            gauge("caboose_replicas_differing"),
            unit="none",
            steps=((1, PAGED),),
            rules=("replica_desync",),
        ),
        table(
            "Host overview",
            {
                "host": Column("host"),
                "ranks": Column("ranks", _of_host("caboose_rank_step", "count")),
                "seconds": Column("own time, highest", _of_host("caboose_rank_own_seconds", "max"), "s"),
                "slowest": Column(
                    "x median, slowest rank", f"max by (host) ({SLOWNESS})", "short", steps=LAGS, decimals=2
                ),
                "silent": Column(
                    "longest silence", _of_host("caboose_rank_silent_seconds", "max"), "s", steps=SILENCES
                ),
                "behind": Column("steps behind", f"max by (host) ({BEHIND})", steps=((10, WARNED), (100, PAGED))),
                "loss": Column("loss, highest", _of_host("caboose_rank_loss", "max"), "short", decimals=3),
            },
            about="One row per host; coloured cells need attention. If all ranks of a host are slow, the host is the"
            " cause.",
            size=(12, 9),
            sort="slowest",
        ),
        table(
            "Rank overview",
            {
                "rank": Column("rank", width=60),
                "host": Column("host"),
                "slow": Column("x median", SLOWNESS, "short", steps=LAGS, decimals=2),
                "seconds": Column("own time", _shown("caboose_rank_own_seconds"), "s"),
                "whole": Column("step time", _shown("caboose_rank_step_seconds"), "s"),
                "loss": Column("loss", _shown("caboose_rank_loss"), "short", decimals=3),
                "behind": Column("steps behind", BEHIND, steps=((10, WARNED), (100, PAGED))),
                "busy": Column("device busy", _shown("caboose_rank_device_utilization_ratio"), "percentunit"),
                "memory": Column("device memory", _shown("caboose_rank_device_memory_bytes"), "bytes"),
                "silent": Column("silence", _shown("caboose_rank_silent_seconds"), "s", steps=SILENCES),
            },
            about="One row per rank. Similar values on all ranks are normal; coloured cells need attention. Device"
            " numbers are empty on a CPU.",
            size=(12, 9),
            sort="slow",
        ),
    ]


def _over_time() -> list[Panel]:
    return [
        curves(
            "Own time by rank",
            Curve(_shown("caboose_rank_own_seconds"), NAME),
            unit="s",
            about="Time of each step in which a rank did not wait for others. Close together is normal. No data for one"
            " process.",
            rules=("straggler",),
            is_open_ended=True,
            size=(12, 9),
        ),
        curves(
            "Relative own time",
            Curve(SLOWNESS, NAME),
            unit="short",
            steps=LAGS,
            about="Own time of each rank divided by the median of all ranks. Near 1 is normal; a straggler stays"
            " above the dashed line.",
            rules=("straggler",),
            is_open_ended=True,
            size=(12, 9),
        ),
        curves(
            "Loss by rank",
            Curve(_shown("caboose_rank_loss"), NAME),
            unit="short",
            about="Loss of each rank in its last report. Close together is normal; a rank that stays apart reads"
            " other data, and a gap is NaN.",
            rules=("rank_outlier", "bad_batch"),
            is_open_ended=True,
            size=(12, 9),
        ),
        curves(
            "Device busy by rank",
            Curve(_shown("caboose_rank_device_utilization_ratio"), NAME),
            unit="percentunit",
            about="Share of time in which the device ran kernels. Near 100 % is normal. Low on every rank: data or"
            " network limit the job. Low on one: that rank waits. No data on a CPU.",
            is_open_ended=True,
            is_high_good=True,
            size=(12, 9),
            least=0,
        ),
        curves(
            "Device memory by rank",
            Curve(_shown("caboose_rank_device_memory_bytes"), NAME),
            unit="bytes",
            about="Memory allocated on the device at the last sampled step. Flat is normal. A steady rise ends in an"
            " out-of-memory error. No data on a CPU.",
            is_open_ended=True,
            size=(12, 9),
            least=0,
        ),
        curves(
            "Silence by rank",
            Curve(_shown("caboose_rank_silent_seconds"), NAME),
            unit="s",
            steps=SILENCES,
            rules=("rank_silent",),
            is_open_ended=True,
            size=(12, 9),
            least=0,
        ),
    ]


def _agreement() -> list[Panel]:
    return [
        curves(
            "Replica comparison",
            Curve(gauge("caboose_replicas_compared"), "compared"),
            Curve(gauge("caboose_replicas_differing"), "differing"),
            unit="none",
            about="Replicas whose fingerprints were compared, and those that differ from the majority. 0 differing is"
            " normal.",
            steps=((1, NOTED),),
            rules=("replica_desync",),
            size=(8, 8),
            least=0,
        ),
        curves(
            "Steps behind first rank",
            Curve(BEHIND, NAME),
            unit="none",
            about="Steps that each rank is behind the first. A few are normal: their reports are on the way.",
            steps=((10, WARNED),),
            rules=("job_stalled",),
            is_open_ended=True,
            size=(8, 8),
            least=0,
        ),
        curves(
            "Lost and late reports",
            Curve(increase("caboose_reports_missed_total"), "missed"),
            Curve(increase("caboose_reports_late_total"), "late"),
            Curve(increase("caboose_reports_dropped_total"), "dropped by agents"),
            Curve(increase("caboose_steps_incomplete_total"), "steps without all ranks"),
            unit="none",
            about="Reports that were missed, late or dropped, and steps without all ranks. 0 is normal; otherwise the"
            " other curves are incomplete.",
            rules=("CabooseReportsLost", "CabooseReportsLate", "CabooseStepsIncomplete"),
            size=(8, 8),
            is_counted=True,
            least=0,
        ),
    ]
