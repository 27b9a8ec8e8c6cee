"""Under tensor parallelism each rank looks at its own part, alone, and the ranks never wait for each other's looks."""

import functools
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.steps.aligned import combine
from caboose_wire import Hello, StepReport
from support.collector import Collector, collector
from support.training import JOBS, finish, training

pytestmark = pytest.mark.slow
STEPS, RANKS = 8, 2
LAYOUTS = ("standard", "sharded", "mixed", "replicated")


@functools.cache
def launch(*, watched: bool) -> tuple[Collector, list[dict[str, Any]]]:
    """Trains in every layout: what was reported, and what each rank wrote."""
    out = Path(tempfile.mkdtemp(prefix="caboose-tensor-parallel-"))
    with collector() as listening:
        env = {"CABOOSE_ENDPOINT": listening.endpoint, "CABOOSE_DISABLED": "0" if watched else "1"}
        with training(out, *LAYOUTS, env=env, ranks=RANKS, script=JOBS / "tensor_parallel.py") as job:
            ranks = finish(job, out, timeout=100, ranks=RANKS)
        if watched:
            listening.wait_for(StepReport, STEPS * RANKS * len(LAYOUTS))
    return listening, ranks


def reports(layout: str) -> tuple[Hello, dict[int, dict[int, StepReport]]]:
    listening, _ = launch(watched=True)
    hellos = {peer: m for peer, m in listening.by_peer if isinstance(m, Hello) and m.job == layout}
    found: dict[int, dict[int, StepReport]] = defaultdict(dict)
    for peer, message in listening.by_peer:
        if isinstance(message, StepReport) and peer in hellos:
            found[message.step][hellos[peer].rank] = message
    return min(hellos.values(), key=lambda hello: hello.rank), found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_look_at_different_steps_add_no_collective_and_change_nothing(layout: str) -> None:
    _, watched = launch(watched=True)
    _, bare = launch(watched=False)
    for mine, theirs in zip(watched, bare, strict=True):
        assert mine[layout]["failures"] == 0
        assert mine[layout]["collectives"] == theirs[layout]["collectives"]
        assert mine[layout]["losses"] == theirs[layout]["losses"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_and_loss_are_those_the_run_gathers_itself(layout: str) -> None:
    _, ranks = launch(watched=True)
    hello, by_step = reports(layout)
    for number, (norm, loss) in enumerate(zip(ranks[0][layout]["norms"], ranks[0][layout]["losses"], strict=True), 1):
        step = combine(by_step[number], attempt=1, step=number, world=RANKS, layers=hello.layers)
        assert step.grad_norm == pytest.approx(norm, rel=1e-5)
        assert [report.loss for report in by_step[number].values()] == pytest.approx([loss] * RANKS, rel=1e-6)


def test_each_rank_tells_of_the_activations_it_has_itself_but_for_summands() -> None:
    hello, by_step = reports("sharded")
    report = by_step[1][0]
    assert [module.name for module in hello.modules] == ["0", "1", "2"]
    assert list(report.arrays["activation_order"]) == [0, 1, -1], "the last output is not yet summed over the ranks"
    assert report.arrays["activation_max"][0] > 0
    assert by_step[3][0].is_sampled
    assert not by_step[3][1].is_sampled
