"""The jobs that the pictures show, on real sockets.

`vit-l16`       eight ranks on two hosts, and three incidents. The loader could not keep up for a while; the loss spiked
                and healed; at the end one image of rank 5 holds NaN, and with it the loss and all weights are lost. A
                hunt has found the sample. Meanwhile the units of one block die slowly, and rank 5 is a little slow.
`llama-70b`     a thousand ranks, of which one has failed, a host is silent and one rank is slow
`resnet-50`     nothing wrong; `bert-large` ended with an error, `mnist` ended well
"""

import math
import time
from typing import Any

import numpy as np

from caboose.hunting.result import HuntResult
from caboose_wire import Batch, Bye, Event, Group, Heartbeat, Held, Holdings, Layer, Module, Phases, StepReport
from support.processes import DaemonProcess, wait_until
from support.ranks import SimulatedRank, a_report

VIT, WIDE, QUIET, CRASHED, DONE = "vit-l16", "llama-70b", "resnet-50", "bert-large", "mnist"
STEPS, STARVED, SPIKE, BROKEN = 640, range(150, 221), 431, 630
BAD_RANK, BAD_SAMPLE, PER_RANK = 5, 17, 64
PEAK_LR, WARMUP, STEP_SECONDS = 6e-4, 60, 0.41
SAMPLE_EVERY, SNAPSHOT_EVERY, SAVE_EVERY = 10, 100, 150
NUM_BLOCKS, DYING, WIDTH = 24, 17, 1024
WIDE_RANKS, PER_HOST, WIDE_STEPS = 1024, 8, 48
FAILED, SLOW, SILENT_HOST = 393, 770, 85
PARTS = {
    "norm1": ("LayerNorm", WIDTH),
    "attn.qkv": ("Linear", 3 * WIDTH**2),
    "attn.proj": ("Linear", WIDTH**2),
    "norm2": ("LayerNorm", WIDTH),
    "mlp.up": ("Linear", 4 * WIDTH**2),
    "mlp.down": ("Linear", 4 * WIDTH**2),
}
LAYERS = (
    Layer(name="patch_embed.weight", numel=3 * 16 * 16 * WIDTH, kind="Conv2d"),
    *(
        Layer(name=f"blocks.{block}.{name}.weight", numel=numel, kind=kind)
        for block in range(NUM_BLOCKS)
        for name, (kind, numel) in PARTS.items()
    ),
    Layer(name="norm.weight", numel=WIDTH, kind="LayerNorm"),
    Layer(name="head.weight", numel=1000 * WIDTH, kind="Linear"),
)
MODULES = tuple(Module(f"blocks.{block}.mlp.act", "ReLU", 4 * WIDTH) for block in range(NUM_BLOCKS))
SETTINGS = {"lr": PEAK_LR, "betas": "(0.9, 0.95)", "eps": 1e-8, "weight_decay": 0.1}
VIT_HELLO: dict[str, Any] = {
    "job": VIT,
    "layers": LAYERS,
    "modules": MODULES,
    "groups": (Group(name="0", optimizer="AdamW", settings=SETTINGS),),
    "config": {"image_size": 224, "batch_size": PER_RANK, "num_classes": 1000},
    "facts": {"precision": "bfloat16", "norms": "LayerNorm"},
    "visible": ("loss", "lr", "phases", "gradients", "local_gradients", "weights", "activations"),
    "blind": {"clipping": "gradients are not clipped"},
    "rollback": "auto",
}
HUNT = HuntResult(
    step=BROKEN,
    rank=BAD_RANK,
    where="input",
    tensors=("input",),
    num_tensors=1,
    num_bad=3 * 224 * 224,
    samples=(BAD_SAMPLE,),
    num_samples=PER_RANK,
    batch=BROKEN - 1,
    took_seconds=1.31,
)


def learning_rate(step: int) -> float:
    """Warm-up, then a cosine."""
    if step < WARMUP:
        return PEAK_LR * step / WARMUP
    return PEAK_LR * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / 1000)))


def level(step: int) -> float:
    """Where the loss lies without noise; it begins at that of guessing among a thousand."""
    return 2.6 + 3.2 * math.exp(-step / 70.0) + 1.1 * math.exp(-step / 450.0)


