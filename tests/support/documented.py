"""The Python blocks of README and docs, and what each of them takes for given."""

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments

import caboose
import caboose.huggingface
import caboose.lightning

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^( *)```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
Names = dict[str, Any]

NOT_RUN: Mapping[str, str] = {
    "deepspeed.initialize": "needs DeepSpeed; tests/agent/integrations/test_deepspeed.py has its engine",
    "OptimizersContainer(": "needs torchtitan; tests/agent/integrations/test_torchtitan.py has its containers",
    "class Watched(Trainer)": "needs torchtitan; tests/agent/integrations/test_torchtitan.py has its containers",
    "ray.train.torch": "needs Ray; tests/agent/integrations/test_ray_train.py has its workers",
    "Fabric(devices=2": "starts processes of its own; tests/agent/integrations/test_fabric.py does so",
}
"""What marks a block that cannot run here, and why."""


@dataclass(frozen=True)
class Block:
    """One block; `place` is its page and line."""

    place: str
    code: str

    @property
    def page(self) -> str:
        return self.place.partition(":")[0]

    @property
    def reason(self) -> str:
        """Why it is not run; empty if it is."""
        return next((reason for mark, reason in NOT_RUN.items() if mark in self.code), "")


def blocks() -> Iterator[Block]:
    """All but the cookbook's, which run in their order in `test_cookbook.py`."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCED.finditer(text) if page.name != "cookbook.md" else ():
            line = text.count("\n", 0, found.start()) + 1
            yield Block(f"{page.relative_to(ROOT)}:{line}", textwrap.dedent(found[2]))


class StatefulLoader(list[Any]):
    """A loader with a state, as `extra` needs one."""

    def state_dict(self) -> Names:
        return {"place": 0}

    def load_state_dict(self, state: Names) -> None:
        """Nothing to restore."""


class OfFrameworks(nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace | Names:
        return SimpleNamespace(loss=F.cross_entropy(self.linear(x), labels))


class OfTrainer(OfFrameworks):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Names:
        return {"loss": super().forward(x, labels).loss}


class Sines(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 3)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self.training_step(batch, 0))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def script() -> Names:
    """The names of a training script, before it is watched."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(64, 8), torch.arange(64) % 3
    loader = DataLoader(TensorDataset(inputs, targets), 8)
    loss_fn = nn.CrossEntropyLoss()
    batch = next(iter(loader))
    loss = loss_fn(model(batch[0]), batch[1])
    loss.backward(retain_graph=True)
    return {
        "caboose": caboose,
        "torch": torch,
        "nn": nn,
        "F": F,
        "DistributedDataParallel": DistributedDataParallel,
        "model": model,
        "optimizer": optimizer,
        "loader": loader,
        "loss_fn": loss_fn,
        "batch": batch,
        "loss": loss,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 100),
        "validation_loader": DataLoader(TensorDataset(torch.randn(64, 8), targets), 8),
        "compute_loss": lambda model, batch: loss_fn(model(batch[0]), batch[1]),
        "step": 1000,
        "path": "own.pt",
        "options": SimpleNamespace(checkpoints="checkpoints"),
    }


def of_readme(names: Names) -> None:
    del names["optimizer"]  # it makes its own


def of_agent(names: Names) -> None:
    router = nn.Linear(16, 8)
    names["model"].layers = nn.ModuleList([nn.Identity(), nn.Identity(), nn.Identity(), nn.Module()])
    names["model"].layers[3].router = router
    for part in "gd":
        names[f"net_{part}"] = nn.Linear(8, 8)
        names[f"optimizer_{part}"] = torch.optim.Adam(names[f"net_{part}"].parameters(), lr=1e-4)
        names[f"loss_{part}"] = torch.tensor(0.5)


def of_checkpoints(names: Names) -> None:
    names["loader"] = StatefulLoader(range(1000))


def of_hunting(names: Names) -> None:
    names["loss_fn"] = lambda model, batch: model(batch[0]).sum() * float("nan")


def of_accelerate(names: Names) -> None:
    data = [{"x": x, "labels": label} for x, label in names["loader"].dataset]
    model = OfFrameworks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    names |= {"accelerator": accelerator, "model": model, "optimizer": optimizer, "losses": [torch.tensor(1.0)]}
    names |= {"loader": DataLoader(data, 8), "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 100)}  # type: ignore[arg-type]


def of_example_of_accelerate(names: Names) -> None:
    loader = names["loader"]
    of_accelerate(names)
    names["loader"] = loader


def of_fabric(names: Names) -> None:
    names["fabric"] = lightning.Fabric(accelerator="cpu", devices=1)


def of_fsdp2(names: Names) -> None:
    class Part(nn.Sequential):
        """A block."""

    names |= {"Block": Part, "fully_shard": fully_shard}
    names["model"] = nn.Sequential(Part(nn.Linear(8, 16)), nn.ReLU(), Part(nn.Linear(16, 3)))


def of_transformers(names: Names) -> None:
    data = [{"x": x, "labels": label} for x, label in names["loader"].dataset]
    arguments = TrainingArguments("out", report_to=[], use_cpu=True, max_steps=2, save_strategy="no")
    names |= {"Trainer": Trainer, "CabooseCallback": caboose.huggingface.CabooseCallback}
    names |= {"model": OfTrainer(), "args": arguments, "arguments": arguments, "data": data}


def of_lightning(names: Names) -> None:
    def quick(**arguments: Any) -> lightning.Trainer:
        return lightning.Trainer(**arguments, max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)

    module = SimpleNamespace(Trainer=quick)
    names |= {"CabooseCallback": caboose.lightning.CabooseCallback, "Trainer": quick, "lightning": module}
    names |= {"Sines": Sines, "training": names["loader"], "validation": names["validation_loader"]}


def of_testing(names: Names) -> None:
    def main(arguments: list[str]) -> None:
        """Attaches as it always does."""
        model = DistributedDataParallel(names["model"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = caboose.attach(model, optimizer)
        for _ in range(int(arguments[1])):
            optimizer.zero_grad()
            loss = names["loss_fn"](model(names["batch"][0]), names["batch"][1])
            loss.backward()
            optimizer.step()
            monitor.step(loss)
        monitor.close()

    names["main"] = main


PREPARED: Mapping[str, Callable[[Names], None]] = {
    "README.md": of_readme,
    "docs/agent.md": of_agent,
    "docs/checkpoints.md": of_checkpoints,
    "docs/examples/accelerate_loop.md": of_example_of_accelerate,
    "docs/examples/fabric_loop.md": of_fabric,
    "docs/examples/fsdp2.md": of_fsdp2,
    "docs/examples/hf_trainer.md": of_transformers,
    "docs/examples/lightning_module.md": of_lightning,
    "docs/hunting.md": of_hunting,
}
"""What a page takes for given beside the names of a script."""
OF_INTEGRATIONS: Mapping[str, Callable[[Names], None]] = {
    "caboose.huggingface": of_transformers,
    "caboose.lightning": of_lightning,
    "accelerator.": of_accelerate,
    "caboose.testing": of_testing,
}
"""Of the page on integrations, by what a block has in it."""


def names_for(block: Block) -> Names:
    """What the block's code finds defined."""
    names = script()
    prepare = PREPARED.get(block.page)
    if block.page == "docs/integrations.md":
        prepare = next(found for mark, found in OF_INTEGRATIONS.items() if mark in block.code)
    if prepare is not None:
        prepare(names)
    if "monitor" in block.code and "attach(" not in block.code:
        names["monitor"] = caboose.attach(names["model"], names["optimizer"])
    return names
