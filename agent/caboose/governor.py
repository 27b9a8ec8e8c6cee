"""Keeps the agent within its budget: measures its share of the step, and measures less often above it.

Design
------
There are four kinds of steps, each with more of the agent's work than the one before: *thin* (loss, learning rate and
the step's total time), *plain* (phases and modes too), *with norms* of all gradients, and *sampled*. The mean cost of
each kind is measured: its time on the training thread; and the sender's CPU time, which belongs to no kind. So the
share that any cadences would have is known without trying them, and the right ones are found in one judgement: a run of
steps of 2 ms is within its budget after a second, or as near to it as it gets.

Above the budget, the more expensive of two things is halved in frequency until the share fits: samples
(`sample_every`) or norms (`norm_every`). If that is not enough, what is neither is thin (`phase_every`), if the steps
are short. Well below the budget for several judgements, one thing is done twice as often again, never beyond what was
asked for.

The agent cannot time everything it costs (caches, the interpreter lock), so it aims at `AIM` of the budget. A budget of
1, the whole step, means no limit.

What is seen of a run of short steps is a matter of time, not of their number: norms are taken at least once in
`NORM_SECONDS` and phases in `PHASE_SECONDS`, or on every 64th and 16th step where these take longer.

All cadences only double and halve, so ranks with different cadences stay aligned: the coarser one's steps are among
the finer one's.
"""

import math
from dataclasses import dataclass, replace

AIM = 0.75
CALM_AIM = 0.5
"""Of the budget: what must not be exceeded after measuring more often again."""
MAX_STRETCH = 64
MAX_NORM_EVERY = 64
NORM_SECONDS = 1.0
MAX_PHASE_EVERY = 16
PHASE_SECONDS = 0.25
"""A slow rank is found from phases: after about 40 steps that have them."""
THIN_BELOW = 0.02
"""Steps of this many seconds always have phases: they cost a part of the budget there, and tell which rank is slow."""
CALM_PERIODS = 4
JUDGE_STEPS = 8
JUDGE_SECONDS = 0.25
"""A judgement takes this many steps, and steps of this much time."""
NUM_WARM = 3
"""Steps at the beginning that do not count: what is used for the first time takes many times as long."""
LONGEST = 10.0
"""A step of more than this many times the usual one had a pause in it (an evaluation), and counts as so many."""

THIN, PLAIN, NORMS, SAMPLED = range(4)


@dataclass(frozen=True, slots=True)
class Cadences:
    """How often the expensive things are done."""

    stretch: int = 1
    norm_every: int = 1
    is_thin: bool = False