def excess(step: int) -> float:
    """By how much the spike stands above the loss."""
    return 1.9 * math.exp(-(step - SPIKE) / 5.0) if step >= SPIKE else 0.0


def a_step(step: int, rank: int, draw: np.random.Generator, shared: float, began: float) -> StepReport:
    """What one rank reports of one step; `shared` is the part of the noise that all ranks see."""
    is_lost = step > BROKEN or (step == BROKEN and rank == BAD_RANK)
    norm = 0.55 + 3.5 * math.exp(-step / 40.0) + 0.5 * excess(step)
    depth = np.linspace(0.0, 1.0, len(LAYERS))
    shape = 10 ** (0.9 * (0.5 - depth)) * np.exp(0.08 * np.sin(7.0 * depth + 0.02 * step))
    norms = norm * math.exp(0.1 * shared) * shape / np.linalg.norm(shape)
    if step >= BROKEN:
        norms = np.full(len(LAYERS), np.nan)  # the all-reduce has given it to all ranks
    wait = 0.006 + (0.22 * float(draw.lognormal(0.0, 0.2)) if step in STARVED else 0.0)
    total = STEP_SECONDS * float(draw.normal(1.0, 0.012)) + wait + (0.03 if rank == BAD_RANK else 0.0)
    is_sampled = step % SAMPLE_EVERY == 0
    num_bad = HUNT.num_bad if step == BROKEN and rank == BAD_RANK else 0
    loss = level(step) + excess(step) + 0.045 * shared + float(draw.normal(0.0, 0.11))
    return StepReport(
        attempt=0,
        seq=step,
        step=step,
        model_step=step,
        time=began + step * STEP_SECONDS,
        loss=math.nan if is_lost else loss,
        metrics={} if is_lost else {"accuracy": 0.985 - loss / 8, "images_seen": float(step * 512)},
        num_samples=PER_RANK,
        lr=(learning_rate(step),),
        phases=Phases(total=total, data=wait, forward=0.12, backward=0.25, optimizer=0.02),
        agent_seconds=0.0013,
        is_sampled=is_sampled,
        sample_every=SAMPLE_EVERY,
        batch=Batch(step - 1, 0, (PER_RANK, 3, 224, 224), num_bad, -2.12, 2.64) if is_sampled else None,
        arrays={"grad_norm": norms.astype(np.float32), **(a_sample(step, depth, draw, is_lost) if is_sampled else {})},
    )


def a_sample(step: int, depth: Any, draw: np.random.Generator, is_lost: bool) -> dict[str, Any]:
    """What a sample shows: one block's units die from the middle of the run on."""
    blocks, share = np.arange(NUM_BLOCKS), step / STEPS
    dying = np.where(blocks == DYING, 0.36 * min(1.0, max(0.0, 2.0 * (share - 0.35))), 0.0)
    rate = learning_rate(step) / PEAK_LR
    weights = np.nan if step >= BROKEN else 1.0
    activations = np.nan if is_lost else 1.0
    seen = {
        "weight_norm": weights * 20 * (1 + depth + 0.3 * share**0.6) * draw.lognormal(0.0, 0.002, len(LAYERS)),
        "update_ratio": weights * 2e-3 * rate * (1 + 0.6 * np.sin(5 * depth)) * draw.lognormal(0.0, 0.15, len(LAYERS)),
        "activation_std": activations * (0.8 + 0.02 * blocks) * draw.lognormal(0.0, 0.05, NUM_BLOCKS),
        "activation_max": activations * (6.0 + 0.2 * blocks) * draw.lognormal(0.0, 0.1, NUM_BLOCKS),
        "activation_dead": np.full(NUM_BLOCKS, -1.0) if is_lost else 0.02 + 0.01 * blocks / NUM_BLOCKS + dying,
        "activation_saturated": np.full(NUM_BLOCKS, -1.0),
        "activation_order": blocks,
    }
    return {name: np.asarray(values, dtype=np.float32) for name, values in seen.items()}


