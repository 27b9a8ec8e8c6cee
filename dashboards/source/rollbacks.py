"""Rollbacks: one job. Rollback mode, decisions and their cost, snapshots and checkpoints."""

from grafana_foundation_sdk.builders import dashboard as build

from dashboards.source.board import board
from dashboards.source.look import FINE, GREY, NOTED, WARNED, YES_IS_BAD, words
from dashboards.source.panels import Column, Curve, Panel, curves, named, number, table
from dashboards.source.queries import gauge, increase, peak, trough

THIRD = (8, 8)
MODES = words(_0=("off", GREY), _1=("advise", NOTED), _2=("auto", FINE))


def rollbacks() -> build.Dashboard:
    return board(
        "rollbacks",
        "Rollbacks",
        "One job: what may be done to it, what was decided, what it cost, and what it can go back to.",
        [
            ("Now", _now()),
            ("Decisions and effects", _done()),
            ("Snapshots and checkpoints", _saved()),
        ],
        jobs="one",
    )


def _mode(whose: str) -> str:
    return gauge("caboose_rollback_mode", where=(f'stat="{whose}"',))


def _now() -> list[Panel]:
    return [
        number(
            "Effective rollback mode",
            _mode("effective"),
            unit="none",
            mappings=MODES,
            about="The lower of what job and daemon allow: off, advise or auto. On auto, runs are rolled back without"
            " a person.",
        ),
        number(
            "Mode allowed by job",
            _mode("job"),
            unit="none",
            mappings=MODES,
            size=(3, 4),
            about="The rollback mode that the owner of the job allows: off, advise or auto.",
        ),
        number(
            "Mode allowed by daemon",
            _mode("daemon"),
            unit="none",
            mappings=MODES,
            size=(3, 4),
            about="The rollback mode that the daemon allows: off, advise or auto.",
        ),
        number(
            "Rollbacks left today",
            gauge("caboose_rollback_budget_left"),
            unit="none",
            steps=((1, FINE),),
            base=WARNED,
            rules=("CabooseRollbackExhausted",),
        ),
        number("Cool-down steps left", gauge("caboose_rollback_cooldown_steps"), unit="locale", size=(3, 4)),
        number(
            "Rollback exhausted",
            gauge("caboose_rollback_exhausted"),
            unit="none",
            mappings=YES_IS_BAD,
            rules=("CabooseRollbackExhausted",),
        ),
        number("Current attempt", gauge("caboose_job_attempt"), unit="none", size=(3, 4)),
    ]


def _done() -> list[Panel]:
    decided = gauge("caboose_decisions_total", "action", "reason")
    return [
        curves(
            "Training loss",
            Curve(gauge("caboose_loss", where=('stat="mean"',)), "mean over ranks"),
            Curve(peak("caboose_loss", where=('stat="max"',)), "highest rank, peak", is_thin=True),
            Curve(trough("caboose_loss", where=('stat="min"',)), "lowest rank, minimum", is_thin=True),
            unit="short",
            about="Loss over the ranks; a slow fall is normal. After a mark *Rolled back*, the weights are those of"
            " an earlier step and the data moves on.",
            rules=("CabooseRolledBack", "loss_spike", "divergence"),
            size=(16, 10),
        ),
        curves(
            "Job step and model step",
            Curve(gauge("caboose_job_step"), "job step"),
            Curve(gauge("caboose_model_step"), "model step"),
            unit="locale",
            about="Steps that the loop has taken, and updates contained in the weights. Equal is normal; the gap is"
            " what rollbacks undid.",
            size=(8, 10),
        ),
        curves(
            "Attempt number",
            Curve(gauge("caboose_job_attempt"), "attempt"),
            unit="none",
            about="Number of the current attempt. Flat is normal; it rises with every rollback and restart.",
            size=THIRD,
            least=0,
        ),
        curves(
            "Decisions by outcome",
            Curve(increase("caboose_decisions_total", "action", "reason"), "{{action}} {{reason}}"),
            unit="none",
            about="Decisions, automatic or requested with `caboose rollback`, counted when their outcome is known."
            " None is normal.",
            rules=("CabooseRolledBack", "CabooseRollbackFailed"),
            size=THIRD,
            is_counted=True,
            is_open_ended=True,
            least=0,
        ),
        table(
            "All decisions",
            {
                "action": Column("action"),
                "reason": Column("outcome"),
                "count": Column("decisions", f"{decided} > 0"),
            },
            about="Decisions since the daemon first saw the job; none is normal. The page of the job gives the reason"
            " of each.",
            rules=("CabooseRollbackFailed",),
            size=THIRD,
            sort="count",
            none="no decisions",
        ),
        curves(
            "Steps lost to rollbacks",
            Curve(gauge("caboose_rollback_lost_steps_total"), "lost so far"),
            unit="locale",
            size=THIRD,
            least=0,
        ),
        number(
            "Last rollback duration",
            gauge("caboose_rollback_seconds"),
            unit="s",
            none="no rollback",
            size=THIRD,
        ),
        curves(
            "Updates skipped by skip_step",
            Curve(increase("caboose_skipped_updates_total"), "updates"),
            unit="none",
            about="Updates left out because the gradient was not finite or an outlier. A few are normal; many point"
            " to the data or the learning rate.",
            rules=("bad_batch",),
            size=THIRD,
            is_counted=True,
            least=0,
        ),
    ]


def _saved() -> list[Panel]:
    return [
        curves(
            "Newest snapshot age",
            Curve(gauge("caboose_snapshot_age_steps"), "steps ago"),
            Curve(gauge("caboose_snapshot_every_steps"), "interval", is_thin=True),
            unit="locale",
            about="Steps since the newest usable snapshot: the minimum cost of a rollback now. It grows while an"
            " incident is open, because no snapshots are taken then.",
            rules=("CabooseNoWayBack",),
            size=THIRD,
            least=0,
        ),
        curves(
            "Usable snapshots",
            Curve(gauge("caboose_snapshots_ready"), "on all ranks"),
            unit="none",
            steps=((1, FINE),),
            rules=("CabooseNoWayBack",),
            size=THIRD,
            least=0,
        ),
        curves(
            "Snapshot duration",
            Curve(gauge("caboose_snapshot_seconds"), "on the training thread"),
            unit="s",
            size=(4, 8),
            least=0,
        ),
        number("Snapshot size", gauge("caboose_snapshot_size_bytes"), unit="bytes", none="no snapshot", size=(4, 8)),
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
                "Checkpoint steps",
                Curve(gauge("caboose_checkpoint_step", "stat"), "{{stat}}"),
                unit="locale",
                about="Steps of the newest, the newest healthy, and the best checkpoint by validation. A restart"
                " resumes from the newest healthy one.",
            ),
            "newest",
            "best",
            "healthy",
        ),
    ]
