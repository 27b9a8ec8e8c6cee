"""Conclusions from the differences between runs, as sentences, with their limits.

Design
------
Two runs that differ in one setting only are an experiment; two that differ in three are not, and the three are named.
Runs with equal settings show the effect of chance: they are not ranked, and no smaller difference is reported. The
error of a level comes from the noise within one run and says nothing about another seed. Without such pairs, and with
five or more runs, a rank correlation with a permutation test is given, at a level corrected for the number of settings
tested. Losses are compared at the last step that all runs reached, never end against end. A run whose loss is not
finite there, or at its end, ranks last, however low it was before.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from caboose_daemon.offline.comparing.measures import Measures
from caboose_daemon.offline.comparing.settings import BATCH, RATE, SCALE, RunSettings, same
from caboose_wire.fields import Scalar

Kind = Literal["result", "setting", "caution"]
MIN_RUNS = 5
MAX_PERMUTATIONS = 5040
SIGNIFICANT = 0.05
MAX_NAMED = 3
UNSCALED = 2.0
"""Ratio of two batches from which their rates should differ."""
SAME_SPEED = 1.1
"""Ratio of steps below which two runs count as equally fast."""


@dataclass(frozen=True)
class Statement:
    """One sentence of the comparison."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Compared:
    """The runs' letters, numbers and settings."""

    names: Sequence[str]
    measures: Sequence[Measures]
    settings: RunSettings
    step: int
    goal: float | None

    @property
    def chance(self) -> float | None:
        """Largest difference of two runs with equal settings at the common step; None if there are none."""
        gaps = [
            abs(a.value - b.value)
            for i, j in itertools.combinations(range(len(self.names)), 2)
            for a, b in [(self.measures[i].at_common, self.measures[j].at_common)]
            if a is not None and b is not None and self.are_repeats(i, j)
        ]
        return max(gaps, default=None)

    def are_repeats(self, *runs: int) -> bool:
        """Whether their settings are known, and none differs except the seed."""
        return all(self.settings.is_known(i) for i in runs) and not any(
            self.settings.apart(i, j) or self.settings.one_sided(i, j) for i, j in itertools.combinations(runs, 2)
        )

    def order(self, one: int, other: int) -> int:
        """-1 if the first run's loss is clearly lower at the common step, 1 if higher, else 0."""
        a, b = self.measures[one].at_common, self.measures[other].at_common
        broken = [self.measures[i].not_finite_since is not None for i in (one, other)]
        if any(broken):
            return 0 if all(broken) or self.are_repeats(one, other) else broken[0] - broken[1]
        if a is None or b is None or self.are_repeats(one, other) or abs(a.value - b.value) <= (self.chance or 0.0):
            return 0
        return -1 if a.clearly_below(b) else 1 if b.clearly_below(a) else 0


def statements(compared: Compared) -> Iterator[Statement]:
    """All sentences, results first."""
    yield from _cautions(compared)
    yield from _broken(compared)
    yield from _lowest(compared)
    yield from _validation(compared)
    yield from _fastest(compared)
    yield from _calm(compared)
    yield from _settings(compared)


def _cautions(c: Compared) -> Iterator[Statement]:
    scale = [name for name in c.settings.differing if name.lower() in SCALE]
    if scale:
        yield Statement("caution", f"{_list(scale)} differ: the losses may not be comparable")
    if BATCH in c.settings.differing:
        yield Statement("caution", "batch sizes differ: a step is not the same amount of data in all runs")
        yield from _unscaled_rates(c)
    if c.chance is not None and c.settings.causes:
        text = f"runs with equal settings differ by {c.chance:.3g}: smaller differences are ignored"
        yield Statement("caution", text)


def _unscaled_rates(c: Compared) -> Iterator[Statement]:
    """The pair with the largest factor between two batches that have one learning rate."""
    pairs = []
    for i, j in itertools.combinations(range(len(c.names)), 2):
        rates = [c.settings.tables[k].get(RATE) for k in (i, j)]
        sizes = [(_size(c.settings.tables[k].get(BATCH)), k) for k in (i, j)]
        small, large = min(sizes), max(sizes)
        if None not in rates and same(*rates) and large[0] >= UNSCALED * small[0] > 0:
            pairs.append((large[0] / small[0], small, large))
    if pairs:
        factor, small, large = max(pairs)
        text = (
            f"{c.names[large[1]]} (batch {large[0]:g}) has the learning rate of {c.names[small[1]]} (batch "
            f"{small[0]:g}): "
            f"scale it by {factor:g} (Adam: {factor**0.5:.2g}), with a warm-up, before the batch is judged"
        )
        yield Statement("caution", text)


def _size(value: Scalar) -> float:
    """A batch; 0 where it is not known."""
    return float(value) if isinstance(value, int | float) else 0.0