def tell_vit(daemon: DaemonProcess, ranks: list[SimulatedRank]) -> None:
    """Sends the whole run and waits until the daemon has judged it."""
    draw = np.random.default_rng(7)
    began = time.time() - STEPS * STEP_SECONDS
    for step in range(1, STEPS + 1):
        shared, when = float(draw.normal()), began + step * STEP_SECONDS
        for rank, simulated in enumerate(ranks):
            simulated.send(a_step(step, rank, draw, shared, began))
        if step % SAVE_EVERY == 0:
            saved = {"path": f"/checkpoints/{VIT}/step-{step}", "step": step, "num_bytes": 3_630_000_000}
            for kind, fields in (
                ("checkpoint", saved),
                ("validation", {"loss": level(step) + 0.06, "accuracy": 0.97 - level(step) / 8}),
            ):
                ranks[0].send(Event(attempt=0, step=step, time=when, kind=kind, fields=dict(fields)))
        if step % SNAPSHOT_EVERY == 0:
            _tell_holdings(ranks, step, began)
        if step == BROKEN + 3:
            ranks[BAD_RANK].send(Event(attempt=0, step=step, time=when, kind="hunt", fields=HUNT.fields()))
    assert wait_until(lambda: daemon.step(VIT) == STEPS, 60)


def _tell_holdings(ranks: list[SimulatedRank], step: int, began: float) -> None:
    steps = range(max(SNAPSHOT_EVERY, step - 3 * SNAPSHOT_EVERY), step + 1, SNAPSHOT_EVERY)
    held = tuple(Held(kept, kept, began + kept * STEP_SECONDS, is_ready=kept < step) for kept in steps)
    for simulated in ranks:
        simulated.send(
            Holdings(
                group="group-of-these-ranks",
                snapshots=held,
                snapshot_every=SNAPSHOT_EVERY,
                num_bytes=3_640_000_000,
                snapshot_seconds=0.04,
                budget_left=3,
                can_skip=True,
            )
        )


def tell_wide(daemon: DaemonProcess, ranks: list[SimulatedRank]) -> None:
    """A thousand ranks; towards the end one fails, a host falls silent and a rank becomes slow."""
    draw = np.random.default_rng(11)
    for step in range(1, WIDE_STEPS + 1):
        shared = 0.07 * float(draw.normal())
        for rank, simulated in enumerate(ranks):
            if step > WIDE_STEPS - 3 and (rank // PER_HOST == SILENT_HOST or rank == FAILED):
                continue
            total = 4.1 * float(draw.normal(1.0, 0.01)) * (1.3 if rank == SLOW else 1.0)
            wait = 0.0 if rank == SLOW else 0.9
            phases = Phases(
                total=total,
                data=0.03,
                forward=total - 2.7 - wait,
                backward=2.3 + wait,
                optimizer=0.3,
                forward_wait=0.0,
                backward_wait=wait,
            )
            loss = 6.4 + 4.6 * math.exp(-step / 11) + shared + float(draw.normal(0.0, 0.02))
            simulated.send(a_report(step, loss=loss, phases=phases, time=time.time(), num_samples=4))
            if step == WIDE_STEPS - 3 and rank == FAILED:
                error = "RuntimeError: NCCL error: unhandled system error"
                simulated.send(Bye(step=step, error=error))
        time.sleep(0.1)
    assert wait_until(lambda: daemon.step(WIDE) >= WIDE_STEPS - 3, 60)


def tell_small(rank: SimulatedRank, *, ends: bool, error: str = "", seed: int = 0) -> None:
    """A run of one rank that goes well, or well until it ends."""
    draw = np.random.default_rng(seed)
    for step in range(1, 301):
        loss = 0.6 + seed + (2.0 + seed) * math.exp(-step / (30 + 25 * seed)) + float(draw.normal(0, 0.03 * (1 + seed)))
        rank.send(a_report(step, loss=loss, time=time.time(), num_samples=256))
    if ends or error:
        rank.send(Bye(step=300, error=error))


def a_beat(simulated: SimulatedRank) -> Heartbeat:
    """That a rank lives and goes on."""
    step = {VIT: STEPS, WIDE: WIDE_STEPS}.get(simulated.hello.job, 300)
    return Heartbeat(
        step=step,
    )
