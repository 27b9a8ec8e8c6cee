"""Run: one job. Is it learning, what is wrong with it, and what does it spend its time on?"""

from grafana_foundation_sdk.builders import dashboard as build

from caboose_daemon.out.metrics.table import ENTRIES, JOB
from caboose_daemon.rules.batch_size import BatchSizeConfig
from caboose_daemon.rules.clipping import ClippingConfig
from caboose_daemon.rules.data_starved import DataStarvedConfig
from caboose_daemon.rules.lr_too_high import LrTooHighConfig
from caboose_daemon.rules.lr_too_low import LrTooLowConfig
from dashboards.source.board import board
from dashboards.source.look import (
    ALERTS,
    FINE,
    HEALTH,
    NOTED,
    PAGED,
    RUNBOOKS,
    RUNNING,
    WARNED,
    YES_IS_BAD,
    mapped,
    to_dashboard,
)
from dashboards.source.panels import Column, Curve, Panel, curves, named, number, states, table
from dashboards.source.queries import by_severity, gauge, increase, peak, rate, select, trough

THIRD = (8, 8)
OVERHEAD = 0.01
"""The share of a step that the agent promises to stay below."""


def run() -> build.Dashboard:
    """The dashboard."""
    return board(
        "run",
        "Run",
        "One job: its health and the likely cause of what is wrong, its curves, and where its time goes.",
        [
            ("Now", _now()),
            ("Learning", _learning()),
            ("Numbers", _numbers()),
            ("Speed", _speed()),
            ("What is not seen", _sight()),
        ],
        jobs="one",
    )


def _now() -> list[Panel]:
    live = f"{gauge('caboose_job_live_ranks')} / {gauge('caboose_job_world_ranks')}"
    cause = f"max by (cause) ({select('caboose_incident_info')})"
    return [
        number("Health", gauge("caboose_job_severity"), unit="none", mappings=HEALTH),
        number(
            "Likely cause", cause, unit="none", legend="{{cause}}", is_name=True, none="nothing is open", size=(8, 4)
        ),
        number("State", gauge("caboose_job_up"), unit="none", mappings=RUNNING, size=(3, 4)),
        number("Failed", gauge("caboose_job_failed"), unit="none", mappings=YES_IS_BAD, size=(3, 4)),
        number("Ranks live", live, unit="percentunit", steps=((1, FINE),), base=WARNED, size=(3, 4)),
        number("Attempt", gauge("caboose_job_attempt"), unit="none", size=(3, 4)),
        _incidents(),
        states(
            "Findings",
            by_severity("caboose_finding_open", "rule"),
            legend="{{rule}}",
            about="What each rule found, and for how long: the parts of which incidents are made.",
            size=(24, 7),
        ),
    ]


def _incidents() -> Panel:
    info = ENTRIES["caboose_incident_info"].labels
    onset = f"max by ({JOB}, incident) ({select('caboose_incident_onset_step')})"
    joined = (
        f"max by ({', '.join(info)}) ({select('caboose_incident_info')}) * on ({JOB}, incident) group_left () {onset}"
    )
    runbook = build.DashboardLink("Open the runbook").url(f"{RUNBOOKS}/${{__value.text}}.md").target_blank(True)
    rank = to_dashboard("Open the ranks", "ranks", job="${job}", rank="${__data.fields.rank}")
    layers = to_dashboard("Open the layers", "layers", job="${job}")
    return table(
        "Incidents and their diagnosis",
        {
            "incident": Column("incident", width=140),
            "severity": Column("severity", mappings=mapped(critical=PAGED, warning=WARNED, info=NOTED), width=90),
            "rule": Column("rule"),
            "cause": Column("likely cause"),
            "onset": Column("since step", f'label_replace({joined}, "runbook", "$1", "rule", "(.*)")', "locale"),
            "rank": Column("rank", link=rank, width=70),
            "host": Column("host"),
            "layer": Column("layer", link=layers),
            "phase": Column("phase"),
            "runbook": Column("runbook", mappings=mapped(**ALERTS), link=runbook),
        },
        about="One line per cause. `caboose diagnose JOB` says how sure it is, on what evidence, and what to do first.",
        size=(24, 6),
        none="nothing is open",
        hidden=(JOB,),
    )


