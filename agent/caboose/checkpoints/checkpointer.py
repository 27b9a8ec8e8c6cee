"""Saves checkpoints at step boundaries, at most one at a time, and loads them.

Design
------
Every call but `poll` and the marks is a collective: all ranks make it at the same boundary. The ranks communicate over
a gloo group made here once; on the default group a background save would collide with training's own collectives and
abort the process.

For a background save, the training thread only copies the state to the host; a thread writes it together with the other
ranks' threads. One is in progress at most: the next `save` waits for it, since only waiting is the same on all ranks.

A failed save is a result, not an exception, is logged once per kind, and leaves nothing that looks complete. If a rank
is gone the group is broken, and later saves fail at once.
"""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from caboose.checkpoints import layout, writing
from caboose.checkpoints.errors import CheckpointFailed
from caboose.checkpoints.exchange import Exchange
from caboose.checkpoints.loading import LoadedCheckpoint, load
from caboose.checkpoints.run_state import Captured, RunState
from caboose.report import threads
from caboose.tensors.shards import quiet_fsdp1
from caboose_wire import Terms

logger = logging.getLogger("caboose")

TIMEOUT_SECONDS = 600.0
"""How long a rank waits for another one in a save before it counts as dead."""
MAX_FINISHED = 16
"""Results that are not polled; older ones are dropped."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """The result of a save."""

    path: Path
    step: int
    model_step: int
    world: int
    state: Literal["saved", "writing", "failed"]
    seconds: float = 0.0
    """From the call until it was on disk."""
    held_seconds: float = 0.0
    """How long the training thread waited."""
    num_bytes: int = 0
    """On disk, all ranks together."""
    error: str = ""

    def as_event(self) -> tuple[str, dict[str, Any]]:
        """The kind and the fields of the event that reports it."""
        if self.state != "saved":
            return "checkpoint_failed", {"step": self.step, "path": str(self.path), "error": self.error}
        fields = {"step": self.step, "model_step": self.model_step, "path": str(self.path), "ours": True}
        return "checkpoint", fields | {"world": self.world, "seconds": self.seconds, "num_bytes": self.num_bytes}


class Checkpointer:
    """Saves and loads the state of one run; made on all ranks, after the model is wrapped."""

    def __init__(
        self,
        directory: Path | str,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[Any] = (),
        scaler: Any = None,
        extra: Sequence[Any] | Mapping[str, Any] = (),
        *,
        rank: int = 0,
        world: int = 1,
        keep: int = 3,
        is_async: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
        report: Callable[[SavedCheckpoint], None] = lambda saved: None,
    ) -> None:
        """`report` is called with every result, on the training thread."""
        self.directory = Path(directory).absolute()
        self._state = RunState(model, optimizers, schedulers, scaler, extra)
        if is_async and self._state.is_fsdp1:
            raise ValueError("FSDP1 cannot be saved in the background; use in_background=False, or FSDP2")
        self._exchange = Exchange(timeout_seconds)
        if (rank, world) != (self._exchange.rank, self._exchange.world):
            mine = f"rank {self._exchange.rank} of {self._exchange.world}"
            self._exchange.close()
            raise ValueError(
                f"rank {rank} of {world} is to be saved, but the process group says {mine}; "
                "initialise torch.distributed with all ranks first"
            )
        self._report = report
        self._keep = keep
        self._is_async = is_async
        self._wrapper = type(model).__name__
        self._thread: threading.Thread | None = None
        self._finished: deque[SavedCheckpoint] = deque(maxlen=MAX_FINISHED)
        self._last_error = ""
        """Of the last background save: all ranks have failed or none, so all raise it or none."""
        self._broken = ""
        self._logged: set[str] = set()

    @property
    def is_writing(self) -> bool:
        """Whether a background save is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, step: int, model_step: int, *, raise_errors: bool = False) -> SavedCheckpoint:
        """Saves the state after this step. A collective. A background save returns with `state` "writing".

        With `raise_errors`, a failure raises CheckpointFailed; for a background save the next call raises it.
        """
        saved = self._save(step, model_step, raise_errors=raise_errors)
        if saved.state != "writing":
            self._report(saved)
        return saved

    def _save(self, step: int, model_step: int, *, raise_errors: bool) -> SavedCheckpoint:
        started = time.monotonic()
        self.wait()
        if raise_errors and self._last_error:
            error, self._last_error = self._last_error, ""
            raise CheckpointFailed(error)
        path = layout.path_of(self.directory, step)
        saving = SavedCheckpoint(path, step, model_step, self._exchange.world, "writing")
        if self._is_async and not self._broken:
            taken = self._take_down()
            self._thread = threading.Thread(
                target=self._write_aside, args=(saving, taken, started), name="caboose-checkpoint", daemon=True
            )
            try:
                threads.start(self._thread)
            except RuntimeError:  # no more threads; the other ranks wait for this one anyway
                self._thread = None
                self._write_aside(saving, taken, started)
            return replace(saving, held_seconds=time.monotonic() - started)
        with quiet_fsdp1(self._state.model):
            saved = self._write(saving, lambda: self._state.capture(self._exchange.rank, is_copied=False), started)
        saved = replace(saved, held_seconds=saved.seconds)
        if raise_errors and saved.state == "failed":
            raise CheckpointFailed(saved.error)
        return saved

    def _take_down(self) -> Callable[[], Captured]:
        """The current state, for later; a failure here is raised when the ranks meet."""
        try:
            captured = self._state.capture(self._exchange.rank, is_copied=True)
        except Exception as error:  # noqa: BLE001 - as above
            failed = error

            def fail() -> Captured:
                raise failed

            return fail
        return lambda: captured

    def _write_aside(self, saving: SavedCheckpoint, taken: Callable[[], Captured], started: float) -> None:
        saved = self._write(saving, taken, started)
        self._last_error = saved.error
        self._finished.append(saved)

    def _write(self, saving: SavedCheckpoint, capture: Callable[[], Captured], started: float) -> SavedCheckpoint:
        try:
            if self._broken:
                raise CheckpointFailed(self._broken)
            num_bytes = writing.write(
                self.directory,
                self._exchange,
                capture,
                step=saving.step,
                model_step=saving.model_step,
                wrapper=self._wrapper,
                keep=self._keep,
            )
        except CheckpointFailed as error:
            return self._failed(saving, str(error), started)
        except Exception as error:  # noqa: BLE001 - the run comes first; the ranks can no longer meet
            self._broken = f"the ranks lost each other while step {saving.step} was saved: {error!r}"
            return self._failed(saving, self._broken, started)
        return replace(saving, state="saved", seconds=time.monotonic() - started, num_bytes=num_bytes)

    def _failed(self, saving: SavedCheckpoint, error: str, started: float) -> SavedCheckpoint:
        kind = re.sub(r"\d+", "", error)  # a full disk has a few other bytes free the next time
        if kind not in self._logged and len(self._logged) < 100:
            self._logged.add(kind)
            logger.warning("caboose: the checkpoint of step %d was not saved: %s", saving.step, error)
        return replace(saving, state="failed", seconds=time.monotonic() - started, error=error)

    def poll(self) -> SavedCheckpoint | None:
        """The result of a background save, once, after it has ended. Never waits, not a collective."""
        return self._finished.popleft() if self._finished else None

    def report_finished(self) -> None:
        """Reports the background saves that have ended. Never waits, not a collective."""
        while (saved := self.poll()) is not None:
            self._report(saved)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for a background save; False if it takes longer than this."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.is_writing

    def load(self, path: Path | str, *, allow_other_world: bool = False, strict: bool = True) -> LoadedCheckpoint:
        """Loads a checkpoint into the run, in place. A collective; see `loading.load`."""
        self.wait()
        with quiet_fsdp1(self._state.model):
            return load(Path(path), self._state, self._exchange, allow_other_world=allow_other_world, strict=strict)

    def mark(self, step: int, mark: layout.Mark, *, is_on: bool = True) -> None:
        """Marks a checkpoint as pinned, best, healthy or tainted, for retention and `resume_plan`. Not a collective.

        There is one best and one healthy: the mark moves from the last one to this.
        """
        if self._exchange.rank != 0:
            return
        if mark in ("best", "healthy") and is_on:
            for path in layout.steps_in(self.directory).values():
                layout.set_mark(path, mark, is_on=False)
        path = layout.path_of(self.directory, step)
        if path.is_dir():
            layout.set_mark(path, mark, is_on=is_on)

    def apply_terms(self, terms: Terms) -> None:
        """Marks checkpoints as the daemon's ledger has them, for retention. Not a collective."""
        if self._exchange.rank != 0:
            return
        steps = layout.steps_in(self.directory)
        for step in steps.keys() & set(terms.tainted):  # only added: others may have been marked manually
            layout.set_mark(steps[step], "tainted")
        if terms.best in steps:
            self.mark(terms.best, "best")
        if terms.healthy in steps:
            self.mark(terms.healthy, "healthy")

    def close(self, timeout: float | None = None) -> None:
        """Waits for a save in progress and closes the group. A collective if the group is intact."""
        if self.wait(timeout) and not self._broken:
            self._exchange.close()
