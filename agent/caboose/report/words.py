"""The few lines that rank 0 prints for the person who started the run.

One when the daemon has answered: job, page, rollback mode. One at the end, with the daemon's latest verdict; nothing is
waited for. Both go to stderr, and CABOOSE_QUIET=1 silences them. If no daemon answers, or no step was reported, one
warning is logged.
"""

import contextlib
import logging
import sys
from dataclasses import dataclass

from caboose.report.daemon_log import printable
from caboose_wire import Verdict

logger = logging.getLogger("caboose")

MAX_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Advice:
    """The daemon's judgement of a run, as it was last reported."""

    severity: str
    """Of the worst open incident."""
    summary: str
    url: str
    """The run's live page."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.summary} ({self.url})"


class Words:
    """The lines of one monitor; called on the sender's thread, and `say_last` after it has ended."""

    def __init__(self, endpoint: str, mode: str, *, is_quiet: bool) -> None:
        self._endpoint = endpoint
        self._mode = mode
        self._is_quiet = is_quiet
        self._verdict: Verdict | None = None
        self._has_warned = False

    def take(self, verdict: Verdict) -> None:
        """The daemon's verdict, the first or a new one."""
        if self._verdict is None:
            self._print(f"watching job {verdict.job!r}, rollback is {self._mode} here: {verdict.url}")
        self._verdict = verdict

    def advice(self) -> tuple[Advice, ...]:
        """Of the worst open incident, if there is one; on any thread."""
        verdict = self._verdict
        if verdict is None or verdict.health == "ok":
            return ()
        return (Advice(verdict.health, printable(verdict.summary), printable(verdict.url)),)

    def warn_unanswered(self) -> None:
        """No daemon has answered yet."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "caboose: no daemon answers at %s, so nothing is reported; the run goes on, and it is tried again. "
                "Start one with `caboose daemon`, or set CABOOSE_ENDPOINT",
                self._endpoint,
            )

    def warn_no_step(self) -> None:
        """The run ended well, and no step of it was reported."""
        logger.warning(
            "caboose: no step was reported: monitor.step(loss) was not called after caboose.attach. Call it once per "
            "optimizer step, on every rank"
        )

    @property
    def has_verdict(self) -> bool:
        """Whether the daemon has ever answered."""
        return self._verdict is not None

    def say_last(self, step: int, end: str = "") -> None:
        """The line at the end of the run, if the daemon ever answered; `end` is why this rank did not end well."""
        verdict = self._verdict
        if verdict is not None:
            found = f"{verdict.health}, {verdict.summary}" if verdict.summary else verdict.health
            found = f"{end}; before that {found}" if end else found
            self._print(f"job {verdict.job!r} at step {step:,}: {found}: {verdict.url}")

    def say_summary(self, summary: object) -> None:
        """A second line at the end: what the run's steps add up to."""
        if summary is not None and self._verdict is not None:
            self._print(str(summary))

    def _print(self, text: str) -> None:
        if not self._is_quiet:
            with contextlib.suppress(Exception):  # stderr may be closed
                sys.stderr.write(f"caboose: {printable(text, MAX_CHARACTERS)}\n")
                sys.stderr.flush()
