"""Run: one job. Is it learning, what is wrong with it, and where does its time go?"""

from grafana_foundation_sdk.builders import dashboard as build

from caboose_daemon.out.metrics.metric import JOB
from caboose_daemon.out.metrics.table import ENTRIES
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
"""The default limit on the share of a step that the agent takes."""


def run() -> build.Dashboard:
    return board(
        "run",
        "Run",
        "One job: its health, the likely cause of its incidents, its curves, and where its time goes.",
        [
            ("Now", _now()),
            ("Learning", _learning()),
            ("Numerics", _numbers()),
            ("Speed", _speed()),
            ("Blind spots", _sight()),
        ],
        jobs="one",
    )


def _now() -> list[Panel]:
    live = f"{gauge('caboose_job_live_ranks')} / {gauge('caboose_job_world_ranks')}"
    cause = f"max by (cause) ({select('caboose_incident_info')})"
    return [
        number("Job health", gauge("caboose_job_severity"), unit="none", mappings=HEALTH),
        number(
            "Likely cause",
            cause,
            unit="none",
            legend="{{cause}}",
            is_name=True,
            none="no open incident",
            size=(8, 4),
            about="The likely cause of each open incident. No open incident is normal.",
        ),
        number("Job state", gauge("caboose_job_up"), unit="none", mappings=RUNNING, size=(3, 4)),
        number("Job failed", gauge("caboose_job_failed"), unit="none", mappings=YES_IS_BAD, size=(3, 4)),
        number(
            "Live ranks",
            live,
            unit="percentunit",
            steps=((1, FINE),),
            base=WARNED,
            size=(3, 4),
            about="Share of the ranks of the job that are live. 100 % is normal; less means that a rank is gone.",
        ),
        number("Current attempt", gauge("caboose_job_attempt"), unit="none", size=(3, 4)),
        _incidents(),
        states(
            "Findings by rule",
            by_severity("caboose_finding_open", "rule"),
            legend="{{rule}}",
            about="Open findings of each rule over time. None is normal; incidents consist of findings.",
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
        "Open incidents",
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
        about="One row per open incident; none is normal. `caboose diagnose JOB` shows evidence, confidence and first"
        " fix.",
        size=(24, 6),
        none="no open incident",
        hidden=(JOB,),
    )


def _learning() -> list[Panel]:
    mean = ('stat="mean"',)
    return [
        curves(
            "Training loss",
            Curve(gauge("caboose_loss", where=mean), "mean over ranks"),
            Curve(peak("caboose_loss", where=('stat="max"',)), "highest rank, peak", is_thin=True),
            Curve(trough("caboose_loss", where=('stat="min"',)), "lowest rank, minimum", is_thin=True),
            unit="short",
            about="Loss over the ranks. A slow fall is normal; a gap with the mark *Not finite* is NaN or infinite, a"
            " gap without it means that there was no data.",
            rules=("loss_spike", "divergence", "not_learning", "plateau", "oscillation"),
            size=(16, 10),
        ),
        curves(
            "Training and validation loss",
            Curve(gauge("caboose_loss", where=mean), "training"),
            Curve(gauge("caboose_validation_loss"), "validation"),
            unit="short",
            about="Both falling together is normal. Validation rising while training falls is overfitting; both high"
            " and flat is underfitting.",
            rules=("overfitting", "generalisation_gap", "underfitting", "data_repetition"),
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
            Curve(peak("caboose_gradient_norm"), "peak", is_thin=True),
            unit="short",
            log=10,
            rules=("gradient_explosion", "gradient_vanishing"),
            size=THIRD,
        ),
        curves(
            "Loss of each part",
            Curve(gauge("caboose_part_loss", "part"), "{{part}}"),
            unit="short",
            about="Of a job with several models, such as a GAN or an actor with its critics. Empty for one model.",
            rules=("non_finite", "loss_spike"),
            size=THIRD,
        ),
        curves(
            "Gradient norm of each part",
            Curve(gauge("caboose_part_gradient_norm", "part"), "{{part}}"),
            unit="short",
            log=10,
            about="Before clipping. Empty for one model.",
            rules=("gradient_explosion",),
            size=THIRD,
        ),
        curves(
            "Learning rate of each part",
            Curve(gauge("caboose_part_learning_rate", "part"), "{{part}}"),
            unit="sci",
            about="Of the largest parameter group of each part. Empty for one model.",
            rules=("lr_schedule",),
            size=THIRD,
        ),
        curves(
            "Update size",
            *(
                Curve(gauge("caboose_layer_update_ratio", where=(f'stat="{stat}"',)), f"{stat} over layers")
                for stat in STATS
            ),
            unit="sci",
            log=10,
            about="Size of an update divided by the size of the weights, over the layers. Between the two dashed"
            " lines is normal; the Layers dashboard shows each layer.",
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
            "Your metrics",
            Curve(gauge("caboose_user_metric", "name"), "{{name}}"),
            unit="short",
            about="Metrics that the training script reports with its steps, the first 16 names. Click a name to see it"
            " alone.",
            size=THIRD,
            is_open_ended=True,
        ),
        curves(
            "Step and last validation",
            Curve(gauge("caboose_job_step"), "step"),
            Curve(gauge("caboose_validation_step"), "last validation"),
            unit="locale",
            about="Current step, and step of the last validation. A large gap means that the validation is old; the"
            " step falls when an older checkpoint is resumed.",
            size=THIRD,
        ),
        curves(
            "Gradient noise ratio",
            Curve(gauge("caboose_gradient_noise_ratio"), "noise scale / batch"),
            unit="short",
            log=10,
            steps=((1 / BatchSizeConfig().wasteful_ratio, NOTED), (BatchSizeConfig().noisy_ratio, WARNED)),
            rules=("batch_size", "noise_growth"),
            size=THIRD,
        ),
    ]


STATS = ("median", "max", "min")


def _numbers() -> list[Panel]:
    clipped = f"{rate('caboose_clipped_steps_total')} / ({rate('caboose_job_steps_total')} > 0)"
    return [
        curves(
            "Non-finite and skipped steps",
            Curve(increase("caboose_non_finite_steps_total"), "NaN or infinite"),
            Curve(increase("caboose_skipped_steps_total"), "skipped by the loss scaler"),
            unit="none",
            about="Steps with a NaN or infinite loss or gradient, and steps that the loss scaler skipped. 0 is"
            " normal, except for a few skipped steps at the start.",
            rules=("non_finite", "loss_scale_collapse", "bad_batch"),
            steps=((1, WARNED),),
            size=THIRD,
            is_counted=True,
            least=0,
        ),
        curves(
            "Gradient clipping",
            Curve(gauge("caboose_clip_ratio"), "clip factor"),
            Curve(clipped, "share of steps clipped"),
            unit="percentunit",
            rules=("clipping",),
            steps=((ClippingConfig().ruling_share, WARNED),),
            about="Factor applied to the gradient, and share of clipped steps. Above the dashed line, clipping and"
            " not the learning rate sets the step size.",
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
            "Training throughput",
            Curve(gauge("caboose_samples_per_second"), "samples/s"),
            Curve(gauge("caboose_tokens_per_second"), "tokens/s"),
            unit="short",
            log=10,
            about="Samples and tokens per second of all ranks. Stable is normal; a lasting fall is a slowdown.",
            rules=("throughput_regression", "memory_growth"),
            size=THIRD,
        ),
        named(
            curves(
                "Step time by phase",
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
            "Data wait share",
            Curve(share, "share of the step"),
            unit="percentunit",
            about="Share of the step spent waiting for data. Below the lower dashed line is normal; above the upper"
            " one, the wait is severe.",
            steps=((DataStarvedConfig().warn_share, NOTED), (DataStarvedConfig().severe_share, WARNED)),
            rules=("data_starved",),
            size=THIRD,
            least=0,
        ),
        curves(
            "Steps per second",
            Curve(rate("caboose_job_steps_total"), "steps/s"),
            unit="short",
            about="Aligned steps per second. Stable is normal; 0 while the job runs is a stall.",
            rules=("job_stalled",),
            least=0,
        ),
        curves(
            "Agent overhead",
            Curve(gauge("caboose_agent_overhead_ratio"), "share of a step"),
            unit="percentunit",
            steps=((OVERHEAD, WARNED),),
            about="Share of the step time that the agent takes on the training thread. Below 1 % is normal; above it,"
            " the agent samples less often.",
            least=0,
        ),
    ]


DATA = 'phase="data"'


def _sight() -> list[Panel]:
    return [
        table(
            "Agent blind spots",
            {
                "stat": Column("what"),
                "value": Column("", gauge("caboose_blind", "stat"), mappings=mapped(**{"1": "blind"})),
            },
            about="Quantities that the agent cannot see; the rules that need them abstain. None is normal; the page"
            " of the job gives the reason.",
            rules=("monitor_blind",),
            size=(8, 6),
            none="no blind spots",
        ),
        number("Abstaining rules", gauge("caboose_rules_abstaining"), unit="none", size=(4, 6)),
        number("Unmeasured layers", gauge("caboose_layers_unseen"), unit="none", steps=((1, WARNED),), size=(4, 6)),
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
            size=(8, 6),
            is_counted=True,
            least=0,
        ),
    ]
