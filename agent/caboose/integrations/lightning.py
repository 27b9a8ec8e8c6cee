"""A callback for Lightning: `Trainer(..., callbacks=[CabooseCallback()])`, from `lightning` or `pytorch_lightning`.

Design
------
Lightning calls `on_train_batch_end` for every micro-batch; a step has ended when `trainer.global_step` has changed. The
loss it passes is already divided by `accumulate_grad_batches`, also in the shorter last group of an epoch; that is
undone, and the mean of the micro-batches is reported.

A checkpoint is reported when it is written, with its file. No hook has that: the one at the beginning knows no file,
and the attributes of ModelCheckpoint name only its own best or last one. So `trainer.save_checkpoint`, through which
every save goes, is wrapped while the Trainer trains.

No hook is called around the wait for data either. The loop of an epoch has two functions for the profiler, which are
called around each fetch: they are wrapped. After a rollback batches are skipped in the iterator that the loop has made
when its epoch begins. A skipped batch counts as done in the loop's progress, so an epoch ends, is validated and is
resumed where it would be without the skip; its last batch is fed in any case, because the loop ends the epoch with it.

If both packages are installed, the callback belongs to the one that the program imported first.
"""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from caboose.attachment import attach
from caboose.guard import Guard
from caboose.integrations.places import place_of
from caboose.monitor import Monitor
from caboose.observe.loader import FetchWatch
from caboose.observe.patches import Patches
from caboose.settings.options import as_rollback

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
            from pytorch_lightning import Callback
        else:
            from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise ImportError("caboose.lightning needs Lightning: pip install lightning") from error

import torch

VALIDATION_LOSS = ("val_loss", "val/loss", "valid_loss", "valid/loss", "validation_loss", "validation/loss")
"""Names under which programs log the validation loss; the first that is found is the event's `loss`."""

NO_PLACE = "this version of Lightning shows no place for it"


