"""A small fleet for dashboards: a real job under torchrun, and simulated ones that show what a short run does not.

Design
------
All of it is in real time, because Prometheus scrapes in real time: the simulated jobs make five steps a second for as
long as they are asked to, and their story is played in shares of that time. So the same story fills a test of half a
minute and a picture of three.

`gpt-124m`     eight ranks on four hosts, mixed precision, clipping, validation. A rank's batches overflow for two
               seconds (NaN, skipped steps), one layer's units die, one rank becomes slow. Early on, somebody has it
               rolled back.
`resnet-50`    four ranks and two parts, nothing wrong
`bert-large`   ended with an error; `mnist` ended well; `vit-base` ended with a loss of NaN
`transformer`  the real one: two ranks of `caboose_drills.demo`, with its spike
"""

import contextlib
import math
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from caboose_wire import (
    Ack,
    Bye,
    Clipping,
    Event,
    Group,
    Heartbeat,
    Held,
    Holdings,
    Layer,
    Module,
    Part,
    Phases,
    Scaler,
    StepReport,
)
from support.processes import DaemonProcess, clean_environment, end, torchrun
from support.ranks import EVERYTHING, SimulatedRank, simulated_ranks

BIG, QUIET, REAL, CRASHED, DONE, BROKEN = "gpt-124m", "resnet-50", "transformer", "bert-large", "mnist", "vit-base"
FOUR = "mlp-4"
"""The real job of the pictures of Ranks and Layers."""
STEP_SECONDS = 0.2
SAMPLE_EVERY = 4
SNAPSHOT_EVERY = 10
NUM_BLOCKS = 12
OVERFLOWING, SLOW, DYING = 3, 5, 7
"""The ranks that overflow and are slow, and the block whose units die."""
LAYERS = (
    Layer(name="embed.weight", numel=38_597_376, kind="Embedding"),
    *(
        Layer(name=f"blocks.{block}.{name}.weight", numel=589_824 * (1 + place), kind="Linear")
        for block in range(NUM_BLOCKS)
        for place, name in enumerate(("attn.qkv", "attn.proj", "mlp.up", "mlp.down"))
    ),
    Layer(name="head.weight", numel=38_597_376, kind="Linear"),
)
MODULES = tuple(
    Module(f"blocks.{block}.{name}", kind, 768)
    for block in range(NUM_BLOCKS)
    for name, kind in (("mlp.act", "ReLU"), ("gate", "Sigmoid"))
)
BIG_HELLO: dict[str, Any] = {
    "job": BIG,
    "layers": LAYERS,
    "modules": MODULES,
    "groups": (Group("decay", "AdamW", {"lr": 6e-4}), Group("rest", "AdamW", {"lr": 6e-4})),
    "visible": EVERYTHING,
    "blind": {"activations_of_compiled": "compiled"},
    "facts": {"optimizer": "AdamW", "precision": "float16", "batch_size": 64},
    "rollback": "auto",
}
SECOND_LAUNCH = {**BIG_HELLO, "launch": "run-2", "incarnation": "a-second-launch"}
QUIET_HELLO: dict[str, Any] = {
    "job": QUIET,
    "groups": (Group("student.0", "SGD", {"lr": 0.1}), Group("critic.0", "SGD", {"lr": 0.1})),
    "facts": {"optimizer": "SGD", "precision": "float32"},
    "parts": (Part("student", (0, 2), (0, 1)), Part("critic", (2, 4), (1, 2))),
}


@dataclass
class Story:
    """How far the simulated jobs are; `share` is the part of their time that is over."""

    seconds: float
    draw: np.random.Generator
    step: int = 0
    num_skipped: int = 0
    attempt: int = 0
    num_lost: int = 0
    """Steps that a rollback undid."""
    rollback: dict[str, Any] | None = None
    """The decision to go back, while it is to come."""

    @property
    def share(self) -> float:
        return min(1.0, self.step * STEP_SECONDS / self.seconds)

    @property
    def is_overflowing(self) -> bool:
        return 0.45 <= self.share < 0.45 + 2.0 / self.seconds

    @property
    def is_sampled(self) -> bool:
        return self.step % SAMPLE_EVERY == 0

    @property
    def model_step(self) -> int:
        return self.step - self.num_lost


