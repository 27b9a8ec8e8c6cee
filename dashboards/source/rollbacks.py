"""Rollbacks: one job. What may be done to it, what was done and what it cost, and what it could go back to."""

from grafana_foundation_sdk.builders import dashboard as build

from dashboards.source.board import board
from dashboards.source.look import FINE, GREY, NOTED, WARNED, YES_IS_BAD, words
from dashboards.source.panels import Column, Curve, Panel, curves, named, number, table
from dashboards.source.queries import gauge, increase, peak, trough

THIRD = (8, 8)
MODES = words(_0=("off", GREY), _1=("advise", NOTED), _2=("auto", FINE))


def rollbacks() -> build.Dashboard:
    """The dashboard."""
    return board(
        "rollbacks",
        "Rollbacks",
        "One job: what may be done to it, what was decided and what that cost, and what it could go back to.",
        [
            ("Now", _now()),
            ("What was done", _done()),
            ("What could be gone back to", _saved()),
        ],
        jobs="one",
    )


def _mode(whose: str) -> str:
    return gauge("caboose_rollback_mode", where=(f'stat="{whose}"',))


def _now() -> list[Panel]:
    return [
        number("Mode in force", _mode("effective"), unit="none", mappings=MODES),
        number("The run allows", _mode("job"), unit="none", mappings=MODES, size=(3, 4)),
        number("The daemon allows", _mode("daemon"), unit="none", mappings=MODES, size=(3, 4)),
        number(
            "Rollbacks left today",
            gauge("caboose_rollback_budget_left"),
            unit="none",
            steps=((1, FINE),),
            base=WARNED,
            rules=("CabooseRollbackExhausted",),
        ),
        number("Cool-down, steps", gauge("caboose_rollback_cooldown_steps"), unit="locale", size=(3, 4)),
        number(
            "Nothing left to try",
            gauge("caboose_rollback_exhausted"),
            unit="none",
            mappings=YES_IS_BAD,
            rules=("CabooseRollbackExhausted",),
        ),
        number("Attempt now", gauge("caboose_job_attempt"), unit="none", size=(3, 4)),
    ]


def _done() -> list[Panel]:
    decided = gauge("caboose_decisions_total", "action", "reason")
    return [
        curves(
            "Loss",
            Curve(gauge("caboose_loss", where=('stat="mean"',)), "mean over ranks"),
            Curve(peak("caboose_loss", where=('stat="max"',)), "highest rank, at its highest", is_thin=True),
            Curve(trough("caboose_loss", where=('stat="min"',)), "lowest rank, at its lowest", is_thin=True),
            unit="short",
            about="From a mark named *Rolled back* on, the weights are those of an earlier step; the data goes on.",
            rules=("CabooseRolledBack", "loss_spike", "divergence"),
            size=(16, 10),
        ),
        curves(
            "Steps taken, and steps in the weights",
            Curve(gauge("caboose_job_step"), "steps taken"),
            Curve(gauge("caboose_model_step"), "steps in the weights"),
            unit="locale",
            about="The loop's own step never goes back. The gap between the two is what rollbacks have undone.",
            size=(8, 10),
        ),
        curves(
            "Attempts",
            Curve(gauge("caboose_job_attempt"), "attempt"),
            unit="none",
            about="It rises with every rollback, and with every restart.",
            size=THIRD,
            least=0,
        ),
        curves(
            "Decisions by outcome",
            Curve(increase("caboose_decisions_total", "action", "reason"), "{{action}} {{reason}}"),
            unit="none",
            about="What was proposed, by the daemon or by hand (`caboose rollback`), once its outcome is known.",
            rules=("CabooseRolledBack", "CabooseRollbackFailed"),
            size=THIRD,
            is_counted=True,
            is_open_ended=True,
            least=0,
        ),
        table(
            "Decisions so far",
            {
                "action": Column("action"),
                "reason": Column("what became of it"),
                "count": Column("decisions", f"{decided} > 0"),
            },
            about="Since the daemon knows the job. Why each was made is on the job's page.",
            rules=("CabooseRollbackFailed",),
            size=THIRD,
            sort="count",
            none="nothing was decided",
        ),
        curves(
            "Steps lost to rollbacks",
            Curve(gauge("caboose_rollback_lost_steps_total"), "lost so far"),
            unit="locale",
            size=THIRD,
            least=0,
        ),
        number(
            "The last rollback took",
            gauge("caboose_rollback_seconds"),
            unit="s",
            none="none yet",
            size=THIRD,
        ),
        curves(
            "Updates left out by skip_step",
            Curve(increase("caboose_skipped_updates_total"), "updates"),
            unit="none",
            about="The lowest rung: a step whose gradient is not finite, or an outlier, changes nothing.",
            rules=("bad_batch",),
            size=THIRD,
            is_counted=True,
            least=0,
        ),
    ]


def _saved() -> list[Panel]:
    return [
        curves(
            "Age of the newest snapshot",
            Curve(gauge("caboose_snapshot_age_steps"), "steps ago"),
            Curve(gauge("caboose_snapshot_every_steps"), "cadence", is_thin=True),
            unit="locale",
            about="What a rollback would cost now, at least. It grows while something is wrong: none is taken then.",
            rules=("CabooseNoWayBack",),
            size=THIRD,
            least=0,
        ),
        curves(
            "Snapshots ready",
            Curve(gauge("caboose_snapshots_ready"), "on all ranks"),
            unit="none",
            steps=((1, FINE),),
            rules=("CabooseNoWayBack",),
            size=THIRD,
            least=0,
        ),
        curves(
            "What a snapshot takes",
            Curve(gauge("caboose_snapshot_seconds"), "on the training thread"),
            unit="s",
            size=(4, 8),
            least=0,
        ),
        number("Size of a snapshot", gauge("caboose_snapshot_size_bytes"), unit="bytes", none="none kept", size=(4, 8)),
        named(
            curves(
                "Checkpoints by health",
                Curve(gauge("caboose_checkpoints", "stat"), "{{stat}}"),
                unit="none",
                rules=("CabooseNoWayBack",),
                is_stacked=True,
                least=0,
            ),
            "unproven",
            "tainted",
            "healthy",
        ),
        named(
            curves(
                "Steps of the checkpoints that matter",
                Curve(gauge("caboose_checkpoint_step", "stat"), "{{stat}}"),
                unit="locale",
                about="A restart resumes from the newest healthy one. The best is by validation.",
            ),
            "newest",
            "best",
            "healthy",
        ),
    ]
