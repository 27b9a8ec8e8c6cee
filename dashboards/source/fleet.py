"""Fleet: all jobs, health at a glance. For whoever comes on duty and asks: is anything wrong, and where?"""

from grafana_foundation_sdk.builders import dashboard as build

from caboose_daemon.out.metrics.table import JOB
from dashboards.source.board import board
from dashboards.source.look import FAILED_CELL, HEALTH, INCIDENTS, NOTED, PAGED, RUNNING_CELL, WARNED, to_dashboard
from dashboards.source.panels import Column, Curve, curves, number, states, table
from dashboards.source.queries import ANY_JOB, by_severity, gauge, increase, rate, select

RUN = to_dashboard("Open the run", "run", job="${__data.fields.job}")


def _of(name: str) -> str:
    return gauge(name, JOB, job=ANY_JOB)


def _with_severity(level: int) -> str:
    return f"count({_of('caboose_job_severity')} == {level}) or vector(0)"


def _columns() -> dict[str, Column]:
    loss = gauge("caboose_loss", JOB, where=('stat="mean"',), job=ANY_JOB)
    opened = f"count by ({JOB}) ({select('caboose_incident_info', job=ANY_JOB)})"
    return {
        JOB: Column("job", link=RUN, width=220),
        "health": Column("health", _of("caboose_job_severity"), mappings=HEALTH),
        "up": Column("state", _of("caboose_job_up"), mappings=RUNNING_CELL),
        "failed": Column("failed", _of("caboose_job_failed"), mappings=FAILED_CELL),
        "incidents": Column("open incidents", opened, steps=((1, WARNED),)),
        "step": Column("step", _of("caboose_job_step"), "locale"),
        "speed": Column("steps/s", rate("caboose_job_steps_total", JOB, job=ANY_JOB), decimals=2),
        "loss": Column("loss", loss, "short", decimals=3),
        "world": Column("ranks", _of("caboose_job_world_ranks")),
        "missing": Column("ranks missing", _of("caboose_job_missing_ranks"), steps=((1, WARNED),)),
        "attempt": Column("attempt", _of("caboose_job_attempt"), steps=((2, NOTED), (5, WARNED))),
        "samples": Column("samples/s", _of("caboose_samples_per_second"), "short"),
        "disabled": Column("agents off", _of("caboose_agents_disabled"), steps=((1, WARNED),)),
        "hidden": Column("names left out", _of("caboose_names_hidden"), steps=((1, WARNED),)),
    }


def fleet() -> build.Dashboard:
    """The dashboard."""
    up = f"sum({_of('caboose_job_up')})"
    glance = [
        number("Jobs running", up, unit="none", about="Jobs of which any rank is live."),
        number("Critical", _with_severity(3), unit="none", steps=((1, PAGED),), about="Somebody is paged for these."),
        number("Warning", _with_severity(2), unit="none", steps=((1, WARNED),), about="Look at these today."),
        number("Failed", f"sum({_of('caboose_job_failed')})", unit="none", steps=((1, PAGED),)),
        number("Ranks live", f"sum({_of('caboose_job_live_ranks')})", unit="none"),
        number(
            "Jobs not shown",
            "sum(caboose_jobs_hidden)",
            unit="none",
            steps=((1, WARNED),),
        ),
    ]
    jobs = table("Jobs", _columns(), about="The worst first; a job's name opens its run.", sort="health")
    info = f"max by ({JOB}, wrapper, optimizer, precision) ({select('caboose_job_info', job=ANY_JOB)})"
    kinds = table(
        "What the jobs are",
        {
            JOB: Column("job", link=RUN),
            "wrapper": Column("wrapper"),
            "optimizer": Column("optimizer"),
            "precision": Column("precision"),
            "value": Column(
                "other launches refused",
                f"{info} * on ({JOB}) group_left () {_of('caboose_job_duplicates_refused_total')}",
                steps=((1, WARNED),),
            ),
        },
        about="Wrapper, optimizer and precision; how often a second launch claimed the job's name and was refused.",
        rules=("CabooseJobNameTaken", "CabooseJobNameShared"),
        size=(12, 8),
    )
    restless = table(
        "Incidents so far",
        {
            JOB: Column("job", link=RUN),
            "rule": Column("rule"),
            "count": Column(
                "incidents",
                f"{gauge('caboose_incidents_total', JOB, 'rule', job=ANY_JOB)} > 0",
                steps=((10, WARNED),),
            ),
        },
        about="How restless each job has been since the daemon knows it, by the rule that led.",
        size=(12, 8),
        sort="count",
        none="no incident so far",
    )
    return board(
        "fleet",
        "Fleet",
        "All jobs at a glance: which are ill, which are slow, which have lost ranks.",
        [
            ("Now", [*glance, jobs]),
            (
                "Health over time",
                [
                    states(
                        "Health",
                        _of("caboose_job_severity"),
                        legend=f"{{{{{JOB}}}}}",
                        about="The worst open incident of each job.",
                    ),
                    states(
                        "Open incidents by rule",
                        by_severity("caboose_incident_open", JOB, "rule", job=ANY_JOB),
                        legend=f"{{{{{JOB}}}}}: {{{{rule}}}}",
                        about="When each job had which incident open; one that somebody has acknowledged is in hand.",
                        mappings=INCIDENTS,
                    ),
                ],
            ),
            (
                "Progress",
                [
                    curves(
                        "Loss",
                        Curve(gauge("caboose_loss", JOB, where=('stat="mean"',), job=ANY_JOB), f"{{{{{JOB}}}}}"),
                        unit="short",
                        log=10,
                        rules=("divergence", "not_learning"),
                        is_open_ended=True,
                    ),
                    curves(
                        "Steps per second",
                        Curve(rate("caboose_job_steps_total", JOB, job=ANY_JOB), f"{{{{{JOB}}}}}"),
                        unit="short",
                        about="A job at 0 that is running is stalled.",
                        rules=("job_stalled", "throughput_regression"),
                        is_open_ended=True,
                    ),
                    curves(
                        "Ranks missing",
                        Curve(_columns()["missing"].expression, f"{{{{{JOB}}}}}"),
                        unit="none",
                        about="Of jobs that run: one that has ended misses nobody.",
                        steps=((1, WARNED),),
                        rules=("rank_silent",),
                        least=0,
                        is_open_ended=True,
                    ),
                    curves(
                        "Steps that were not finite",
                        Curve(increase("caboose_non_finite_steps_total", JOB, job=ANY_JOB), f"{{{{{JOB}}}}}"),
                        unit="none",
                        steps=((1, PAGED),),
                        rules=("non_finite",),
                        is_counted=True,
                        is_open_ended=True,
                    ),
                    kinds,
                    restless,
                ],
            ),
        ],
        jobs="many",
        since="now-24h",
        refresh="1m",
    )
