"""Norms are right however the model is sharded: those of the unsharded model, and of the run's gathered gradients."""

import functools
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caboose_daemon.steps.aligned import AlignedStep, combine
from caboose_wire import Hello, StepReport
from support.collector import Collector, collector
from support.training import JOBS, finish, training

pytestmark = pytest.mark.slow
STEPS = 5
LAUNCHES = {
    1: ("plain", "compile"),
    2: (
        "ddp",
        "ddp_compiled",
        "fsdp1",
        "fsdp1_flat",
        "fsdp2",
        "accumulate",
        "amp",
        "two_optimizers",
        "clip",
        "clip_by_name",
        "fsdp1_clip",
        "fsdp2_clip",
    ),
    4: ("fsdp1_hybrid", "fsdp2_hybrid"),
}
"""Modes by the number of ranks they are run on; one launch does them all, one after the other."""


class Run:
    """A finished run: what the daemon makes of it, and what its ranks gathered themselves."""

    def __init__(self, hello: Hello, steps: list[AlignedStep], ranks: list[dict[str, Any]]) -> None:
        self.hello = hello
        self.steps = steps
        self.own = ranks[0]["norms"]
        self.num_collectives = [rank["collectives"] for rank in ranks]


@functools.cache
def launch(num: int, *, watched: bool = True) -> tuple[Collector, list[dict[str, Any]]]:
    """Trains in every mode of this number of ranks: what was reported, and what each rank wrote."""
    modes = LAUNCHES[num]
    out = Path(tempfile.mkdtemp(prefix="caboose-numbers-"))
    with collector() as listening:
        env = {"CABOOSE_ENDPOINT": listening.endpoint, "CABOOSE_DISABLED": "0" if watched else "1"}
        with training(out, *modes, env=env, ranks=num, script=JOBS / "sharded.py") as job:
            ranks = finish(job, out, timeout=110, ranks=num)
        if watched:
            listening.wait_for(StepReport, STEPS * num * len(modes))
    return listening, ranks


def run(mode: str) -> Run:
    """One mode's run."""
    num = next(num for num, modes in LAUNCHES.items() if mode in modes)
    listening, ranks = launch(num)
    hellos = {peer: m for peer, m in listening.by_peer if isinstance(m, Hello) and m.job == mode}
    by_step: dict[int, dict[int, StepReport]] = defaultdict(dict)
    for peer, message in listening.by_peer:
        if isinstance(message, StepReport) and peer in hellos:
            by_step[message.step][hellos[peer].rank] = message
    hello = min(hellos.values(), key=lambda h: h.rank)
    steps = [
        combine(by_step[step], attempt=1, step=step, world=num, layers=hello.layers) for step in range(1, STEPS + 1)
    ]
    return Run(hello, steps, [rank[mode] for rank in ranks])


ALL = [
    "ddp",
    "ddp_compiled",
    "fsdp1",
    "fsdp1_flat",
    "fsdp1_hybrid",
    "fsdp2",
    "fsdp2_hybrid",
    "accumulate",
    "amp",
    "two_optimizers",
    "compile",
    "clip",
]


@pytest.mark.parametrize("mode", ["plain", *ALL, "clip_by_name", "fsdp1_clip", "fsdp2_clip"])
def test_every_layers_norm_is_that_of_the_runs_own_gathered_gradients(mode: str) -> None:
    found = run(mode)
    for step, own in zip(found.steps, found.own, strict=True):
        assert step.num_unseen_layers == 0
        np.testing.assert_allclose(step.layer_grad_norm.to_wire(), own, rtol=1e-6, atol=1e-9)
        assert step.grad_norm == pytest.approx(math.hypot(*own), rel=1e-6)


@pytest.mark.parametrize("mode", [mode for mode in ALL if mode != "clip"])
def test_the_global_norm_is_that_of_the_unsharded_model(mode: str) -> None:
    plain, found = run("plain"), run(mode)
    for a, b in zip(plain.steps, found.steps, strict=True):
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-4)
        if mode != "fsdp1_flat":  # which has units, not layers
            np.testing.assert_allclose(b.layer_grad_norm.to_wire(), a.layer_grad_norm.to_wire(), rtol=1e-4, atol=1e-8)


