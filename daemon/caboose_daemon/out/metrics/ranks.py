"""The ranks' series: one per metric and rank up to 512 ranks; above that, the ten worst ranks of each metric."""

from collections.abc import Callable, Iterable

import numpy as np

from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.out.metrics.names import OTHER
from caboose_daemon.out.metrics.samples import JobSamples
from caboose_daemon.out.metrics.slots import Slots
from caboose_daemon.steps.columns import RANK_COLUMNS, Column, Worst

MAX_RANKS = 512
NUM_WORST = 10
SPARE_MOVES = 32
"""Each rank may move to another host once a day, and 32 more moves are allowed; then the label is `other`."""


def _reader(column: Column) -> Callable[[Member, float], float | None]:
    name = column.name
    return lambda member, now: getattr(member.numbers, name)


VALUES: dict[str, tuple[Callable[[Member, float], float | None], Worst]] = {
    **{column.metric: (_reader(column), column.worst) for column in RANK_COLUMNS if column.metric},
    "caboose_rank_step": (lambda member, now: float(member.step), "low"),
    "caboose_rank_silent_seconds": (lambda member, now: max(0.0, now - member.last_seen), "high"),
}
"""How each metric is read, and which ranks are its worst."""


class RankSeries:
    """The ranks of one job; remembers the worst ones between scrapes."""

    def __init__(self) -> None:
        self._worst = {name: Slots(NUM_WORST) for name in VALUES}

    def add(self, job: Job, samples: JobSamples, now: float) -> None:
        """Adds all ranks, or the worst ones."""
        members = job.attempt.members if job.attempt else {}
        world = job.attempt.world if job.attempt else 0
        hosts: dict[str, str | None] = {}
        shown: Iterable[Member]
        for name, (value_of, _) in VALUES.items():
            shown = (
                (m for _, m in sorted(members.items()))
                if len(members) <= MAX_RANKS
                else self._chosen(name, members, now)
            )
            for member in shown:
                rank = str(member.hello.rank)
                if rank not in hosts:
                    hosts[rank] = self._host(member, world, samples)
                host = hosts[rank]
                if host is not None:
                    samples.add(name, value_of(member, now), rank, host)

    @staticmethod
    def _host(member: Member, world: int, samples: JobSamples) -> str | None:
        """The host label of a rank; None if the rank has no series."""
        rank, host = str(member.hello.rank), member.hello.host
        if not samples.names.admit("rank", 2 * MAX_RANKS, rank):
            return None
        moves = 2 * min(world, MAX_RANKS) + SPARE_MOVES
        return host if samples.names.admit("host", moves, rank, host) else OTHER

    def _chosen(self, name: str, members: dict[int, Member], now: float) -> list[Member]:
        """The worst ranks by one metric, compared with the median rank."""
        ranks = sorted(members)
        value_of, worst = VALUES[name]
        raw = [value_of(members[rank], now) for rank in ranks]
        values = np.array([np.nan if value is None else value for value in raw])
        known = np.array([value is not None for value in raw])
        finite = np.isfinite(values)
        if not finite.any():
            badness = np.where(known, np.inf, -1.0)
        else:
            usual = float(np.median(values[finite]))
            away = values - usual
            away = np.abs(away) if worst == "apart" else -away if worst == "low" else away
            badness = np.where(finite, np.maximum(away, 0.0), np.where(known, np.inf, -1.0))
        rows = self._worst[name].choose([str(rank) for rank in ranks], badness, now)
        return [members[ranks[row]] for row in rows]
