"""rank_silent: a rank stopped talking, never showed up, or left with an error.

Design
------
Every agent sends heartbeats from a thread of its own, also while a step compiles, saves or evaluates, so silence
means that the process is gone, frozen or cut off. The daemon's own sleep must not look like everybody's silence:
after a gap between two looks, the ranks get their time again. A restarted daemon knows its ranks from the journal:
those that do not come back while others do are silent; while none has, it cannot tell, and says nothing.

A process that is killed says nothing; its peers do: their collective breaks, and they leave with an error about a lost
peer. They are witnesses and not to blame, so who left with another error is named, or else who is silent; and for as
long as silence takes to show, nothing is said if nobody else can be named yet.
"""

import re
from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.view import JobView, RankView

OWN_GAP_SECONDS = 5.0
LOST_PEER = re.compile(
    r"(closed|reset|aborted) by peer|remote process exited|remote worker|ncclRemoteError|broken pipe"
    r"|collective operation timeout|timed out waiting|connection refused",
    re.IGNORECASE,
)
"""How gloo, NCCL and the store say that another process is gone."""


@dataclass(frozen=True)
class RankSilentConfig(RuleConfig):
    """Thresholds of rank_silent."""

    warn_seconds: float = 10.0
    """Silence after which a rank is missed; agents send a heartbeat every 2 seconds."""
    critical_seconds: float = 30.0
    """Silence that pages."""
    startup_seconds: float = 300.0
    """How long a rank may take to show up after the first one did."""


class RankSilent(Rule[RankSilentConfig]):
    """A rank that should speak and does not."""

    name = "rank_silent"
    config_class = RankSilentConfig
    trigger = "tick"

    def __init__(self, config: RankSilentConfig) -> None:
        super().__init__(config)
        self._last_look = 0.0
        self._grace_until = 0.0
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding while any rank is silent."""
        if view.now - self._last_look > OWN_GAP_SECONDS:
            self._grace_until = view.now + self.config.warn_seconds
        self._last_look = view.now
        if view.now < self._grace_until:
            return None
        if view.ranks and all(rank.state == "left" for rank in view.ranks.values()):
            return self._resolved(view, "the job ended")
        if all(rank.state in ("left", "expected") for rank in view.ranks.values()):
            return None
        silent = sorted(
            (rank for rank in view.ranks.values() if self._is_silent(rank, view)), key=lambda r: r.last_seen
        )
        failed = tuple(rank for rank in view.ranks.values() if rank.state == "failed")
        witnesses = tuple(rank for rank in failed if LOST_PEER.search(rank.error))
        if len(witnesses) == len(failed) and failed:
            if silent:
                failed = ()
            elif any(rank.state == "live" for rank in view.ranks.values()):
                return None  # the peer they lost is not missed yet
        elif witnesses:
            failed = tuple(rank for rank in failed if rank not in witnesses)
        absent = self._absent(view)
        if not (silent or failed or absent):
            return self._resolved(view, "every rank is heard again")
        if self._onset is None:
            self._onset = max((rank.step for rank in view.ranks.values()), default=0)
        longest = max((_silent_seconds(rank, view) for rank in silent), default=0.0)
        is_critical = longest >= self.config.critical_seconds or bool(failed) or bool(absent) or bool(witnesses)
        culprits = failed or tuple(silent)
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.CRITICAL if is_critical else Severity.WARNING),
            step=max((rank.step for rank in view.ranks.values()), default=0),
            onset_step=self._onset,
            summary=_summary(view, silent, failed, absent, longest) + _testimony(witnesses, failed),
            ranks=tuple(rank.rank for rank in culprits) or absent,
            values={
                "silent_ranks": float(len(silent)),
                "seconds": longest,
                "failed_ranks": float(len(failed)),
                "ranks_that_lost_a_peer": float(len(witnesses)),
                "absent_ranks": float(len(absent)),
            },
        )

    def resume(self, finding: Finding) -> None:
        """Only since when; who is silent shows anew."""
        self._onset = finding.onset_step

    def _is_silent(self, rank: RankView, view: JobView) -> bool:
        return rank.state in ("live", "expected") and _silent_seconds(rank, view) >= self.config.warn_seconds

    def _absent(self, view: JobView) -> tuple[int, ...]:
        is_anyone_live = any(rank.state == "live" for rank in view.ranks.values())
        if not is_anyone_live or view.now - view.attempt_began < self.config.startup_seconds:
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


def _silent_seconds(rank: RankView, view: JobView) -> float:
    """A rank known from before the daemon's restart has its time from the restart on."""
    return view.now - max(rank.last_seen, view.attempt_began)


def _testimony(witnesses: tuple[RankView, ...], failed: tuple[RankView, ...]) -> str:
    others = [rank for rank in witnesses if rank not in failed]
    if not others:
        return ""
    if len(others) == 1:
        return f"; rank {others[0].rank} left because it lost a peer"
    return f"; {len(others)} ranks left because they lost a peer, the first is rank {others[0].rank}"


def _summary(
    view: JobView,
    silent: list[RankView],
    failed: tuple[RankView, ...],
    absent: tuple[int, ...],
    longest: float,
) -> str:
    if failed:
        first = failed[0]
        return f"rank {first.rank} on {first.host} left with an error at step {first.step}: {first.error[:200]}"
    if silent:
        first = silent[0]
        others = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
        who = "all ranks are" if len(silent) == view.world else f"rank {first.rank} on {first.host}{others} is"
        return f"{who} silent for {longest:.0f} s; last heard at step {first.step}"
    return f"{len(absent)} of {view.world} ranks never showed up, the first is rank {absent[0]}"
