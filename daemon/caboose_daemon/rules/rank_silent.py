"""rank_silent: a rank sends no heartbeat, never connected, or exited with an error.

Design
------
Every agent sends heartbeats from a separate thread, also while a step compiles, saves or evaluates, so silence means
that the process is gone, frozen or disconnected. A suspended daemon must not look like silence of all ranks: after a
gap between two ticks, the ranks get their full time again. A restarted daemon knows its ranks from the journal: those
that do not reconnect while others do are silent; while none has reconnected, nothing can be judged.

A killed process reports nothing, but its peers do: their collective breaks, and they exit with an error about a lost
peer. They are not the cause. So a rank that exited with another error is named, or else a silent one. Until silence can
be noticed, nothing is reported if no other rank can be named. A launcher terminates the other ranks once one has ended,
and their Bye names the signal: they are not the cause either, and the silent rank is gone for certain. A rank that left
without an error before them may have ended with a failing status: that is a warning. Where a signal terminated the
first of them, and the rest was terminated or lost a peer then, the job was cancelled.

If every rank is silent, the job was killed as a whole or cannot be reached. Nobody can rescue it at night, so that is
no page.
"""

from dataclasses import dataclass

from caboose_daemon.rules.parts.endings import lost_a_peer, rank_place, were_cancelled
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import and_more
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.view import GONE, JobView, RankView

OWN_GAP_SECONDS = 5.0


@dataclass(frozen=True)
class RankSilentConfig(RuleConfig):
    """Thresholds of rank_silent."""

    warn_seconds: float = 10.0
    """Time without a heartbeat that is a warning; agents send one every 2 seconds."""
    critical_seconds: float = 30.0
    """Time without a heartbeat that pages."""
    startup_seconds: float = 300.0
    """Time that a rank may take to connect after the first one did."""


