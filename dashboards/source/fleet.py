"""Fleet: the health of all jobs of all daemons on one page. Start here when you come on duty."""

from grafana_foundation_sdk.builders import dashboard as build

from caboose_daemon.out.metrics.metric import JOB
from dashboards.source.board import board, daemons
from dashboards.source.look import FAILED_CELL, HEALTH, INCIDENTS, NOTED, PAGED, RUNNING_CELL, WARNED, to_dashboard
from dashboards.source.panels import Column, Curve, curves, number, states, table
from dashboards.source.queries import ANY_JOB_OF_DAEMONS, by_severity, gauge, increase, rate, select

RUN = to_dashboard("Open the run", "run", job="${__data.fields.job}")


def _of(name: str) -> str:
    return gauge(name, JOB, job=ANY_JOB_OF_DAEMONS)


def _with_severity(level: int) -> str:
    return f"count({_of('caboose_job_severity')} == {level}) or vector(0)"


def _columns() -> dict[str, Column]:
    loss = gauge("caboose_loss", JOB, where=('stat="mean"',), job=ANY_JOB_OF_DAEMONS)
    opened = f"count by ({JOB}) ({select('caboose_incident_info', job=ANY_JOB_OF_DAEMONS)})"
    return {
        JOB: Column("job", link=RUN, width=220),
        "health": Column("health", _of("caboose_job_severity"), mappings=HEALTH),
        "up": Column("state", _of("caboose_job_up"), mappings=RUNNING_CELL),
        "failed": Column("failed", _of("caboose_job_failed"), mappings=FAILED_CELL),
        "incidents": Column("open incidents", opened, steps=((1, WARNED),)),
        "step": Column("step", _of("caboose_job_step"), "locale"),
        "speed": Column("steps/s", rate("caboose_job_steps_total", JOB, job=ANY_JOB_OF_DAEMONS), decimals=2),
        "loss": Column("loss", loss, "short", decimals=3),
        "world": Column("ranks", _of("caboose_job_world_ranks")),
        "missing": Column("missing ranks", _of("caboose_job_missing_ranks"), steps=((1, WARNED),)),
        "attempt": Column("attempt", _of("caboose_job_attempt"), steps=((2, NOTED), (5, WARNED))),
        "samples": Column("samples/s", _of("caboose_samples_per_second"), "short"),
        "disabled": Column("disabled agents", _of("caboose_agents_disabled"), steps=((1, WARNED),)),
        "hidden": Column("hidden names", _of("caboose_names_hidden"), steps=((1, WARNED),)),
    }


