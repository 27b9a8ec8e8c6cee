"""Takes the pictures of the live page that the README shows.

    python tests/support/screenshots.py docs/images

A real daemon, eight simulated ranks on real sockets and a real browser. The job's loss falls with noise under a warm-up
and cosine schedule, has one harmless blip, and is in the middle of a spike when the picture is taken.
"""

import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from caboose_wire import Event, Group, Layer, Phases, StepReport
from support.browser import running_browser
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import SimulatedRank, simulated_ranks

JOB, WORLD, STEPS, BLIP, SPIKE = "gpt-124m", 8, 640, 431, 622
PEAK_LR, WARMUP, STEP_SECONDS = 6e-4, 60, 0.41
BLOCK = {"attn.qkv": 1_769_472, "attn.proj": 589_824, "mlp.up": 2_359_296, "mlp.down": 2_359_296}
LAYERS = (
    Layer(name="embed.weight", numel=38_597_376, kind="Embedding"),
    *(Layer(name=f"blocks.{i}.{name}.weight", numel=n, kind="Linear") for i in range(12) for name, n in BLOCK.items()),
    Layer(name="norm.weight", numel=768, kind="LayerNorm"),
)
SETTINGS = {"lr": PEAK_LR, "betas": "(0.9, 0.95)", "eps": 1e-8, "weight_decay": 0.1}
HELLO: dict[str, Any] = {
    "job": JOB,
    "layers": LAYERS,
    "groups": (Group(name="0", optimizer="AdamW", settings=SETTINGS),),
    "config": {"sequence_length": 1024, "batch_size": 64, "precision": "bf16"},
    "blind": {"activations": "inside a full-graph compile"},
}


def learning_rate(step: int) -> float:
    """Warm-up, then a cosine."""
    if step < WARMUP:
        return PEAK_LR * step / WARMUP
    return PEAK_LR * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / 1000)))


def level(step: int) -> float:
    """Where the loss lies without noise."""
    return 2.9 + 3.6 * math.exp(-step / 60.0) + 0.9 * math.exp(-step / 400.0)


def excess(step: int) -> float:
    """By how much the spike stands above the loss."""
    return 2.6 * math.exp(-(step - SPIKE) / 9.0) if step >= SPIKE else 0.0


def a_step(step: int, rank: int, draw: np.random.Generator, shared: float, began: float) -> StepReport:
    """What one rank reports of one step; `shared` is the part of the noise that all ranks see."""
    blip = 1.35 if step == BLIP else 0.0
    loss = level(step) + excess(step) + blip
    norm = 0.55 + 3.5 * math.exp(-step / 40.0) + 2.2 * excess(step)
    norms = np.full(len(LAYERS), norm / math.sqrt(len(LAYERS)) * math.exp(0.1 * shared), dtype=np.float32)
    total = STEP_SECONDS * float(draw.normal(1.0, 0.012)) + (0.03 if rank == 5 else 0.0)
    return StepReport(
        attempt=0,
        seq=step,
        step=step,
        model_step=step,
        time=began + step * STEP_SECONDS,
        loss=loss + 0.045 * shared + float(draw.normal(0.0, 0.13)),
        num_samples=8,
        lr=(learning_rate(step),),
        phases=Phases(total=total, data=0.006, forward=0.12, backward=0.25, optimizer=0.02),
        grad_norm=norm,
        agent_seconds=0.0013,
        arrays={"grad_norm": norms},
    )


def feed(daemon: DaemonProcess, ranks: list[SimulatedRank]) -> None:
    """Sends the whole run and waits until the daemon has judged it."""
    draw = np.random.default_rng(7)
    began = time.time() - STEPS * STEP_SECONDS
    for step in range(1, STEPS + 1):
        shared = float(draw.normal())
        for rank, simulated in enumerate(ranks):
            simulated.send(a_step(step, rank, draw, shared, began))
        if step % 200 == 0:
            when = began + step * STEP_SECONDS
            ranks[0].send(
                Event(attempt=0, step=step, time=when, kind="validation", fields={"loss": level(step) + 0.06})
            )
            ranks[0].send(Event(attempt=0, step=step, time=when + 1, kind="checkpoint_saved"))
    wait_until(lambda: daemon.get(f"/api/v1/jobs/{JOB}")["step"] == STEPS, 30)


def picture(browser: Browser, url: str, scheme: Any, path: Path) -> None:
    """One picture of the page, once its charts are drawn."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(url)
    for name in ("loss", "norm", "lr"):
        page.wait_for_selector(f"#{name}-chart .scatterlayer path", state="attached")
    page.wait_for_timeout(500)
    page.screenshot(path=path)
    context.close()


def main() -> None:
    """Writes page-dark.png and page-light.png."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        running_daemon(Path(home)) as daemon,
        simulated_ranks(daemon.endpoint, WORLD, HELLO) as ranks,
        running_browser() as browser,
    ):
        feed(daemon, ranks)
        for scheme in ("dark", "light"):
            picture(browser, daemon.url, scheme, directory / f"page-{scheme}.png")


if __name__ == "__main__":
    main()
