"""Learning rates that a command scales: for good, or it is said that they may not stay so."""

import logging
from collections.abc import Callable

import pytest
import torch

import caboose
from caboose_wire import Hello
from support.braked import Braked
from support.collector import Collector

pytestmark = pytest.mark.usefixtures("impatient")

UNKNOWN = "a scheduler that is not known here sets the learning rate of AdamW again: pass scheduler= to attach"


def test_a_rate_that_a_scheduler_unknown_to_attach_would_reset_is_not_scaled(guarded: Callable[..., Braked]) -> None:
    run = guarded(gives_scheduler=False)
    run.train(12)
    command = run.command(kind="scale_lr", lr_scale=0.5)
    assert run.tell(command) == "refused"
    assert run.answers(command.number)[-1].detail == UNKNOWN
    assert run.optimizer.param_groups[0]["initial_lr"] == 0.01


def test_a_run_that_goes_back_says_that_its_rate_will_not_stay_scaled(
    guarded: Callable[..., Braked], caplog: pytest.LogCaptureFixture
) -> None:
    run = guarded(gives_scheduler=False)
    run.train(20)
    run.holdings(lambda h: any(s.step == 10 and s.is_ready for s in h.snapshots))
    command = run.command(target=10, lr_scale=0.5)
    with caplog.at_level(logging.WARNING, logger="caboose"):
        assert run.tell(command) == "done", "a run that is ill is better off on healthy weights"
    caveat = f"but its learning rate may not stay scaled by 0.5: {UNKNOWN}"
    assert caveat in run.answers(command.number)[-1].detail
    assert caveat in caplog.text
    run.train(1)
    unscaled = 0.01 / (1 + run.scheduler.last_epoch / 100)
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(unscaled), "as was said"


def test_of_several_schedulers_all_follow(
    attach: Callable[..., caboose.Monitor], network: torch.nn.Module, listening: Collector
) -> None:
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (network[0], network[2])]  # type: ignore[index]
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(optimizers[0], lambda _: 1.0),
        torch.optim.lr_scheduler.ConstantLR(optimizers[1], factor=1.0),
    ]
    monitor = attach(
        network,
        optimizers,
        scheduler=schedulers,
        rollback=caboose.Rollback("auto", snapshots=caboose.Snapshots(every=1)),
        endpoint=listening.endpoint,
    )
    assert monitor._brake is not None
    ring = monitor._brake._ring
    assert ring.scale_lr(0.5) == ""
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert listening.wait_for(Hello)[0].facts["scheduler"] == "ConstantLR, LambdaLR"


def test_a_daemon_gone_mad_cannot_scale_the_rate_away(guarded: Callable[..., Braked]) -> None:
    run = guarded(limits={"cooldown_steps": 20})
    run.train(5)
    assert run.tell(run.command(kind="scale_lr", lr_scale=0.01)) == "done"
    hasty = run.command(kind="scale_lr", lr_scale=0.5)
    assert run.tell(hasty) == "refused"
    assert "cools down until step" in run.answers(hasty.number)[-1].detail
    run.train(20)
    greedy = run.command(kind="scale_lr", lr_scale=0.01)
    assert run.tell(greedy) == "refused"
    assert "would be 0.0001 times what the run was given" in run.answers(greedy.number)[-1].detail
    assert run.tell(run.command(kind="scale_lr", lr_scale=0.1)) == "done"
    assert run.scheduler.base_lrs[0] == pytest.approx(0.01 * 0.001)