class CabooseCallback(Callback):
    """Reports every optimizer step, validation and checkpoint of a Trainer.

    Takes what `caboose.attach` takes beside the model and the optimizers: `job=`, `endpoint=`, `config=`, ...
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.monitor: Monitor | None = None
        self._options = options
        self._losses: list[torch.Tensor] = []
        self._last_step = 0
        self._patches = Patches()
        self._fetches: FetchWatch | None = None
        self._is_whole = False
        self.is_automatic = False
        """Whether nobody asked for it: a setting that attach refuses is then logged, and does not end the run."""

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Attaches: the strategy has wrapped the model by now."""
        begin = Guard().protect("automatic attach", self._begin) if self.is_automatic else self._begin
        begin(trainer, pl_module)

    def _begin(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._close()
        self._losses = []
        self._last_step = trainer.global_step
        model = trainer.model if isinstance(trainer.model, torch.nn.Module) else pl_module
        options = {
            "start_step": trainer.global_step,
            "scaler": getattr(trainer.precision_plugin, "scaler", None),
            **self._options,
        }
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        rollback = options["rollback"] = as_rollback(options.get("rollback", "advise")).without_rewind()
        if rollback.mode == "auto" and schedulers:
            options.setdefault("scheduler", schedulers)
        blind = {} if _has_place(trainer) else {"data_wait": NO_PLACE}
        with attach.with_loader(trainer.train_dataloader), attach.blind_to(**blind):
            self.monitor = attach.attach(model, list(trainer.optimizers), **options)
        self._patches.put(trainer, "save_checkpoint", lambda save: self._reporting(trainer, save))
        if self.monitor.is_active:
            fetches = self._fetches = self.monitor.watch_fetches()
            loop = trainer.fit_loop.epoch_loop
            if _has_place(trainer):
                self._patches.put(loop, "_on_before_fetch", lambda original: _both(original, fetches.begin))
                self._patches.put(loop, "_on_after_fetch", lambda original: _both(fetches.end, original))
            self._patches.put(loop, "on_run_start", lambda start: _skipping(start, loop.batch_progress, fetches))

    def on_train_epoch_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Counts the epochs; those before a resumed run too."""
        if self._fetches is not None:
            self._fetches.begin_epoch(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: "Trainer", pl_module: "LightningModule", batch: Any, batch_idx: int
    ) -> None:
        """Counts the batches."""
        if self._fetches is not None:
            self._fetches.saw(batch)

    def on_train_batch_end(
        self, trainer: "Trainer", pl_module: "LightningModule", outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The step boundary, if the optimizer stepped."""
        if self.monitor is None:
            return
        self.monitor.guard.protect("loss", self._keep)(trainer, pl_module, outputs)
        if trainer.global_step != self._last_step:
            self._last_step = trainer.global_step
            losses, self._losses = self._losses, []
            mean = self.monitor.guard.protect("loss", _mean)(losses)
            self.monitor.step(mean, step=trainer.global_step)

    def _keep(self, trainer: "Trainer", pl_module: "LightningModule", outputs: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor):
            is_divided = pl_module.automatic_optimization and trainer.accumulate_grad_batches > 1
            self._losses.append(loss.detach() * trainer.accumulate_grad_batches if is_divided else loss.detach())

    def on_validation_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Reports what validation logged, once for all ranks."""
        if self.monitor is None or trainer.sanity_checking or not trainer.is_global_zero:
            return
        metrics: dict[str, Any] = {
            name: value for name, value in trainer.callback_metrics.items() if not name.startswith("train")
        }
        name = next((name for name in VALIDATION_LOSS if name in metrics), None)
        self.monitor.validation(None if name is None else metrics.pop(name), **metrics)

    def on_save_checkpoint(self, trainer: "Trainer", pl_module: "LightningModule", checkpoint: dict[str, Any]) -> None:
        """Notes that the checkpoint can be resumed from; this hook is not called for weights alone."""
        self._is_whole = True

    def _reporting(self, trainer: "Trainer", save: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            self._is_whole = False
            result = save(filepath, *args, **kwargs)
            if self.monitor is not None and self._is_whole and trainer.is_global_zero:
                self.monitor.event("checkpoint", step=trainer.global_step, path=place_of(filepath))
            return result

        return save_checkpoint

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        """Closes the monitor, with the reason."""
        if self.monitor is not None:
            self.monitor.event("exception", error=f"{type(exception).__name__}: {exception}"[:256])
            self.monitor.__exit__(type(exception), exception, exception.__traceback__)
            self._close()

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Drops unreported losses; `teardown` closes, as checkpoints may still be written."""
        self._losses = []

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """Closes the monitor."""
        if stage == "fit":
            self._close()

    def _close(self) -> None:
        self._patches.undo()
        self._fetches = None
        if self.monitor is not None:
            self.monitor.close()
            self.monitor = None


def _has_place(trainer: "Trainer") -> bool:
    """Whether this Lightning calls something around each fetch of a batch to train on."""
    return hasattr(trainer.fit_loop.epoch_loop, "_on_before_fetch")


def _skipping(start: Callable[..., Any], progress: Any, fetches: FetchWatch) -> Callable[..., Any]:
    """The beginning of an epoch, whose batches can then be skipped."""

    def on_run_start(fetcher: Any, *args: Any, **kwargs: Any) -> Any:
        result = start(fetcher, *args, **kwargs)
        if isinstance(getattr(fetcher, "iterator", None), Iterator):

            def is_last() -> bool:
                return fetcher.length is not None and fetcher.fetched + 1 >= fetcher.length

            def on_skip() -> None:
                fetcher.fetched += 1
                for count in (progress.increment_ready, progress.increment_started, progress.increment_processed):
                    count()
                progress.increment_completed()

            loader = fetcher.combined_loader
            fetcher.iterator = fetches.skipping(fetcher.iterator, loader, is_last=is_last, on_skip=on_skip)
        return result

    return on_run_start


def _both(first: Callable[[], Any], second: Callable[[], Any]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def _mean(losses: list[torch.Tensor]) -> torch.Tensor | None:
    if not losses:
        return None
    return losses[0] if len(losses) == 1 else torch.stack([loss.to(torch.float32) for loss in losses]).mean()