def test_flat_units_are_named_as_what_they_are() -> None:
    names = [layer.name for layer in run("fsdp1_flat").hello.layers]
    assert len(names) == 2
    assert all(name.endswith("_flat_param") for name in names)
    assert [layer.name for layer in run("fsdp1").hello.layers] == [layer.name for layer in run("plain").hello.layers]


@pytest.mark.parametrize(
    ("mode", "placement", "replicas"),
    [("fsdp2_hybrid", "sharded", 2), ("fsdp1_hybrid", "sharded", 2), ("fsdp2", "sharded", 1), ("ddp", "replicated", 2)],
)
def test_hello_says_how_each_parameter_lies(mode: str, placement: str, replicas: int) -> None:
    assert {(layer.placement, layer.replicas) for layer in run(mode).hello.layers} == {(placement, replicas)}


@pytest.mark.parametrize("mode", ["ddp", "ddp_compiled", "fsdp1", "fsdp2", "clip", "fsdp2_clip"])
def test_not_one_collective_is_added(mode: str) -> None:
    _, bare = launch(2, watched=False)
    assert run(mode).num_collectives == [rank[mode]["collectives"] for rank in bare]


@pytest.mark.parametrize("mode", ["clip", "clip_by_name", "fsdp1_clip", "fsdp2_clip"])
def test_clipping_is_seen_and_by_how_much_it_acted(mode: str) -> None:
    for step in run(mode).steps:
        clipping = step.reports[0].clipping
        assert clipping is not None
        assert clipping.max_norm == 0.01
        assert step.clip_ratio == pytest.approx(0.01 / (step.grad_norm + 1e-6))
        if clipping.total_norm is not None:
            assert clipping.total_norm == pytest.approx(step.grad_norm, rel=1e-5)
    if mode.startswith("clip"):
        assert run(mode).steps[0].reports[0].clipping.total_norm is not None, "taken over from the clipper"


@pytest.mark.parametrize("mode", ["ddp", "ddp_compiled"])
def test_replicas_have_one_fingerprint_that_changes_with_the_weights(mode: str) -> None:
    seen = []
    for step in run(mode).steps:
        prints = {report.fingerprint for report in step.reports.values()}
        assert len(prints) == 1
        seen += [p for p in prints if p is not None]
    assert len(seen) == 3, "on sampled steps"
    assert len(set(seen)) == 3


def test_a_scaler_is_reported_and_its_scale_is_not_in_the_norms() -> None:
    report = run("amp").steps[0].reports[0]
    assert report.scaler is not None
    assert report.scaler.scale == 1024.0
    local = run("amp").steps[0].local_grad_norm
    assert local == pytest.approx(run("ddp").steps[0].local_grad_norm, rel=1e-5)


def test_local_gradients_are_seen_through_a_compiled_ddp() -> None:
    assert "local_gradients" not in run("ddp_compiled").hello.blind
    local = run("ddp_compiled").steps[0].local_grad_norm
    assert local == pytest.approx(run("ddp").steps[0].local_grad_norm, rel=1e-4)


def test_the_work_on_replicated_layers_is_divided_and_rotated() -> None:
    covered = [{rank: set(_rows(report)) for rank, report in step.reports.items()} for step in run("ddp").steps]
    for step in covered:
        assert not step[0] & step[1], "no layer is looked at twice"
        assert len(step[0] | step[1]) == len(run("ddp").hello.layers)
    assert covered[0][0] == covered[1][1], "and the next step it is the other rank's"


def _rows(report: StepReport) -> range:
    start, _ = report.slices["grad_norm"]
    return range(start, start + len(report.arrays["grad_norm"]))


def test_what_a_silent_rank_leaves_out_is_said_and_not_guessed() -> None:
    found = run("ddp")
    alone = {0: found.steps[0].reports[0]}
    step = combine(alone, attempt=1, step=1, world=2, layers=found.hello.layers)
    assert step.num_unseen_layers > 0
    assert step.grad_norm is None
    assert step.num_present == 1
