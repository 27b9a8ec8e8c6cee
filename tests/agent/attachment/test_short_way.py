"""Without code, a program with one optimizer takes the short way through each step; with a second one, it does not."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.collector import Collector
from support.processes import clean_environment

SCRIPT = """
import sys
import torch
from caboose.attachment import no_code
from caboose.governor import Cadences

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses, others = [], []

def step(model=model, optimizer=optimizer, kept=losses):
    loss = model(torch.randn(16, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(loss.item())

for _ in range(5):
    step()
watch = no_code._automatic
"""

COUNTING = """
governor = watch._monitor._governor
governor._judge = lambda: None
governor._now = Cadences(stretch=64, norm_every=64, is_thin=True)
governor._place()
while not watch._monitor._reporter.thin.is_open:
    step()
step()
calls = []

def note(frame, event, _):
    if event == "call" and "/caboose/" in frame.f_code.co_filename:
        calls.append(frame.f_code.co_qualname)

sys.setprofile(note)
step()
sys.setprofile(None)
print(len(calls), *calls)
"""

PARTNER = """
print(watch._only is optimizer)
second = torch.nn.Linear(4, 1)
partner = torch.optim.SGD(second.parameters(), lr=0.1)
for _ in range(5):
    step(second, partner, others)
    step()
print(watch._only is None, watch._members.num_optimizers)
"""

SCALER = """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
before = watch._num_steps
for number in range(6):
    loss = model(torch.randn(16, 4)).square().mean()
    if number % 2:
        loss = loss * float("nan")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(watch._num_steps - before)
"""


@pytest.fixture
def run(listening: Collector, tmp_path: Path) -> Callable[[str], str]:
    def run(text: str) -> str:
        (tmp_path / "train.py").write_text(SCRIPT + text)
        done = subprocess.run(
            [sys.executable, "-m", "caboose", "train.py"],
            cwd=tmp_path,
            env=clean_environment(CABOOSE_ENDPOINT=listening.endpoint),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    return run


def test_a_thin_step_of_one_optimizer_takes_at_most_twenty_calls(run: Callable[[str], str]) -> None:
    num, *calls = run(COUNTING).split()
    assert int(num) <= 20, calls


def test_a_second_optimizer_joins_a_run_that_took_the_short_way(run: Callable[[str], str]) -> None:
    assert run(PARTNER).split() == ["True", "True", "2"]


def test_steps_that_a_scaler_skips_are_steps_on_the_short_way_too(run: Callable[[str], str]) -> None:
    assert run(SCALER).split() == ["6"]
