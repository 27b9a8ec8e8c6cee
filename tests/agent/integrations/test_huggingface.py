"""The Hugging Face callback, on the real Trainer with tiny models made on the spot."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from caboose.observe.model_calls import num_watches
from caboose_wire import Bye, StepReport
from support.collector import Collector
from support.norms import grad_norm

transformers = pytest.importorskip("transformers", reason="the callback needs it")
pytest.importorskip("accelerate", reason="the Trainer needs it")

from caboose.huggingface import CabooseCallback  # noqa: E402 - after the check that it can be imported

pytestmark = pytest.mark.slow

SAMPLES = 24


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random ids; the whole of it is made of `SAMPLES` short texts."""

    def __init__(self) -> None:
        self.ids = torch.randint(0, 50, (SAMPLES, 6), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Classes(Texts):
    """The same texts, each with a class."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index, 0] % 2}


def language_model() -> Any:
    """Its loss is normalised over all micro-batches of a step: they add up."""
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
        )
    )


class Classifier(torch.nn.Module):
    """Its loss is the mean of a micro-batch, which the Trainer divides by their number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.embedding(input_ids).mean(dim=1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """These runs are over in a moment; on a busy machine their reports may need longer than that to leave."""
    monkeypatch.setattr("caboose.report.sender.FLUSH_SECONDS", 10.0)


@pytest.fixture
def trainer(tmp_path: Path, listening: Collector) -> Iterator[Callable[..., Any]]:
    """Trainers that log every step; `.callback` is ours."""
    made: list[Any] = []

    def make(model: Any = None, data: Any = None, kind: type[Any] = transformers.Trainer, **arguments: Any) -> Any:
        settings: dict[str, Any] = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 4,
            "learning_rate": 0.01,
            "max_steps": 4,
            "logging_steps": 1,
            "save_strategy": "no",
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **arguments,
        }
        callback = CabooseCallback(job="train", endpoint=listening.endpoint)
        trainer = kind(
            model=model or language_model(),
            args=transformers.TrainingArguments(**settings),
            train_dataset=data or Texts(),
            eval_dataset=data or Texts(),
            callbacks=[callback],
        )
        trainer.callback = callback
        made.append(trainer)
        return trainer

    yield make
    for each in made:
        each.callback._close()


def logged(trainer: Any, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def reported(listening: Collector, count: int) -> list[StepReport]:
    reports = listening.wait_for(StepReport, count)
    listening.wait_for(Bye)
    assert len(reports) == count
    return reports


def test_steps_losses_and_rates_are_the_ones_the_trainer_logs(
    trainer: Callable[..., Any], listening: Collector, tmp_path: Path
) -> None:
    run = trainer(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=4, lr_scheduler_type="linear")
    run.train()
    reports = reported(listening, 4)
    assert [r.step for r in reports] == [1, 2, 3, 4]
    assert [r.loss for r in reports] == pytest.approx(logged(run), abs=1e-4), "the log rounds"
    assert [r.lr[0] for r in reports] == pytest.approx(logged(run, "learning_rate"))
    assert all(grad_norm(r) is not None and grad_norm(r) > 0 for r in reports)
    hello = listening.hellos[0]
    assert (hello.wrapper, hello.groups[0].optimizer) == ("GPT2LMHeadModel", "AdamW")
    assert hello.config["learning_rate"] == 0.01
    events = [m for m in listening.messages if type(m).__name__ == "Event"]
    validations = [e for e in events if e.kind == "validation"]
    assert [e.step for e in validations] == [2, 4]
    assert [e.fields["loss"] for e in validations] == pytest.approx(logged(run, "eval_loss"))
    (saved,) = [e for e in events if e.kind == "checkpoint"]
    assert saved.fields == {"step": 4, "path": str(tmp_path / "out" / "checkpoint-4")}
    assert Path(str(saved.fields["path"])).is_dir()


def test_a_nan_that_the_trainers_log_hides_is_seen(trainer: Callable[..., Any], listening: Collector) -> None:
    class Broken(transformers.Trainer):  # type: ignore[misc, name-defined]  # imported at run time
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            return loss * float("nan") if self.state.global_step == 2 else loss

    run = trainer(kind=Broken)
    assert run.args.logging_nan_inf_filter
    run.train()
    assert math.isfinite(logged(run)[2]), "the Trainer's own log shows nothing"
    losses = [r.loss for r in reported(listening, 4)]
    assert [math.isnan(loss) for loss in losses if loss is not None][:3] == [False, False, True]


@pytest.mark.parametrize(("model", "data"), [(language_model, Texts), (Classifier, Classes)])
def test_under_accumulation_the_loss_is_that_of_the_whole_step(
    model: Any, data: Any, trainer: Callable[..., Any], listening: Collector
) -> None:
    """Six batches an epoch in steps of four: the second step of each epoch is a shorter one."""
    run = trainer(model(), data(), gradient_accumulation_steps=4)
    run.train()
    reports = reported(listening, 4)
    assert [r.step for r in reports] == [1, 2, 3, 4]
    assert [r.loss for r in reports] == pytest.approx(logged(run), abs=1e-4)


def test_a_loss_of_the_users_own_is_the_one_reported(trainer: Callable[..., Any], listening: Collector) -> None:
    """Label smoothing: what the model returns as its loss is not what is trained on."""
    run = trainer(label_smoothing_factor=0.3)
    run.train()
    assert [r.loss for r in reported(listening, 4)] == pytest.approx(logged(run), abs=1e-4)


def test_a_resumed_run_continues_its_count(trainer: Callable[..., Any], listening: Collector, tmp_path: Path) -> None:
    trainer(max_steps=2, save_strategy="steps", save_steps=2).train()
    reported(listening, 2)
    resumed = trainer(max_steps=5)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    reports = listening.wait_for(StepReport, 5)
    assert [r.step for r in reports] == [1, 2, 3, 4, 5]
    assert [h.start_step for h in listening.hellos] == [0, 2]
    assert [r.loss for r in reports[2:]] == pytest.approx(logged(resumed)[-3:], abs=1e-4)


class Scoring(transformers.Trainer):
    """Trains on what its model generates, as TRL's online trainers do; the loss stays the model's."""

    def __init__(self, *args: Any, reward_funcs: Any = len, **kwargs: Any) -> None:
        self.scored_by = reward_funcs
        super().__init__(*args, **kwargs)


class Derived(Scoring):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize(
    ("kind", "environment", "objective"),
    [
        (transformers.Trainer, "", "supervised"),
        (Derived, "", "reinforcement"),
        (Derived, "adversarial", "adversarial"),
    ],
)
def test_a_trainer_that_scores_what_the_model_generates_trains_by_reinforcement(
    trainer: Callable[..., Any],
    listening: Collector,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Any],
    environment: str,
    objective: str,
) -> None:
    monkeypatch.setenv("CABOOSE_OBJECTIVE", environment)
    trainer(kind=kind, max_steps=1).train()
    listening.wait_for(Bye)
    assert listening.hellos[0].facts["objective"] == objective


def test_torch_is_as_before_when_training_is_over(trainer: Callable[..., Any], listening: Collector) -> None:
    run = trainer(max_steps=1)
    run.train()
    assert not hasattr(torch.autograd.backward, "__wrapped__")
    assert not num_watches(run.model)
    assert run.callback.monitor is None


def test_disabled_the_trainer_runs_alone(
    trainer: Callable[..., Any], listening: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CABOOSE_DISABLED", "1")
    run = trainer(max_steps=2)
    run.train()
    assert len(logged(run)) == 2
    assert not listening.messages


def test_the_wrapped_model_is_the_one_that_is_watched(trainer: Callable[..., Any], listening: Collector) -> None:
    class Wrapping(transformers.Trainer):  # type: ignore[misc, name-defined]  # imported at run time
        def _wrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            return torch.nn.parallel.DistributedDataParallel(model)

    run = trainer(kind=Wrapping, gradient_accumulation_steps=2)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        run.train()
        assert [r.loss for r in reported(listening, 4)] == pytest.approx(logged(run), abs=1e-4)
        assert listening.hellos[0].wrapper == "DistributedDataParallel"
    finally:
        torch.distributed.destroy_process_group()


def test_without_transformers_the_import_names_the_cure_and_caboose_needs_it_not(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["transformers"] = None
import caboose
assert "caboose.huggingface" not in sys.modules
try:
    import caboose.huggingface
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'transformers[torch]'" in done.stdout
