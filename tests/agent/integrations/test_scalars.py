"""What a script logs as its validation loss is reported without code."""

import subprocess
import sys
from pathlib import Path

import pytest

from caboose.integrations.scalars import is_validation_loss
from caboose_wire import Bye, Event
from support.collector import Collector
from support.processes import clean_environment

SCRIPT = """
import sys
import torch

kind = sys.argv[1]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if kind == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter("runs")
    def log(step, train, value):
        writer.add_scalar("Loss/train", train, step)
        writer.add_scalar(tag="Loss/val", scalar_value=value, global_step=step)
        writer.add_scalar("val/accuracy", 0.5, step)
else:
    import wandb
    wandb.init(mode="offline", dir=".", project="test")
    def log(step, train, value):
        wandb.log({"iter": step, "train/loss": train, "val/loss": value})
for step in range(1, 5):
    if step == 1:
        log(0, 9.0, 8.0)
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        log(step, loss.item(), torch.tensor(step / 8))
"""


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(
            (name, True)
            for name in ("val/loss", "val_loss", "Loss/validation", "eval/loss", "valid.loss", "Loss/Val_epoch")
        ),
        *(
            (name, False)
            for name in ("train/loss", "loss", "val/accuracy", "val/aux_loss", "test/loss", "val", "value_loss")
        ),
    ],
)
def test_the_name_of_a_validation_loss_has_no_other_words(name: str, is_one: bool) -> None:
    assert is_validation_loss(name) is is_one


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_logged_validation_loss_is_reported_at_its_step(kind: str, tmp_path: Path, listening: Collector) -> None:
    pytest.importorskip(kind)
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "caboose", "train.py", kind],
        cwd=tmp_path,
        env=clean_environment(CABOOSE_ENDPOINT=listening.endpoint, WANDB_SILENT="true"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye)
    events = [(e.kind, e.step, e.fields) for e in listening.messages if isinstance(e, Event)]
    assert events == [("validation", 2, {"loss": 0.25}), ("validation", 4, {"loss": 0.5})]
    assert "validation" not in listening.hellos[-1].blind
    assert "data_wait" in listening.hellos[-1].blind