def play(daemon: DaemonProcess, seconds: float, is_over: Callable[[], bool]) -> None:
    """Tells the simulated jobs' story, in real time, and lets them train on until `is_over`."""
    story = Story(seconds, np.random.default_rng(7))
    with contextlib.ExitStack() as stack:
        big = stack.enter_context(simulated_ranks(daemon.endpoint, 8, BIG_HELLO, per_host=2))
        quiet = stack.enter_context(simulated_ranks(daemon.endpoint, 4, QUIET_HELLO, per_host=4))
        for job, error in ((CRASHED, "RuntimeError: CUDA error: an illegal memory access"), (DONE, "")):
            (simulated,) = stack.enter_context(simulated_ranks(daemon.endpoint, 1, {"job": job}))
            simulated.send(StepReport(attempt=0, seq=1, step=1, model_step=1, time=time.time(), loss=0.7))
            simulated.send(Bye(step=1, error=error))
        (broken,) = stack.enter_context(simulated_ranks(daemon.endpoint, 1, {"job": BROKEN}))
        for step in range(1, 61):
            loss = 0.7 if step <= 40 else math.nan
            broken.send(StepReport(attempt=0, seq=step, step=step, model_step=step, time=time.time(), loss=loss))
        broken.send(Bye(step=60))
        began = time.monotonic()
        while story.share < 1.0 or not is_over():
            story.step += 1
            story.num_skipped += story.is_overflowing
            for rank, simulated in enumerate(big):
                simulated.send(_big_step(story, rank))
            for simulated in quiet:
                simulated.send(_quiet_step(story))
            if story.step % 20 == 0:
                _now_and_then(story, big)
            if story.step % SNAPSHOT_EVERY == 0:
                _tell_holdings(story, big)
            if story.attempt == 0 and story.share >= 0.2:
                _roll_back(story, big, daemon)
            if story.step == 20:  # the job is known by now: whoever claims its name is a stranger
                (stranger,) = stack.enter_context(simulated_ranks(daemon.endpoint, 1, SECOND_LAUNCH))
                stranger.send_raw([b"garbage"])
            time.sleep(max(0.0, began + story.step * STEP_SECONDS - time.monotonic()))


def _now_and_then(story: Story, ranks: list[SimulatedRank]) -> None:
    loss = _level(story) + 0.08
    fields = {"loss": loss, "accuracy": 1.2 - 0.15 * loss}
    saved = {"path": f"/checkpoints/{BIG}/{story.step}", "step": story.step}
    for kind, told in (("checkpoint", saved), ("validation", fields)):
        when = time.time()
        ranks[0].send(Event(attempt=story.attempt, step=story.step, time=when, kind=kind, fields=dict(told)))
    for simulated in ranks:
        busy = max(0.1, 0.97 - 0.02 * simulated.hello.rank)
        simulated.send(Heartbeat(step=story.step, utilization=busy))


def _tell_holdings(story: Story, ranks: list[SimulatedRank]) -> None:
    steps = range(max(SNAPSHOT_EVERY, story.step - 4 * SNAPSHOT_EVERY), story.step + 1, SNAPSHOT_EVERY)
    for rank, simulated in enumerate(ranks):
        simulated.send(
            Holdings(
                group="group-of-these-ranks",
                snapshots=tuple(Held(step, step, 0.0, is_ready=step < story.step) for step in steps),
                snapshot_every=SNAPSHOT_EVERY,
                num_bytes=1_494_000_000,
                snapshot_seconds=0.04 + 0.001 * rank,
                budget_left=3 - story.attempt,
                can_skip=True,
            )
        )


def _roll_back(story: Story, ranks: list[SimulatedRank], daemon: DaemonProcess) -> None:
    """Somebody asks for it, and when its step has come all ranks act and go on as a new attempt."""
    if story.rollback is None:
        status, story.rollback = daemon.post(f"/api/v1/jobs/{BIG}/rollback", {"by": "on call"})
        assert status == 202, story.rollback
    if story.step < story.rollback["boundary"]:
        return
    story.attempt, story.num_lost = 1, story.step - story.rollback["target"]
    for simulated in ranks:
        command = story.rollback["command"]
        simulated.send(Ack(command=command, outcome="done", step=story.step, seconds=0.35))
        simulated.send(msgspec.structs.replace(simulated.hello, attempt=1, start_step=story.step))
    _tell_holdings(story, ranks)


def _level(story: Story) -> float:
    return 2.9 + 4.0 * math.exp(-12 * story.share) + 0.9 * math.exp(-2 * story.share)