class Governor:
    """Decides which steps are sampled, and in which norms and phases are measured."""

    def __init__(self, sample_every: int, budget: float) -> None:
        self._base = sample_every
        self._limit = budget if budget < 1 else math.inf
        self._now = Cadences()
        self._costs: list[float | None] = [None] * 4
        """Mean seconds on the training thread, by kind of step."""
        self._seconds = [0.0] * 4
        self._nums = [0] * 4
        self._background = 0.0
        self._total = 0.0
        self._num = -NUM_WARM
        self._usual = math.inf
        self._mean_background = 0.0
        self._num_calm = 0
        self._place()
        self.share = 0.0
        """The agent's share of the step at the present cadences, as last judged."""

    def _place(self) -> None:
        now = self._now
        self.sample_every = self._base * now.stretch
        """Steps between two samples."""
        self.norm_every = now.norm_every
        """Steps between two readings of all gradient norms."""
        self.phase_every = self._phase_every(now)
        """Steps between two measurements of phases and modes."""

    def _phase_every(self, cadences: Cadences) -> int:
        return min(cadences.norm_every, self._most(MAX_PHASE_EVERY, PHASE_SECONDS)) if cadences.is_thin else 1

    def _most(self, steps: int, seconds: float) -> int:
        """So many steps, or twice, four times ... as many if they take less than so many seconds."""
        while 2 * steps * self._usual <= seconds:
            steps *= 2
        return steps

    def is_sampled(self, step: int) -> bool:
        """Whether this step, counted from attach, is sampled."""
        return step % self.sample_every == 0

    def takes_norms(self, step: int) -> bool:
        """Whether the gradients' norms are taken in this step."""
        return step % self.norm_every == 0 or step % self.sample_every == 0

    def takes_phases(self, step: int) -> bool:
        """Whether phases and modes are measured in this step."""
        return step % self.phase_every == 0 or step % self.sample_every == 0

    def num_thin_from(self, step: int) -> int:
        """Thin steps from this one on until the first that is not; 0 if this one is not."""
        return min(-step % every for every in (self.phase_every, self.norm_every, self.sample_every))

    @property
    def thin_seconds(self) -> float:
        """What a thin step costs on the training thread, as far as is known."""
        return self._costs[THIN] or self._costs[PLAIN] or 0.0

    def account(
        self,
        agent_seconds: float,
        step_seconds: float,
        *,
        was_sampled: bool,
        had_norms: bool = True,
        had_phases: bool = True,
        background_seconds: float = 0.0,
        num_steps: int = 1,
    ) -> None:
        """Adds the cost of one step, or of several of one kind."""
        self._num += num_steps
        if self._num <= 0:
            return
        kind = SAMPLED if was_sampled else NORMS if had_norms else PLAIN if had_phases else THIN
        self._seconds[kind] += agent_seconds
        self._nums[kind] += num_steps
        self._background += background_seconds
        self._total += min(step_seconds, num_steps * LONGEST * self._usual)
        if self._num >= JUDGE_STEPS and self._total >= JUDGE_SECONDS:
            self._judge()

    def _judge(self) -> None:
        for kind, num in enumerate(self._nums):
            if num:
                mean, known = self._seconds[kind] / num, self._costs[kind]
                self._costs[kind] = mean if known is None else (mean + known) / 2
        self._usual = self._total / self._num
        background = self._background / self._num
        self._mean_background = (self._mean_background + background) / 2 if self._mean_background else background
        self._seconds, self._nums = [0.0] * 4, [0] * 4
        self._background, self._total, self._num = 0.0, 0.0, 0
        self.share = self._share(self._now)
        if self.share > AIM * self._limit:
            self._num_calm = 0
            self._now = self._coarser(self._now, AIM * self._limit)
        elif not math.isinf(self._limit):  # without a limit, nothing is ever coarser than what was asked for
            self._refine()
        self._place()

    def _parts(self, cadences: Cadences) -> tuple[float, float, float]:
        """Seconds per step of every step, of norms and of samples; 0 for what was never measured."""
        thin, plain, norms, sampled = self._costs
        base = plain or 0.0
        if cadences.is_thin and thin is not None:
            base = thin + max(0.0, base - thin) / self._phase_every(cadences)
        share_sampled = 1 / (self._base * cadences.stretch)
        share_norms = max(0.0, 1 / cadences.norm_every - share_sampled)
        return (
            base,
            share_norms * max(0.0, norms - base) if norms is not None else 0.0,
            share_sampled * max(0.0, sampled - base) if sampled is not None else 0.0,
        )

    def _share(self, cadences: Cadences) -> float:
        return (sum(self._parts(cadences)) + self._mean_background) / self._usual

    def _coarser(self, cadences: Cadences, limit: float) -> Cadences:
        """The first of ever coarser cadences whose share is within the limit; the coarsest if none is."""
        while self._share(cadences) > limit:
            base, norms, samples = self._parts(cadences)
            can_thin = cadences.norm_every < self._most(MAX_NORM_EVERY, NORM_SECONDS) and norms > 0
            can_stretch = cadences.stretch < MAX_STRETCH and samples > 0
            if can_thin and (norms >= samples or not can_stretch):
                cadences = replace(cadences, norm_every=2 * cadences.norm_every)
            elif can_stretch:
                cadences = replace(cadences, stretch=2 * cadences.stretch)
            elif base > 0 and cadences.norm_every > 1 and not cadences.is_thin and self._usual < THIN_BELOW:
                cadences = replace(cadences, is_thin=True)
            else:
                break
        return cadences

    def _refine(self) -> None:
        """One thing is done more often, if for some time there was room for it."""
        finer = self._finer()
        if finer is None or self._share(finer) > CALM_AIM * self._limit:
            self._num_calm = 0
            return
        self._num_calm += 1
        if self._num_calm >= CALM_PERIODS:
            self._num_calm = 0
            self._now = finer

    def _finer(self) -> Cadences | None:
        now = self._now
        if now.is_thin:
            return replace(now, is_thin=False)
        _, norms, samples = self._parts(now)
        if now.norm_every > 1 and (norms <= samples or now.stretch == 1):
            return replace(now, norm_every=now.norm_every // 2)
        return replace(now, stretch=now.stretch // 2) if now.stretch > 1 else None

    def adopt(self, other: "Governor") -> None:
        """Takes over another's cadences."""
        self._now, self._usual = other._now, other._usual  # noqa: SLF001 - the same class
        self._place()