def fleet() -> build.Dashboard:
    up = f"sum({_of('caboose_job_up')})"
    glance = [
        number(
            "Jobs running",
            up,
            unit="none",
            about="Jobs with at least one live rank. Compare it with the number of jobs you started.",
        ),
        number(
            "Critical jobs",
            _with_severity(3),
            unit="none",
            steps=((1, PAGED),),
            about="Jobs with an open critical incident. 0 is normal; each one pages.",
        ),
        number(
            "Jobs with warnings",
            _with_severity(2),
            unit="none",
            steps=((1, WARNED),),
            about="Jobs whose worst open incident is a warning. 0 is normal; check them today.",
        ),
        number(
            "Failed jobs",
            f"sum({_of('caboose_job_failed')})",
            unit="none",
            steps=((1, PAGED),),
            about="Jobs in which a rank exited with an error. 0 is normal.",
        ),
        number(
            "Live ranks",
            f"sum({_of('caboose_job_live_ranks')})",
            unit="none",
            about="Ranks of all jobs that have not exited and have reported recently. All ranks is normal.",
        ),
        number(
            "Hidden jobs",
            gauge("caboose_jobs_hidden", operator="sum"),
            unit="none",
            steps=((1, WARNED),),
        ),
    ]
    jobs = table(
        "Job overview",
        _columns(),
        about="One row per job, the worst first; the name opens its run. Coloured cells need attention.",
        sort="health",
    )
    info = f"max by ({JOB}, wrapper, optimizer, precision) ({select('caboose_job_info', job=ANY_JOB_OF_DAEMONS)})"
    kinds = table(
        "Job configuration",
        {
            JOB: Column("job", link=RUN),
            "wrapper": Column("wrapper"),
            "optimizer": Column("optimizer"),
            "precision": Column("precision"),
            "value": Column(
                "launches refused",
                f"{info} * on ({JOB}) group_left () {_of('caboose_job_duplicates_refused_total')}",
                steps=((1, WARNED),),
            ),
        },
        about="Wrapper, optimizer and precision of each job, and launches refused because their name was in use. 0"
        " refused is normal.",
        rules=("CabooseJobNameTaken", "CabooseJobNameShared"),
        size=(12, 8),
    )
    incidents = table(
        "Incidents per job",
        {
            JOB: Column("job", link=RUN),
            "rule": Column("rule"),
            "count": Column(
                "incidents",
                f"{gauge('caboose_incidents_total', JOB, 'rule', job=ANY_JOB_OF_DAEMONS)} > 0",
                steps=((10, WARNED),),
            ),
        },
        about="Incidents of each job since the daemon first saw it, by lead rule. High counts point to an unstable"
        " job.",
        size=(12, 8),
        sort="count",
        none="no incidents",
    )
    by = f"{JOB}, rule, severity"
    words = f"max by ({by}, incident, summary) ({select('caboose_incident_text', job=ANY_JOB_OF_DAEMONS)})"
    left = f"max by ({by}) ({select('caboose_incident_unresolved', job=ANY_JOB_OF_DAEMONS)})"
    ended = table(
        "Ended and not acknowledged",
        {
            JOB: Column("job", link=RUN),
            "severity": Column("severity"),
            "incident": Column("incident"),
            "summary": Column("open at the end"),
            "value": Column("", f"{words} * on ({by}) group_left () {left} == 1"),
        },
        about="Runs that are over, and what was open at their end. None is normal; `caboose ack` removes a row.",
        rules=("CabooseEndedUnresolved",),
        none="nothing",
        hidden=("rule",),
    )
    return board(
        "fleet",
        "Fleet",
        "All jobs on one page: which are failing, which are slow, which have lost ranks.",
        [
            ("Now", [*glance, jobs, ended]),
            (
                "Health over time",
                [
                    states(
                        "Job health",
                        _of("caboose_job_severity"),
                        legend=f"{{{{{JOB}}}}}",
                        about="Severity of the worst open incident of each job. Fine is normal.",
                    ),
                    states(
                        "Open incidents by rule",
                        by_severity("caboose_incident_open", JOB, "rule", job=ANY_JOB_OF_DAEMONS),
                        legend=f"{{{{{JOB}}}}}: {{{{rule}}}}",
                        about="Open incidents of each job by lead rule, over time. None is normal; acknowledged ones"
                        " are grey.",
                        mappings=INCIDENTS,
                    ),
                ],
            ),
            (
                "Progress",
                [
                    curves(
                        "Training loss",
                        Curve(
                            gauge("caboose_loss", JOB, where=('stat="mean"',), job=ANY_JOB_OF_DAEMONS), f"{{{{{JOB}}}}}"
                        ),
                        unit="short",
                        about="Mean loss of the last step of each job. A slow fall is normal; a rise is not.",
                        log=10,
                        rules=("divergence", "not_learning"),
                        is_open_ended=True,
                    ),
                    curves(
                        "Steps per second",
                        Curve(rate("caboose_job_steps_total", JOB, job=ANY_JOB_OF_DAEMONS), f"{{{{{JOB}}}}}"),
                        unit="short",
                        about="Aligned steps per second of each job. Stable is normal; a running job at 0 is stalled.",
                        rules=("job_stalled", "throughput_regression"),
                        is_open_ended=True,
                        is_high_good=True,
                    ),
                    curves(
                        "Missing ranks",
                        Curve(_columns()["missing"].expression, f"{{{{{JOB}}}}}"),
                        unit="none",
                        about="Ranks that should report and do not. 0 is normal, also after the end of a job.",
                        steps=((1, WARNED),),
                        rules=("rank_silent",),
                        least=0,
                        is_open_ended=True,
                    ),
                    curves(
                        "Non-finite steps",
                        Curve(
                            increase("caboose_non_finite_steps_total", JOB, job=ANY_JOB_OF_DAEMONS), f"{{{{{JOB}}}}}"
                        ),
                        unit="none",
                        steps=((1, PAGED),),
                        rules=("non_finite",),
                        is_counted=True,
                        is_open_ended=True,
                    ),
                    kinds,
                    incidents,
                ],
            ),
        ],
        jobs="many",
        extra=[daemons()],
        since="now-24h",
        refresh="1m",
    )