def _big_step(story: Story, rank: int) -> StepReport:
    draw, share = story.draw, story.share
    reduced = np.random.default_rng(story.step)  # the all-reduce gives all ranks the same gradients
    norm = (0.6 + 3.0 * math.exp(-20 * share)) * float(reduced.lognormal(0.0, 0.12))
    depth = np.linspace(0.0, 1.0, len(LAYERS))
    norms = (norm / 7 * 10 ** (1.2 * (depth - 0.5)) * reduced.lognormal(0.0, 0.1, len(LAYERS))).astype(np.float32)
    is_lost = story.is_overflowing and rank == OVERFLOWING
    total = STEP_SECONDS * float(draw.normal(1.0, 0.02)) * (1.35 if rank == SLOW and share > 0.6 else 1.0)
    rate = 6e-4 * min(1.0, share / 0.1) * (0.1 + 0.9 * math.cos(1.3 * share))
    return StepReport(
        attempt=story.attempt,
        seq=story.step,
        step=story.step,
        model_step=story.model_step,
        num_skipped=story.num_skipped,
        time=time.time(),
        loss=math.nan if is_lost else _level(story) + float(draw.normal(0.0, 0.05)),
        metrics={"accuracy": 0.5, "z_loss": 0.01},
        num_samples=32,
        num_tokens=32 * 1024,
        lr=(rate, rate / 2),
        phases=Phases(
            total=total,
            data=0.03 * total,
            forward=0.3 * total,
            backward=0.55 * total,
            optimizer=0.08 * total,
            loss=0.01 * total,
            forward_wait=0.0,
            backward_wait=0.15 * STEP_SECONDS if rank != SLOW else 0.0,
        ),
        local_grad_norm=3.0 * norm if story.is_sampled else None,
        agent_seconds=0.0011,
        clipping=Clipping(1.5, float(np.linalg.norm(norms))),
        scaler=Scaler(2.0 ** (16 - story.num_skipped), story.num_skipped),
        fingerprint=1_000 + story.step if story.is_sampled else None,
        is_sampled=story.is_sampled,
        device_bytes=(60 + rank % 4) * 2**30 if story.is_sampled else None,
        sample_every=SAMPLE_EVERY,
        arrays={"grad_norm": norms, **(_sample(story, depth) if story.is_sampled else {})},
    )


def _sample(story: Story, depth: Any) -> dict[str, Any]:
    draw, blocks = story.draw, np.arange(NUM_BLOCKS)
    dying = np.where(blocks == DYING, 0.1 + 0.75 * min(1.0, max(0.0, 2.5 * (story.share - 0.25))), 0.08)
    nothing = np.full(NUM_BLOCKS, -1.0)
    seen = {
        "weight_norm": 20 * (1 + depth + 0.1 * story.share),
        "update_ratio": 2e-3 * (1.1 - story.share) * draw.lognormal(0.0, 0.3, len(LAYERS)),
        "activation_std": np.repeat(0.8 + 0.04 * blocks, 2) * draw.lognormal(0.0, 0.05, len(MODULES)),
        "activation_dead": np.column_stack([dying + 0.02 * draw.random(NUM_BLOCKS), nothing]).ravel(),
        "activation_saturated": np.column_stack([nothing, 0.05 + 0.02 * blocks * story.share]).ravel(),
        "router_entropy": np.column_stack([0.95 - 0.001 * blocks, nothing]).ravel(),
        "router_dead": np.column_stack([0.0 * blocks, nothing]).ravel(),
        "attention_logit": np.column_stack([nothing, 8.0 + 0.1 * blocks]).ravel(),
        "activation_order": np.arange(len(MODULES)),
    }
    return {name: np.asarray(values, dtype=np.float32) for name, values in seen.items()}


def _quiet_step(story: Story) -> StepReport:
    total = 0.19 * float(story.draw.normal(1.0, 0.02))
    loss = 1.2 + 5.0 * math.exp(-4 * story.share) + float(story.draw.normal(0.0, 0.04))
    return StepReport(
        attempt=0,
        seq=story.step,
        step=story.step,
        model_step=story.step,
        time=time.time(),
        loss=loss,
        part_losses=(loss, 0.5 * loss),
        num_samples=64,
        lr=(0.1, 0.05),
        arrays={"grad_norm": np.full(4, 0.3, dtype=np.float32)},
        phases=Phases(
            total=total, data=0.01, forward=0.06, backward=0.1, optimizer=0.01, forward_wait=0.0, backward_wait=0.02
        ),
        agent_seconds=0.0004,
    )


@contextlib.contextmanager
def _running(
    daemon: DaemonProcess, directory: Path, job: str, command: list[str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """A launch that reports to the daemon until the block ends."""
    directory.mkdir(parents=True, exist_ok=True)
    environment = clean_environment(
        CABOOSE_ENDPOINT=daemon.endpoint,
        CABOOSE_JOB=job,
        CABOOSE_SAMPLE_EVERY="10",
        CABOOSE_OVERHEAD_BUDGET="1.0",
        PYTHONPATH=str(Path(__file__).resolve().parents[1]),
    )
    with (directory / "job.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        end(process, patience=10)


def real_ranks(
    daemon: DaemonProcess, directory: Path, *, steps: int, step_seconds: float
) -> contextlib.AbstractContextManager["subprocess.Popen[bytes]"]:
    """Four gloo ranks of which one becomes slow, and a block whose units die."""
    command = torchrun("support.real_ranks", str(steps), str(step_seconds), ranks=4)
    return _running(daemon, directory, FOUR, command)


def real_job(
    daemon: DaemonProcess, directory: Path, *, steps: int, step_seconds: float
) -> contextlib.AbstractContextManager["subprocess.Popen[bytes]"]:
    """Two gloo ranks that train a small transformer; the step in the middle goes wrong."""
    command = torchrun("caboose_drills.demo", "--steps", str(steps), "--step-seconds", str(step_seconds))
    return _running(daemon, directory, REAL, [*command, "--spike-at", str(steps * 3 // 5)])