class RankSilent(Rule[RankSilentConfig]):
    """A rank without heartbeat, or that exited with an error."""

    name = "rank_silent"
    config_class = RankSilentConfig
    trigger = "tick"

    def __init__(self, config: RankSilentConfig) -> None:
        super().__init__(config)
        self._last_tick = 0.0
        self._grace_until = 0.0
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding while any rank is silent, absent or failed."""
        if view.now - self._last_tick > OWN_GAP_SECONDS:
            self._grace_until = view.now + self.config.warn_seconds
        self._last_tick = view.now
        states = {rank.state for rank in view.ranks.values()}
        if view.now < self._grace_until and not states <= GONE:  # what said its Bye is not waited for
            return None
        if states == {"left"} or were_cancelled(list(view.ranks.values())):
            return self._resolved(view, "all ranks left: the job ended")
        if states == {"left", "terminated"}:
            return self._left_first(view)
        if states <= {"left", "terminated", "expected"}:
            return None
        silent = sorted(
            (rank for rank in view.ranks.values() if self._is_silent(rank, view)), key=lambda r: r.last_seen
        )
        failed = tuple(rank for rank in view.ranks.values() if rank.state == "failed")
        without_peer = tuple(rank for rank in failed if lost_a_peer(rank))
        if len(without_peer) == len(failed) and failed:
            if silent:
                failed = ()
            elif any(rank.state == "live" for rank in view.ranks.values()):
                return None  # the silence of the peer that they lost cannot be noticed yet
        elif without_peer:
            failed = tuple(rank for rank in failed if rank not in without_peer)
        absent = self._absent(view)
        if not (silent or failed or absent):
            return self._resolved(view, "every rank sends heartbeats again")
        if self._onset is None:
            self._onset = max((rank.step for rank in view.ranks.values()), default=0)
        longest = max((_silent_seconds(rank, view) for rank in silent), default=0.0)
        num_terminated = sum(rank.state == "terminated" for rank in view.ranks.values())
        is_lost = len(silent) == len(view.ranks)
        is_critical = longest >= self.config.critical_seconds and not is_lost
        is_critical |= bool(failed or absent or without_peer or num_terminated)
        named = failed or tuple(silent)
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.CRITICAL if is_critical else Severity.WARNING),
            step=max((rank.step for rank in view.ranks.values()), default=0),
            onset_step=self._onset,
            summary=_summary(view, silent, failed, absent, longest) + _peers(without_peer, failed, num_terminated),
            ranks=tuple(rank.rank for rank in named) or absent,
            values=_values(
                silent_ranks=len(silent),
                seconds=longest,
                failed_ranks=len(failed),
                ranks_that_lost_a_peer=len(without_peer),
                terminated_ranks=num_terminated,
                absent_ranks=len(absent),
            ),
        )

    def _left_first(self, view: JobView) -> Finding:
        """Ranks that left, with a status that is not known here, before the others were terminated."""
        left = sorted((r for r in view.ranks.values() if r.state == "left"), key=lambda rank: rank.last_seen)
        num_terminated = len(view.ranks) - len(left)
        first, step = left[0], max(rank.step for rank in view.ranks.values())
        if self._onset is None:
            self._onset = step
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.WARNING),
            step=step,
            onset_step=self._onset,
            summary=f"{_name(first)}{and_more(len(left), 'rank')} ended at step {first.step:,}"
            + _peers((), (), num_terminated),
            ranks=tuple(rank.rank for rank in left),
            values=_values(terminated_ranks=num_terminated),
        )

    def resume(self, finding: Finding) -> None:
        """Restores the onset; who is silent is judged again."""
        self._onset = finding.onset_step

    def _is_silent(self, rank: RankView, view: JobView) -> bool:
        return rank.state in ("live", "expected") and _silent_seconds(rank, view) >= self.config.warn_seconds

    def _absent(self, view: JobView) -> tuple[int, ...]:
        is_any_live = any(rank.state == "live" for rank in view.ranks.values())
        if not is_any_live or view.now - view.attempt_began < self.config.startup_seconds:
            return ()
        return tuple(rank for rank in range(view.world) if rank not in view.ranks)

    def _resolved(self, view: JobView, why: str) -> Finding | None:
        onset, self._onset = self._onset, None
        if onset is None:
            return None
        step = max((rank.step for rank in view.ranks.values()), default=0)
        return Finding(
            rule=self.name, severity=Severity.INFO, step=step, onset_step=onset, summary=why, state="resolved"
        )


VALUES = ("silent_ranks", "seconds", "failed_ranks", "ranks_that_lost_a_peer", "terminated_ranks", "absent_ranks")


def _values(**known: float) -> dict[str, float]:
    return {name: float(known.get(name, 0.0)) for name in VALUES}


def _silent_seconds(rank: RankView, view: JobView) -> float:
    """Time without a heartbeat; for a rank from before a restart of the daemon, counted from the restart."""
    return view.now - max(rank.last_seen, view.attempt_began)


def _peers(without_peer: tuple[RankView, ...], failed: tuple[RankView, ...], num_terminated: int) -> str:
    others = [rank for rank in without_peer if rank not in failed]
    text = f"; rank {others[0].rank}{and_more(len(others), 'rank')} exited after losing a peer" if others else ""
    if num_terminated:
        text += f"; the launcher terminated {num_terminated} other {'rank' if num_terminated == 1 else 'ranks'}"
    return text


def _summary(
    view: JobView,
    silent: list[RankView],
    failed: tuple[RankView, ...],
    absent: tuple[int, ...],
    longest: float,
) -> str:
    if failed:
        first = failed[0]
        return f"{_name(first)} failed at step {first.step:,}: {first.error[:200]}"
    if silent:
        first = silent[0]
        who = f"{_name(first)}{and_more(len(silent), 'rank')}"
        if len(silent) == view.world > 1:
            who = f"all {view.world} ranks"
        return f"{who}: no heartbeat for {longest:.0f} s, last step {first.step:,}"
    seconds = view.now - view.attempt_began
    return f"rank {absent[0]}{and_more(len(absent), 'rank')} of {view.world} not connected after {seconds:.0f} s"


def _name(rank: RankView) -> str:
    return rank_place(rank.rank, rank.host, rank.pid)