def _broken(c: Compared) -> Iterator[Statement]:
    for name, m in zip(c.names, c.measures, strict=True):
        if m.not_finite_since is not None:
            text = f"{name}: loss not finite since step {m.not_finite_since:,}; ranked last"
            yield Statement("result", text)


def _lowest(c: Compared) -> Iterator[Statement]:
    levels = {i: m.at_common.value for i, m in _sound(c) if m.at_common is not None}
    if len(levels) < 2:
        return
    ranked = sorted(levels, key=lambda i: levels[i])
    first, second = ranked[0], ranked[1]
    a, b = c.measures[first].at_common, c.measures[second].at_common
    assert a is not None, "only runs with a level are ranked"
    assert b is not None, "only runs with a level are ranked"
    error = math.hypot(a.error, b.error)
    by = f"{b.value - a.value:.3g}" + (f" +- {error:.1g}" if math.isfinite(error) else "")
    at = f"at step {c.step:,}, the last one all runs reached"
    if c.order(first, second) < 0:
        more = "each run's noise (one seed each)" if c.chance is None else f"the {c.chance:.3g} between equal runs"
        text = f"{c.names[first]} has the lowest loss {at}: below {c.names[second]} by {by}, more than {more}"
    else:
        tied = [c.names[i] for i in sorted(ranked) if c.order(first, i) == 0]
        why = "is within each run's noise (one seed each)"
        if c.are_repeats(first, second):
            why = "is chance, since their settings are equal"
        elif a.clearly_below(b):
            why = f"is within the {c.chance:.3g} between runs with equal settings"
        text = f"no clear difference between {_list(tied)} {at}: {by} between the first two {why}"
    yield Statement("result", text)


def _validation(c: Compared) -> Iterator[Statement]:
    seen = [(m.validation_best, i) for i, m in _sound(c) if m.validation_best is not None]
    if len(seen) < 2:
        return
    best, i = min(seen)
    at = c.measures[i].validation_best_step
    if c.are_repeats(*(j for _, j in seen)):
        text = f"best validation losses of these repeats: {best:.4g} to {max(seen)[0]:.4g}"
        yield Statement("result", text)
    else:
        yield Statement("result", f"{c.names[i]} has the best validation loss, {best:.4g} at step {at:,}")
    rose = [
        f"{name} (by {100 * (m.validation_final / m.validation_best - 1):.0f} %)"
        for name, m in zip(c.names, c.measures, strict=True)
        if m.validation_best and m.validation_final and m.validation_final > 1.05 * m.validation_best > 0
    ]
    if rose:
        yield Statement("result", f"validation ended above its best in {_list(rose)}: keep the best checkpoint")


def _fastest(c: Compared) -> Iterator[Statement]:
    if c.goal is None:
        return
    reached = sorted((m.steps_to_common, i) for i, m in _sound(c) if m.steps_to_common is not None)
    never = [c.names[i] for i, m in _sound(c) if m.steps_to_common is None]
    if len(reached) >= 2:
        (least, i), (most, j) = reached[0], reached[-1]
        goal = f"the common loss of {c.goal:.4g}"
        if most > SAME_SPEED * least and c.are_repeats(*(place for _, place in reached)):
            yield Statement("result", f"these repeats reached {goal} at step {least:,} to {most:,}")
        elif most > SAME_SPEED * least:
            times = f", {most / least:.2g} times as fast as {c.names[j]}" if least else ""
            yield Statement("result", f"{c.names[i]} reached {goal} first, at step {least:,}{times}")
        else:
            yield Statement("result", f"{goal} was reached at about the same step: {least:,} to {most:,}")
        samples = sorted((m.samples_to_common, i) for i, m in _sound(c) if m.samples_to_common is not None)
        if len(samples) == len(reached) and samples[0][1] != i and not c.are_repeats(samples[0][1], i):
            text = f"counted in samples, {c.names[samples[0][1]]} was first: after {samples[0][0]:,.0f} of them"
            yield Statement("result", text)
    if never:
        yield Statement("result", f"{_list(never)} never reached a loss of {c.goal:.4g}")


def _calm(c: Compared) -> Iterator[Statement]:
    bad = [f"{n} ({m.num_bad} steps)" for n, m in zip(c.names, c.measures, strict=True) if m.num_bad]
    if bad:
        yield Statement("result", f"non-finite numbers in {_list(bad)}")
    spiky = [(m.num_spikes, n) for n, m in zip(c.names, c.measures, strict=True) if m.num_spikes]
    if spiky and len(spiky) < len(c.names):
        named = [f"{n} ({num})" for num, n in sorted(spiky, reverse=True)]
        yield Statement("result", f"loss spikes only in {_list(named)}")


