"""After the fact, advice says what acting would have saved; history sums it up."""

import numpy as np

from caboose_daemon.offline.runs.past import rollback_totals
from caboose_daemon.out.api import json_shapes
from support.guarded import Guarded, guarded


class Where:
    """Decisions as a run source gives them."""

    def __init__(self, run: Guarded) -> None:
        self._run = run

    def decisions(self, job: str) -> list[dict[str, object]]:
        return [json_shapes.decision(decision) for decision in reversed(self._run.decisions)]


def advised(steps: int) -> Guarded:
    run = guarded(rollback={"mode": "advise"}).healthy(100)
    return run.losses(*6.0 * (1.0 + 0.01 * np.random.default_rng(1).standard_normal(steps)))


def test_advice_that_would_have_helped_says_by_how_much_once_its_incident_is_over() -> None:
    run = advised(80)
    assert run.decisions[0].saved is None

    run.healthy(40)

    (decision,) = run.decisions
    assert decision.cost is not None
    assert decision.saved is not None
    assert 20 < decision.saved < 75
    assert f"acting would have saved {decision.saved:.0f}" in decision.explain()[-1]
    totals = rollback_totals(Where(run), ["train"])  # type: ignore[arg-type]
    assert (totals["num_advised"], totals["num_judged"], totals["num_right"]) == (1, 1, 1)
    assert totals["saved"] == decision.saved


def test_advice_that_would_have_cost_more_says_so() -> None:
    run = advised(31).healthy(40)

    (decision,) = run.decisions
    assert decision.saved is not None
    assert decision.saved < 0
    assert "acting would have cost" in decision.explain()[-1]


def test_the_end_of_the_run_closes_the_account_too() -> None:
    run = advised(60).leaves(0, 1)
    run.core.pass_time(run.now + 5.0)

    assert run.decisions[0].saved is not None
