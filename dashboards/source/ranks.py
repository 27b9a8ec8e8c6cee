"""Ranks: which rank, on which host. Who is slow, silent, behind, apart from the others?"""

from grafana_foundation_sdk.builders import dashboard as build

from caboose_daemon.out.metrics.table import JOB
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
    """Of the chosen ranks, one by one."""
    return gauge(name, "rank", "host", where=SHOWN, operator=operator)


def _of_host(name: str, operator: str) -> str:
    return gauge(name, "host", where=SHOWN, operator=operator)


MEDIAN = f"scalar(quantile(0.5, {gauge('caboose_rank_step_seconds', 'rank', 'host')}))"
"""The usual step time of all ranks, chosen or not."""
SLOWNESS = f"{_shown('caboose_rank_step_seconds')} / {MEDIAN}"
BEHIND = f"scalar({gauge('caboose_rank_step')}) - {_shown('caboose_rank_step')}"


def ranks() -> build.Dashboard:
    """The dashboard."""
    return board(
        "ranks",
        "Ranks",
        "Which rank on which host: stragglers, silent ranks, replicas that came apart, a loss unlike the others'."
        " Above 512 ranks, the ten worst of each kind.",
        [("Now", _now()), ("Over time", _over_time()), ("Agreement and reports", _agreement())],
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
        number("Ranks live", gauge("caboose_job_live_ranks"), unit="none"),
        number(
            "Ranks missing",
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
            "Slowest over usual",
            f"max({SLOWNESS})",
            unit="short",
            decimals=2,
            steps=LAGS,
            rules=("straggler",),
            about="How many times the median step time the slowest rank takes.",
        ),
        number(
            "Farthest behind",
            f"max({BEHIND})",
            unit="none",
            steps=((10, WARNED), (100, PAGED)),
            about="In steps; a few are reports on their way.",
            rules=("job_stalled",),
        ),
        number(
            "Replicas differing",
            gauge("caboose_replicas_differing"),
            unit="none",
            steps=((1, PAGED),),
            rules=("replica_desync",),
        ),
        table(
            "Hosts",
            {
                "host": Column("host"),
                "ranks": Column("ranks", _of_host("caboose_rank_step", "count")),
                "seconds": Column("step time, mean", _of_host("caboose_rank_step_seconds", "avg"), "s"),
                "slowest": Column(
                    "over usual, slowest rank", f"max by (host) ({SLOWNESS})", "short", steps=LAGS, decimals=2
                ),
                "silent": Column(
                    "longest silence", _of_host("caboose_rank_silent_seconds", "max"), "s", steps=SILENCES
                ),
                "behind": Column("steps behind", f"max by (host) ({BEHIND})", steps=((10, WARNED), (100, PAGED))),
                "loss": Column("loss, highest", _of_host("caboose_rank_loss", "max"), "short", decimals=3),
            },
            about="One line per host: a host whose ranks are all slow is the host's fault, not the rank's.",
            size=(12, 9),
            sort="slowest",
        ),
        table(
            "Ranks",
            {
                "rank": Column("rank", width=60),
                "host": Column("host"),
                "slow": Column("over usual", SLOWNESS, "short", steps=LAGS, decimals=2),
                "seconds": Column("step time", _shown("caboose_rank_step_seconds"), "s"),
                "loss": Column("loss", _shown("caboose_rank_loss"), "short", decimals=3),
                "behind": Column("behind", BEHIND, steps=((10, WARNED), (100, PAGED))),
                "busy": Column("device busy", _shown("caboose_rank_device_utilization_ratio"), "percentunit"),
                "memory": Column("device memory", _shown("caboose_rank_device_memory_bytes"), "bytes"),
                "silent": Column("silent", _shown("caboose_rank_silent_seconds"), "s", steps=SILENCES),
            },
            about="One line per rank. Device numbers are empty on a CPU.",
            size=(12, 9),
            sort="slow",
        ),
    ]


def _over_time() -> list[Panel]:
    return [
        curves(
            "Step time by rank",
            Curve(_shown("caboose_rank_step_seconds"), NAME),
            unit="s",
            rules=("straggler",),
            is_open_ended=True,
            size=(12, 9),
        ),
        curves(
            "Times the usual step time",
            Curve(SLOWNESS, NAME),
            unit="short",
            steps=LAGS,
            about="Each rank over the median of all: a straggler stays above the line, a slow moment of all does not.",
            rules=("straggler",),
            is_open_ended=True,
            size=(12, 9),
        ),
        curves(
            "Loss by rank",
            Curve(_shown("caboose_rank_loss"), NAME),
            unit="short",
            about="A rank whose loss stays apart reads other data than its peers. A gap is NaN.",
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
            "Replicas",
            Curve(gauge("caboose_replicas_compared"), "compared"),
            Curve(gauge("caboose_replicas_differing"), "differing"),
            unit="none",
            steps=((1, NOTED),),
            rules=("replica_desync",),
            size=(8, 8),
            least=0,
        ),
        curves(
            "Steps behind the first",
            Curve(BEHIND, NAME),
            unit="none",
            steps=((10, WARNED),),
            rules=("job_stalled",),
            is_open_ended=True,
            size=(8, 8),
            least=0,
        ),
        curves(
            "Reports lost or late",
            Curve(increase("caboose_reports_missed_total"), "missed"),
            Curve(increase("caboose_reports_late_total"), "late"),
            Curve(increase("caboose_reports_dropped_total"), "dropped by agents"),
            Curve(increase("caboose_steps_incomplete_total"), "steps without all ranks"),
            unit="none",
            rules=("CabooseReportsLost", "CabooseReportsLate", "CabooseStepsIncomplete"),
            size=(8, 8),
            is_counted=True,
            least=0,
        ),
    ]