def _settings(c: Compared) -> Iterator[Statement]:
    causes = c.settings.causes
    silent = [name for place, name in enumerate(c.names) if not c.settings.is_known(place)]
    if silent:
        text = f"no settings known for {_list(silent)}: the reason for a difference cannot be determined"
        yield Statement("caution", text)
    if not causes:
        if not silent and c.settings.num_equal:
            yield Statement("setting", "no known setting differs: differences are due to chance, data or code")
        return
    for name in causes:
        yield from _pairs(c, name)
    if len(c.names) >= MIN_RUNS:
        for name in causes:
            yield from _correlation(c, name, len(causes))
    lone = {n for i, j in itertools.combinations(range(len(c.names)), 2) for n in _only(c.settings.apart(i, j))}
    mixed = [name for name in causes if name not in lone]
    if len(mixed) > 1:
        text = f"{_list(mixed)} never differ alone: these runs cannot show which one has the effect"
        yield Statement("setting", text)


def _pairs(c: Compared, name: str) -> Iterator[Statement]:
    """Pairs of runs that differ only in this setting, as far as is known."""
    found, lower_wins, higher_wins, spikes = [], 0, 0, []
    what = "difference"
    for i, j in itertools.combinations(range(len(c.names)), 2):
        if c.settings.apart(i, j) != [name]:
            continue
        if not (c.settings.is_known(i) and c.settings.is_known(j)):
            what = "known difference"
        one, other = c.settings.tables[i].get(name), c.settings.tables[j].get(name)
        order = c.order(i, j)
        winner = f"{shown(one if order < 0 else other)} is better" if order else "no clear difference"
        broken = [c.names[k] for k in (i, j) if c.measures[k].not_finite_since is not None]
        if broken:
            winner = f"{winner}, since {broken[0]} is not finite" if order else "neither is finite"
        found.append(f"{c.names[i]} ({shown(one)}) and {c.names[j]} ({shown(other)}): {winner}")
        if order and isinstance(one, int | float) and isinstance(other, int | float):
            is_lower = (one < other) == (order < 0)
            lower_wins, higher_wins = lower_wins + is_lower, higher_wins + (not is_lower)
        more = c.measures[i].num_spikes - c.measures[j].num_spikes
        if more:
            spikes.append(shown(one if more > 0 else other))
    if not found:
        return
    head = f"{name} is the only {what} in {len(found)} pair{'s' if len(found) > 1 else ''}"
    if lower_wins + higher_wins > 1 and not (lower_wins and higher_wins):
        head += f", and {'lower' if lower_wins else 'higher'} was better each time"
    elif lower_wins and higher_wins:
        head += ", without a consistent direction"
    text = f"{head}: {'; '.join(found[:MAX_NAMED])}"
    if len(found) > MAX_NAMED:
        text += f"; and {len(found) - MAX_NAMED} more"
    if spikes and len(set(spikes)) == 1:
        text += f". More spikes with {spikes[0]}"
    if len(found) == 1 and c.chance is None:
        text += ". One pair and no repeated run: another seed may give another result"
    yield Statement("setting", text)


def _correlation(c: Compared, name: str, num_tested: int) -> Iterator[Statement]:
    rows = [
        (float(value), m.standing)
        for table, m in zip(c.settings.tables, c.measures, strict=True)
        for value in [table.get(name)]
        if isinstance(value, int | float) and not isinstance(value, bool) and m.standing is not None
    ]
    if len(rows) < MIN_RUNS or len({x for x, _ in rows}) < 3:
        return
    rho, chance = _rank_correlation(np.array(rows))
    if chance < SIGNIFICANT / num_tested:
        how = "higher" if rho > 0 else "lower"
        sure = f"rank correlation {rho:+.2f} over {len(rows)} runs (p = {chance:.2g})"
        yield Statement("setting", f"the higher {name}, the {how} the loss: {sure}")


def _rank_correlation(rows: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> tuple[float, float]:
    """Spearman's coefficient and its permutation p-value."""
    x, y = (_ranks(column) for column in rows.T)
    rho = float(np.corrcoef(x, y)[0, 1])
    if len(x) <= 7:
        shuffles = np.array(list(itertools.permutations(range(len(x)))))
    else:
        rng = np.random.default_rng(0)
        shuffles = np.array([rng.permutation(len(x)) for _ in range(MAX_PERMUTATIONS)])
    x, y = x - x.mean(), y - y.mean()
    others = (x * y[shuffles]).sum(axis=1) / math.sqrt(float((x * x).sum() * (y * y).sum()))
    return rho, float((np.abs(others) >= abs(rho) - 1e-9).mean())


def _ranks(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([(values < v).sum() + ((values == v).sum() - 1) / 2 for v in values])


def _sound(c: Compared) -> list[tuple[int, Measures]]:
    """The runs whose loss is finite, by position."""
    return [(i, m) for i, m in enumerate(c.measures) if m.not_finite_since is None]


def _only(names: list[str]) -> list[str]:
    return names if len(names) == 1 else []


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def shown(value: object) -> str:
    """A setting as text."""
    if value is None:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
