"""Norms of a network that lies on a mesh are those of the unsharded network, or are stated as not known."""

import functools
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.steps.aligned import AlignedStep, combine
from caboose_wire import Hello, StepReport
from support.collector import Collector, collector
from support.training import JOBS, finish, training

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]
STEPS = 4
SUMS = ("sequence", "tied", "by_hand")
"""Some gradients are `Partial` there: those of the norms, and with placements by hand most of them."""
LAYOUTS = {
    2: ("tp", "sequence", "tied", "fsdp"),
    4: ("tp", "sequence", "fsdp", "hybrid", "fsdp_tp", "by_hand", "fsdp_some_tp", "experts"),
}
ALL = [(layout, world) for world, layouts in LAYOUTS.items() for layout in layouts]
IN_PART = ("fsdp_some_tp", "experts")
KNOWN = [(layout, world) for layout, world in ALL if layout not in (*SUMS, *IN_PART)]


@functools.cache
def launch(world: int) -> tuple[Collector, list[dict[str, Any]]]:
    out = Path(tempfile.mkdtemp(prefix="caboose-meshes-"))
    with collector() as listening:
        env = {"CABOOSE_ENDPOINT": listening.endpoint}
        with training(out, *LAYOUTS[world], env=env, ranks=world, script=JOBS / "meshes.py") as job:
            ranks = finish(job, out, timeout=500, ranks=world)  # eight layouts, of four ranks each
        listening.wait_for(StepReport, STEPS * world * len(LAYOUTS[world]))
    return listening, ranks


def run(layout: str, world: int) -> tuple[Hello, list[AlignedStep], dict[str, Any]]:
    """The last Hello, the steps, and what the ranks wrote."""
    listening, ranks = launch(world)
    hellos = {peer: m for peer, m in listening.by_peer if isinstance(m, Hello) and m.job == f"{layout}-{world}"}
    by_step: dict[int, dict[int, StepReport]] = defaultdict(dict)
    for peer, message in listening.by_peer:
        if isinstance(message, StepReport) and peer in hellos:
            by_step[message.step][hellos[peer].rank] = message
    hello = min(hellos.values(), key=lambda each: each.rank)
    steps = [
        combine(by_step[step], attempt=1, step=step, world=world, layers=hello.layers) for step in range(1, STEPS + 1)
    ]
    assert all(rank[layout]["failures"] == 0 for rank in ranks)
    return hello, steps, ranks[0][layout]


@pytest.mark.parametrize(("layout", "world"), [(layout, world) for layout, world in ALL if layout in SUMS])
def test_a_gradient_that_is_a_sum_on_each_rank_is_stated_and_left_out(layout: str, world: int) -> None:
    hello, steps, own = run(layout, world)
    unknown = {layer.name for layer in hello.layers if layer.placement == "unknown"}
    assert "gradients" in hello.blind
    if layout != "by_hand":
        assert unknown == {layer.name for layer in hello.layers if "norm" in layer.name}
    for step, norms in zip(steps, own["norms"], strict=True):
        rest = math.hypot(*(norm for name, norm in norms.items() if name not in unknown))
        assert step.grad_norm == pytest.approx(rest, rel=1e-6)


@pytest.mark.parametrize(("layout", "world"), KNOWN)
def test_norms_are_those_of_the_unsharded_network(layout: str, world: int) -> None:
    hello, steps, own = run(layout, world)
    assert "gradients" not in hello.blind
    for step, norms in zip(steps, own["norms"], strict=True):
        assert step.grad_norm == pytest.approx(math.hypot(*norms.values()), rel=1e-6)
        found = dict(zip((layer.name for layer in hello.layers), step.layer_grad_norm.values, strict=True))
        assert found == pytest.approx(norms, rel=1e-6)


@pytest.mark.parametrize("layout", IN_PART)
def test_what_lies_on_a_part_of_the_job_is_stated_and_not_summed(layout: str) -> None:
    hello, steps, own = run(layout, 4)
    assert "gradients" in hello.blind
    for step, norms in zip(steps, own["norms"], strict=True):
        for layer, norm, has in zip(hello.layers, step.layer_grad_norm.values, step.layer_grad_norm.has, strict=True):
            if has:
                assert norm == pytest.approx(norms[layer.name], rel=1e-6)
        assert step.grad_norm is None or step.grad_norm < math.hypot(*norms.values()) * (1 + 1e-6)
