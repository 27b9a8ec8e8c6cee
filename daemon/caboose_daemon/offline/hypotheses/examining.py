"""All five hypotheses, tested on one run, and what the run shows."""

from typing import Any

from caboose_daemon.offline.hypotheses.convergence import NORMAL
from caboose_daemon.offline.hypotheses.curvature import Curvature
from caboose_daemon.offline.hypotheses.decayed_schedule import DECAYED
from caboose_daemon.offline.hypotheses.flat_region import FLAT
from caboose_daemon.offline.hypotheses.hypothesis import Hypothesis, Tested
from caboose_daemon.offline.hypotheses.overfit_or_stale import OVERFIT
from caboose_daemon.offline.hypotheses.same_number import SAME
from caboose_daemon.offline.hypotheses.window import CLEAR, Window, percent
from caboose_daemon.offline.runs.run import Run
from caboose_daemon.rules.parts.curve import Trend

HYPOTHESES: tuple[Hypothesis, ...] = (NORMAL, FLAT, DECAYED, SAME, OVERFIT)
ORDER = ("supported", "undecided", "refuted")


def examine(run: Run, curvature: Curvature | None = None) -> dict[str, Any]:
    """The answer of `caboose diagnose JOB --now`, in JSON's shapes; supported hypotheses come first."""
    window = Window(run, curvature)
    tested = [Tested(one, one.test(window)) for one in HYPOTHESES]
    tested.sort(key=lambda one: ORDER.index(one.result.verdict))
    return {
        "job": run.name,
        "state": run.state,
        "step": run.last_step,
        "since": window.start,
        "hours": window.hours,
        "training": _line(window.train_line),
        "validation": {**_line(window.validation_line), "num_evaluations": len(window.recent_losses)},
        "hypotheses": [one.as_object() for one in tested],
    }


def _line(line: Trend | None) -> dict[str, Any]:
    """A line as numbers and in words."""
    if line is None:
        return {"change": None, "error": None, "level": None, "says": "too few values for a trend"}
    how = "falls" if line.falls(CLEAR) else "rises" if line.rises(CLEAR) else "is flat within its noise"
    return {
        "change": line.relative,
        "error": line.relative_error,
        "level": line.level,
        "says": f"{how}: {percent(line)}, level {line.level:.4g}",
    }
