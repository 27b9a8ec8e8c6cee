"""A GAN in its own loop: two models and two optimizers, attached by name."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from caboose_drills.randomised import models, optimizers, tasks
from caboose_drills.randomised.batches import Batches, Record
from caboose_drills.randomised.models import NOISE
from caboose_drills.randomised.plan import Plan
from caboose_drills.run import DrillRun

HELD = 400


def train(run: DrillRun, plan: Plan) -> Record:
    """Trains both; quality is the distance between the generated points and the true ones."""
    data, record = tasks.build(plan), Record(plan)
    generator = models.build(plan, data)
    discriminator = models.dense(replace(plan, has_norms=False, dropout=0.0), 2, 1)
    makers = optimizers.build(plan, generator)
    judges = optimizers.build(replace(plan, lr=plan.lr * plan.adversary_lr), discriminator)
    both: dict[str, Any] = {"generator": generator, "discriminator": discriminator}
    monitor = run.attach(
        both,  # type: ignore[arg-type]  # attach takes a mapping of models
        {"generator": makers[0], "discriminator": judges[0]},  # type: ignore[arg-type]  # and of their optimizers
        sample_every=plan.draw.sample_every,
        objective="adversarial",
    )
    record.first = _distance(generator, data.held[0])
    step, loader = 0, Batches(plan, data, plan.batch)
    while step < plan.steps:
        for (real,) in monitor.watch(loader):
            step += 1
            fake = generator(torch.randn(len(real), NOISE + 4))
            judged = _judge(discriminator, real, fake.detach())
            _step(judges, judged)
            made = F.softplus(-discriminator(fake)).mean()
            _step(makers, made)
            monitor.step({"generator": made, "discriminator": judged}, num_samples=len(real))
            record.step(float(made.detach()))
            run.progress(step)
            if step >= plan.steps:
                break
    record.final = _distance(generator, data.held[0])
    return record


def _judge(discriminator: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    return F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()


def _step(steppers: list[torch.optim.Optimizer], loss: Tensor) -> None:
    for stepper in steppers:
        stepper.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
    for stepper in steppers:
        stepper.step()


def _distance(generator: nn.Module, real: Tensor) -> float:
    """How far generated points are from true ones, and true ones from generated ones."""
    was_training, state = generator.training, torch.get_rng_state()
    torch.manual_seed(0)
    with torch.no_grad():
        fake = generator.eval()(torch.randn(HELD, NOISE + 4))
        gaps = torch.cdist(real, fake)
    torch.set_rng_state(state)
    generator.train(was_training)
    return float(gaps.min(dim=0).values.mean() + gaps.min(dim=1).values.mean())
