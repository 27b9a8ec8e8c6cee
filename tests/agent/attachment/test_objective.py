"""Several models that are trained in turn, and what a run is trained for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import caboose
from caboose.observe.losses import BackwardLosses
from caboose_wire import Bye, Hello
from support.collector import Collector
from support.processes import clean_environment

GAN = """
import json
import torch

torch.manual_seed(0)
critic, maker = torch.nn.Linear(4, 1), torch.nn.Linear(2, 4)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
losses = []
for step in range(6):
    of_critic.zero_grad()
    loss = critic(maker(torch.randn(8, 2)).detach()).mean() - critic(torch.randn(8, 4)).mean()
    loss.backward()
    losses.append(float(loss))
    of_critic.step()
    of_maker.zero_grad()
    (100.0 - critic(maker(torch.randn(8, 2))).mean()).backward()
    of_maker.step()
print(json.dumps(losses))
"""


def run(script: str, directory: Path, listening: Collector, **env: str) -> str:
    (directory / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "caboose", "train.py"],
        cwd=directory,
        env=clean_environment(CABOOSE_ENDPOINT=listening.endpoint, **env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye)
    return done.stdout


def test_the_loss_is_that_of_the_model_that_steps_first_and_adversaries_are_stated(
    tmp_path: Path, listening: Collector
) -> None:
    losses = json.loads(run(GAN, tmp_path, listening))

    assert [report.loss for report in listening.reports] == pytest.approx(losses, rel=1e-6)
    last = [message for message in listening.messages if isinstance(message, Hello)][-1]
    assert last.facts["objective"] == "adversarial"
    assert [part.name for part in last.parts] == ["critic", "maker"], "classes of torch are named by their variables"


def test_an_objective_that_the_user_set_stays(tmp_path: Path, listening: Collector) -> None:
    run(GAN, tmp_path, listening, CABOOSE_OBJECTIVE="supervised")

    last = [message for message in listening.messages if isinstance(message, Hello)][-1]
    assert last.facts["objective"] == "supervised"


def test_a_process_with_environments_to_act_in_learns_by_reinforcement(tmp_path: Path, listening: Collector) -> None:
    (tmp_path / "gymnasium.py").touch()
    script = """
import gymnasium, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""
    run(script, tmp_path, listening)

    assert listening.hellos[0].facts["objective"] == "reinforcement"


def test_an_objective_that_is_none_is_named_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"objective.*'gan'.*adversarial"):
        caboose.attach(model, optimizer, objective="gan")
    monkeypatch.setenv("CABOOSE_OBJECTIVE", "rl")
    with pytest.raises(ValueError, match=r"CABOOSE_OBJECTIVE='rl'.*reinforcement"):
        caboose.attach(model, optimizer)


def test_a_loss_that_two_optimizers_share_is_not_lost() -> None:
    losses = BackwardLosses(lambda _, function: function)
    losses.start()
    try:
        weight = torch.ones(1, requires_grad=True)
        (3.0 * weight).sum().backward()
        losses.set_aside()  # the other optimizer stepped first
        assert losses.take_mean() == torch.tensor(3.0)
    finally:
        losses.stop()