def _learning() -> list[Panel]:
    mean = ('stat="mean"',)
    return [
        curves(
            "Loss",
            Curve(gauge("caboose_loss", where=mean), "mean over ranks"),
            Curve(peak("caboose_loss", where=('stat="max"',)), "highest rank, at its highest", is_thin=True),
            Curve(trough("caboose_loss", where=('stat="min"',)), "lowest rank, at its lowest", is_thin=True),
            unit="short",
            about="A gap is a loss that was NaN or infinite, or a job that was not seen; a mark says which.",
            rules=("loss_spike", "divergence", "not_learning", "plateau", "oscillation"),
            size=(16, 10),
        ),
        curves(
            "Training and validation",
            Curve(gauge("caboose_loss", where=mean), "training"),
            Curve(gauge("caboose_validation_loss"), "validation"),
            unit="short",
            about="A validation loss that rises while training falls: overfitting. Both high and flat: underfitting.",
            rules=("overfitting", "underfitting"),
            size=(8, 10),
        ),
        curves(
            "Learning rate",
            Curve(gauge("caboose_learning_rate", "group"), "{{group}}"),
            unit="sci",
            rules=("lr_schedule", "lr_too_high", "lr_too_low"),
            size=THIRD,
        ),
        curves(
            "Gradient norm",
            Curve(gauge("caboose_gradient_norm"), "before clipping"),
            Curve(peak("caboose_gradient_norm"), "at its highest", is_thin=True),
            unit="short",
            log=10,
            rules=("gradient_explosion", "gradient_vanishing"),
            size=THIRD,
        ),
        curves(
            "Size of updates",
            *(
                Curve(gauge("caboose_layer_update_ratio", where=(f'stat="{stat}"',)), f"{stat} over layers")
                for stat in STATS
            ),
            unit="sci",
            log=10,
            about="Between the two lines a learning rate does its work; see Layers for where.",
            steps=((LrTooLowConfig().min_update, FINE), (LrTooHighConfig().max_update, PAGED)),
            rules=("lr_too_high", "lr_too_low", "frozen_parameters"),
            size=THIRD,
        ),
        curves(
            "Validation metrics",
            Curve(gauge("caboose_validation_metric", "stat"), "{{stat}}"),
            unit="short",
            rules=("metric_divergence",),
            size=THIRD,
            is_open_ended=True,
        ),
        curves(
            "Step and last validation",
            Curve(gauge("caboose_job_step"), "step"),
            Curve(gauge("caboose_validation_step"), "validated at"),
            unit="locale",
            about="The step goes back when an older checkpoint is resumed. An old validation says little of the model.",
            size=THIRD,
        ),
        curves(
            "Gradient noise over batch size",
            Curve(gauge("caboose_gradient_noise_ratio"), "noise scale / batch"),
            unit="short",
            log=10,
            steps=((1 / BatchSizeConfig().wasteful_ratio, NOTED), (BatchSizeConfig().noisy_ratio, WARNED)),
            rules=("batch_size",),
            size=THIRD,
        ),
    ]


STATS = ("median", "max", "min")


def _numbers() -> list[Panel]:
    clipped = f"{rate('caboose_clipped_steps_total')} / ({rate('caboose_job_steps_total')} > 0)"
    return [
        curves(
            "Steps that were not finite, or skipped",
            Curve(increase("caboose_non_finite_steps_total"), "not finite"),
            Curve(increase("caboose_skipped_steps_total"), "skipped by the loss scaler"),
            unit="none",
            rules=("non_finite", "loss_scale_collapse", "bad_batch"),
            steps=((1, WARNED),),
            size=THIRD,
            is_counted=True,
            least=0,
        ),
        curves(
            "Clipping",
            Curve(gauge("caboose_clip_ratio"), "gradient was multiplied by"),
            Curve(clipped, "share of steps clipped"),
            unit="percentunit",
            rules=("clipping",),
            steps=((ClippingConfig().ruling_share, WARNED),),
            about="The line is the share of clipped steps at which clipping rules the run.",
            size=THIRD,
            least=0,
            most=1,
        ),
        curves(
            "Loss scale",
            Curve(gauge("caboose_loss_scale"), "scale"),
            unit="short",
            log=2,
            rules=("loss_scale_collapse",),
            size=THIRD,
        ),
    ]


def _speed() -> list[Panel]:
    phases = ("forward", "data", "backward", "optimizer")
    total = gauge("caboose_phase_seconds", where=('phase="total"',))
    share = f"{gauge('caboose_phase_seconds', where=(DATA,))} / {total}"
    return [
        curves(
            "Throughput",
            Curve(gauge("caboose_samples_per_second"), "samples/s"),
            Curve(gauge("caboose_tokens_per_second"), "tokens/s"),
            unit="short",
            log=10,
            rules=("throughput_regression",),
            size=THIRD,
        ),
        named(
            curves(
                "Where a step's time goes",
                Curve(gauge("caboose_phase_seconds", "phase", where=('phase!="total"',)), "{{phase}}"),
                unit="s",
                rules=("data_starved", "straggler"),
                size=THIRD,
                is_stacked=True,
                least=0,
            ),
            *phases,
        ),
        curves(
            "Waiting for data",
            Curve(share, "share of the step"),
            unit="percentunit",
            steps=((DataStarvedConfig().warn_share, NOTED), (DataStarvedConfig().severe_share, WARNED)),
            rules=("data_starved",),
            size=THIRD,
            least=0,
        ),
        curves(
            "Steps per second",
            Curve(rate("caboose_job_steps_total"), "steps/s"),
            unit="short",
            rules=("job_stalled",),
            least=0,
        ),
        curves(
            "What Caboose costs",
            Curve(gauge("caboose_agent_overhead_ratio"), "share of a step"),
            unit="percentunit",
            steps=((OVERHEAD, WARNED),),
            about="Of the training thread. It looks less closely by itself when it costs more than it may.",
            least=0,
        ),
    ]


DATA = 'phase="data"'


def _sight() -> list[Panel]:
    return [
        table(
            "The agent cannot see",
            {
                "stat": Column("what"),
                "value": Column("", gauge("caboose_blind", "stat"), mappings=mapped(**{"1": "blind"})),
            },
            about="Rules that need it abstain; the job's page says why.",
            rules=("monitor_blind",),
            size=(8, 6),
            none="it sees everything",
        ),
        number("Rules that abstain", gauge("caboose_rules_abstaining"), unit="none", size=(4, 6)),
        number("Layers unseen", gauge("caboose_layers_unseen"), unit="none", steps=((1, WARNED),), size=(4, 6)),
        curves(
            "Reports lost or late",
            Curve(increase("caboose_reports_missed_total"), "missed"),
            Curve(increase("caboose_reports_late_total"), "late"),
            Curve(increase("caboose_reports_dropped_total"), "dropped by agents"),
            Curve(increase("caboose_steps_incomplete_total"), "steps without all ranks"),
            unit="none",
            about="Anything here makes the curves above less than the whole truth.",
            rules=("CabooseReportsLost", "CabooseReportsLate", "CabooseStepsIncomplete"),
            size=(8, 6),
            is_counted=True,
            least=0,
        ),
    ]
