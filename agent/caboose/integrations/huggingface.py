"""A callback for the Hugging Face Trainer: `Trainer(..., callbacks=[CabooseCallback()])`.

Design
------
The Trainer gives its callbacks neither the loss of a step nor the wrapped model. Its log does not help: it has means
over `logging_steps`, and `logging_nan_inf_filter` (on by default) replaces a NaN in it by the mean of the others. So:

* the loss is taken where `backward` is called on it (`losses`). The Trainer scales each micro-batch's loss such that
  their sum is the loss of the step, however the model or a `compute_loss_func` normalises; that sum is reported;
* the model is the one that the Trainer calls, `model_wrapped`. The Trainer is found on the call stack of
  `on_train_begin`;
* a trainer that is given something to score what the model generates (TRL's GRPO, RLOO, online DPO, PPO and their
  relatives) trains by reinforcement: its loss is not meant to fall;
* no callback is called around the wait for data. `get_batch_samples` fetches all micro-batches of a step, so it is
  replaced on this Trainer while it trains: the iterator that it is given is timed, and batches that are to be skipped
  after a rollback are dropped from it. The Trainer ends an epoch when its data end, after fewer steps then.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from caboose.attachment import attach
from caboose.guard import Guard
from caboose.monitor import Monitor
from caboose.observe.loader import FetchWatch
from caboose.observe.patches import Patches
from caboose.settings.options import as_rollback

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "caboose.huggingface needs Hugging Face transformers with torch: pip install 'transformers[torch]'"
    ) from error

from caboose.observe.losses import BackwardLosses

RECORDED = (
    "gradient_accumulation_steps",
    "label_smoothing_factor",
    "learning_rate",
    "max_grad_norm",
    "per_device_train_batch_size",
    "seed",
    "warmup_steps",
    "weight_decay",
)
"""The Trainer's settings that are recorded with the job."""

SCORES = frozenset({"reward_funcs", "reward_model", "judge", "value_model"})
"""Arguments of trainers that score what the model generates."""

NO_PLACE = "this version of the Trainer shows no place for it"


class CabooseCallback(TrainerCallback):
    """Reports every optimizer step, evaluation and checkpoint of a Trainer.

    Takes what `caboose.attach` takes beside the model and the optimizer: `job=`, `endpoint=`, `config=`, ...
    """

    def __init__(self, **options: Any) -> None:
        self.monitor: Monitor | None = None
        self._options = options
        self._losses: BackwardLosses | None = None
        self._patches = Patches()
        self._fetches: FetchWatch | None = None
        self._last_step = 0
        self.is_automatic = False
        """Whether nobody asked for it: a setting that attach refuses is then logged, and does not end the run."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attaches: model and optimizer are final now."""
        begin = Guard().protect("automatic attach", self._begin) if self.is_automatic else self._begin
        begin(args, state, kwargs)

    def _begin(self, args: TrainingArguments, state: TrainerState, kwargs: Mapping[str, Any]) -> None:
        self._close()
        self._last_step = state.global_step
        trainer = _calling_trainer()
        model = kwargs["model"] if trainer is None else trainer.model_wrapped
        options = {
            "start_step": state.global_step,
            "scheduler": kwargs.get("lr_scheduler"),
            "scaler": None if trainer is None else getattr(trainer.accelerator, "scaler", None),
            "objective": "reinforcement" if _has_scores(trainer) and not os.environ.get("CABOOSE_OBJECTIVE") else None,
            **self._options,
        }
        recorded = {name: getattr(args, name, None) for name in RECORDED}
        options["config"] = {**recorded, **(self._options.get("config") or {})}
        options["rollback"] = as_rollback(options.get("rollback", "advise")).without_rewind()
        blind = {} if hasattr(trainer, "get_batch_samples") else {"data_wait": NO_PLACE}
        with attach.with_loader(kwargs.get("train_dataloader")), attach.blind_to(**blind):
            self.monitor = attach.attach(model, kwargs["optimizer"], **options)
        if self.monitor.is_active:
            self._losses = BackwardLosses(self.monitor.guard.protect)
            self._take_loss = self.monitor.guard.protect("loss", self._losses.take_sum)
            self._losses.start()
            self._watch_data(trainer, self.monitor.watch_fetches(), kwargs.get("train_dataloader"))

    def _watch_data(self, trainer: Any, fetches: FetchWatch, loader: Any) -> None:
        self._fetches = fetches

        def timing(original: Callable[..., Any]) -> Callable[..., Any]:
            def get_batch_samples(epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
                return original(fetches.timed(epoch_iterator, loader), *args, **kwargs)

            return get_batch_samples

        if hasattr(trainer, "get_batch_samples"):
            self._patches.put(trainer, "get_batch_samples", timing)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Counts the epochs; those before a resumed run too."""
        if self._fetches is not None:
            self._fetches.begin_epoch(None if state.epoch is None else int(state.epoch))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The step boundary: the Trainer has not counted the step yet, nor has the scheduler changed the rate."""
        self._report(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The step boundary for versions of the Trainer without `on_optimizer_step`."""
        if state.global_step > self._last_step:
            self._report(state.global_step)

    def _report(self, step: int) -> None:
        self._last_step = step
        if self.monitor is not None and self._losses is not None:
            self.monitor.step(self._take_loss(), step=step)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Reports the evaluation, once for all ranks."""
        if self.monitor is not None and state.is_world_process_zero:
            found = {name: value for name, value in (metrics or {}).items() if isinstance(value, int | float)}
            self.monitor.validation(found.pop("eval_loss", None), **found)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Reports the checkpoint that was just written."""
        if self.monitor is not None and state.is_world_process_zero:
            path = os.path.join(args.output_dir or "", f"checkpoint-{state.global_step}")
            self.monitor.event("checkpoint", step=state.global_step, path=path)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Closes the monitor; after an exception, the end of the process does."""
        self._close()

    def _close(self) -> None:
        self._patches.undo()
        self._fetches = None
        if self._losses is not None:
            self._losses.stop()
        if self.monitor is not None:
            self.monitor.close()
        self.monitor = self._losses = None


def _has_scores(trainer: Any) -> bool:
    """Whether what this trainer's class is made with tells that it scores what the model generates."""
    makers = [vars(kind).get("__init__") for kind in type(trainer).__mro__ if kind is not Trainer]
    return any(SCORES & inspect.signature(made).parameters.keys() for made in makers if inspect.isfunction(made))


def _calling_trainer() -> Any:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, Trainer):
            return candidate
    return None
