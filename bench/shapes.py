"""Drawn curves: runs that nobody trained, healthy and sick, of many shapes, lengths and noises.

Design
------
A shape is a curve without noise: a loss per row, a validation loss per row where it matters, and the row at which a
fault begins. What a fault is follows from what a person would call one who sees the whole curve: a validation loss that
ends a tenth or more above its minimum while the loss falls, a loss that falls by less than 3 % over its run (or not at
all after its first rows), a loss that ends well above its best, swings that are large beside the scatter before them.

Noise is drawn apart from the shape: from 0.1 % to 20 % of the level, white or with a memory, normal or with heavy
tails. It is halved until the fault (or in a healthy run, the progress) stands out of it for a person too: a curve that
nobody could judge is no case. Lengths go from 20 rows to thousands; evaluations, learning rate and gradient norm are
there or not; units and step numbers are drawn.

Half of the shapes of each kind are `tune`, the other half is `held`: the rules are changed by the first half only. The
generator was fixed before the rules were measured by it.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.offline.replay.logs import Column, Log

Array = NDArray[np.float64]
LENGTHS = {"20 to 60 rows": (20, 60), "61 to 400 rows": (61, 400), "401 to 3,000 rows": (401, 3000)}
VISIBLE = 6.0
"""Standard errors by which what a person must see stands out."""
MIN_PROGRESS = 0.08
"""Share of its first loss by which every healthy run falls."""


@dataclass
class Curve:
    """A shape, without noise."""

    loss: Array
    onset: int = 0
    val: Array | None = None
    """None: a little above the loss, with no fault of its own."""
    height: float = MIN_PROGRESS
    """What a person must see, as a share of the level."""
    rows: int = 0
    """Rows that it is seen in; 0: a third of the run."""
    jumps: bool = False
    """Whether it stands out of single rows, so that no memory of the noise hides it."""
    evaluations: tuple[int, int] = (5, 60)
    lr: Array | None = None


Draw = Callable[[int, np.random.Generator], Curve]


@dataclass(frozen=True)
class Shape:
    """A kind of curve."""

    kind: str
    name: str
    half: str
    draw: Draw


@dataclass(frozen=True)
class Drawn:
    """One log, and the truth about it."""

    log: Log
    shape: Shape
    length: str
    onset: int
    noise: str = field(default="")


def random_of(*names: object) -> np.random.Generator:
    """A generator that depends on nothing but these names."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def _time(num: int) -> Array:
    return np.linspace(0.0, 1.0, num)


def _power(num: int, random: np.random.Generator, least: float = MIN_PROGRESS) -> Array:
    """A power law from 1 to a level between 0.15 and 0.9, over the run."""
    end = random.uniform(0.15, 1.0 - 1.25 * least)
    exponent, early = random.uniform(0.1, 0.9), 10 ** random.uniform(-2.3, -0.5)
    fall = (1.0 + _time(num) / early) ** -exponent
    return 1.0 - (1.0 - end) * (1.0 - fall) / (1.0 - fall[-1])


def _cosine(num: int, warm: float = 0.03) -> Array:
    time = _time(num)
    return np.where(time < warm, time / warm, 0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * (time - warm) / (1 - warm))))


# Healthy


def power_law(num: int, random: np.random.Generator) -> Curve:
    """The descent of nearly every run."""
    return Curve(_power(num, random))


def cosine(num: int, random: np.random.Generator) -> Curve:
    """A descent that gets steeper again as the rate falls to nothing."""
    drop = random.uniform(0.03, 0.15) * _time(num) ** 3
    return Curve(_power(num, random) * (1.0 - drop), lr=_cosine(num))


def staircase(num: int, random: np.random.Generator) -> Curve:
    """A loss that falls at the end of each epoch, and a validation loss that stays after the first two."""
    epochs = int(random.integers(2, 6))
    time = _time(num) * epochs
    level = 1.0 - random.uniform(0.08, 0.25) * np.floor(time - 1e-9).clip(0) * (3.0 / epochs)
    loss = np.maximum(level, 0.1) * (1.0 - 0.08 * (1.0 - np.exp(-3 * time / epochs)))
    val = 1.0 - 0.1 * (1.0 - np.exp(-2.0 * time)) + random.uniform(0.0, 0.03) * time / epochs
    return Curve(loss, val=val)


def fine_tuning(num: int, random: np.random.Generator) -> Curve:
    """A quick fall by a tenth to a half, and slow progress after it."""
    time = _time(num)
    quick = random.uniform(0.1, 0.5) * (1.0 - np.exp(-time / random.uniform(0.03, 0.3)))
    return Curve(1.0 - quick - random.uniform(0.02, 0.15) * time)


def start_up_hump(num: int, random: np.random.Generator) -> Curve:
    """The first rows rise to at most twice the first one, and the run comes back."""
    rows = max(1.0, random.uniform(0.0, 0.03) * num)
    rise = random.uniform(0.1, 1.0) * np.exp(-(((np.arange(num) - 1.5 * rows) / rows) ** 2))
    return Curve(_power(num, random, 0.2) * (1.0 + rise))


def outlier_batches(num: int, random: np.random.Generator) -> Curve:
    """One row in fifty is up to 1.6 times the level; no two are neighbours."""
    loss = _power(num, random, 0.2)
    places = np.arange(int(random.integers(5, 15)), num, int(random.integers(30, 70)))
    loss[places] *= random.uniform(1.1, 1.6, len(places))
    return Curve(loss)


def converged(num: int, random: np.random.Generator) -> Curve:
    """A quick fall to a few percent of the start, and a long flat tail at the noise floor."""
    floor = 10 ** random.uniform(-2.0, -0.7)
    return Curve(floor + (1.0 - floor) * np.exp(-_time(num) / random.uniform(0.02, 0.2)))


def two_exponentials(num: int, random: np.random.Generator) -> Curve:
    """A fast and a slow mode."""
    time, share = _time(num), random.uniform(0.2, 0.8)
    modes = share * np.exp(-time / random.uniform(0.01, 0.05)) + (1 - share) * np.exp(-time / random.uniform(0.3, 1.5))
    floor = random.uniform(0.1, 0.5)
    return Curve(floor + (1 - floor) * modes)


def step_decay(num: int, random: np.random.Generator) -> Curve:
    """The rate is divided by ten twice; the loss drops at each, and is nearly flat before."""
    time, (first, second) = _time(num), sorted(random.uniform(0.3, 0.9, 2))
    drops = (time > first) + (time > second) * 1.0
    loss = (0.4 + 0.6 * np.exp(-time / 0.05)) * (1.0 - random.uniform(0.15, 0.35) * drops) * (1.0 - 0.05 * time)
    return Curve(loss, lr=10.0**-drops)


def late_start(num: int, random: np.random.Generator) -> Curve:
    """A tenth to a quarter of the run at chance, then a fall to less than half."""
    start = random.uniform(0.08, 0.25)
    return Curve(1.0 - random.uniform(0.5, 0.9) / (1.0 + np.exp(-(_time(num) - start - 0.15) / 0.05)))


def heavy_noise(num: int, random: np.random.Generator) -> Curve:
    """The loss of single samples: it scatters by a third, and falls to less than half."""
    level = _power(num, random, 0.5)
    return Curve(level * np.exp(random.uniform(0.2, 0.45) * random.standard_normal(num)), val=level)


def wandering(num: int, random: np.random.Generator) -> Curve:
    """As in reinforcement learning: the level wanders by a tenth around a fall to less than 0.6."""
    level = _power(num, random, 0.4)
    return Curve(level * np.exp(0.1 * _memory(num, min(0.95, 1.0 - 8.0 / num), random)), val=level)


def growing_gap(num: int, random: np.random.Generator) -> Curve:
    """The training loss keeps falling, the validation loss only at first; it ends at most 4 % above its best."""
    loss, time = _power(num, random, 0.3), _time(num)
    turn = random.uniform(0.3, 0.7)
    val = np.interp(loss, [loss[-1], 1.0], [max(0.6, loss[-1]), 1.05])
    place = int(turn * num)
    val[place:] = val[place] * (1.0 + random.uniform(0.0, 0.04) * (time[place:] - turn) / (1.0 - turn))
    return Curve(loss, val=val)


def stable_then_decay(num: int, random: np.random.Generator) -> Curve:
    """A constant rate, and a fast decay at the end that gives a last drop."""
    time, start = _time(num), random.uniform(0.7, 0.9)
    late = np.clip((time - start) / (1.0 - start), 0.0, 1.0)
    loss = _power(num, random) * (1.0 - random.uniform(0.03, 0.12) * late)
    return Curve(loss, lr=np.minimum(1.0, time / 0.02) * (1.0 - late))


def smoothed_logger(num: int, random: np.random.Generator) -> Curve:
    """The logger writes a running average, so neighbouring rows hardly differ."""
    noise = random.uniform(0.02, 0.3) * random.standard_normal(num)
    rows = _power(num, random, 0.2) * np.exp(noise)
    weight, level, smooth = random.uniform(0.8, 0.98), rows[0], []
    for value in rows:
        level = weight * level + (1.0 - weight) * value
        smooth.append(level)
    return Curve(np.array(smooth))


# Overfitting


def _turning(num: int, random: np.random.Generator, turn: float, rise: float, power: float) -> Array:
    """A validation loss that falls to its minimum at `turn` and rises by `rise` to the end."""
    time = _time(num)
    down = 1.0 + random.uniform(0.3, 2.0) * np.clip(1.0 - time / turn, 0.0, None) ** 2
    return down * (1.0 + rise * np.clip((time - turn) / (1.0 - turn), 0.0, None) ** power)


def _overfitted(num: int, random: np.random.Generator, val: Array, turn: float, rise: float) -> Curve:
    loss = _power(num, random, 0.4)
    few = (5, 60) if num > 40 else (5, num)
    return Curve(loss, int(turn * num), val / val[0], height=rise, evaluations=few)


def turning(num: int, random: np.random.Generator) -> Curve:
    """A smooth minimum, and a rise by 12 to 80 %."""
    turn, rise = random.uniform(0.15, 0.6), math.exp(random.uniform(math.log(0.12), math.log(0.8)))
    return _overfitted(num, random, _turning(num, random, turn, rise, random.uniform(1.0, 1.6)), turn, rise)


def from_its_start(num: int, random: np.random.Generator) -> Curve:
    """The first evaluation is the best, or nearly."""
    turn, rise = random.uniform(0.02, 0.15), random.uniform(0.15, 1.0)
    return _overfitted(num, random, _turning(num, random, turn, rise, random.uniform(0.5, 1.0)), turn, rise)


def in_steps(num: int, random: np.random.Generator) -> Curve:
    """Both losses move at the ends of epochs, in opposite directions."""
    epochs = int(random.integers(3, 7))
    epoch = np.floor(_time(num) * epochs - 1e-9).clip(0)
    rise = random.uniform(0.13, 0.6)
    val = 1.0 + 0.15 * (epoch == 0) + rise * np.clip((epoch - 1) / (epochs - 2), 0, None)
    loss = 0.85**epoch * (1.0 - 0.1 * _time(num))
    return Curve(loss, int(num / epochs), val, height=rise / 2, evaluations=(2 * epochs, 8 * epochs))


def saturating(num: int, random: np.random.Generator) -> Curve:
    """The rise flattens: a run that has memorised its data."""
    turn, rise = random.uniform(0.1, 0.5), random.uniform(0.15, 1.5)
    return _overfitted(num, random, _turning(num, random, turn, rise, 0.5), turn, rise)


def few_evaluations(num: int, random: np.random.Generator) -> Curve:
    """Five to eight evaluations in all."""
    turn, rise = random.uniform(0.2, 0.45), random.uniform(0.15, 0.6)
    curve = _overfitted(num, random, _turning(num, random, turn, rise, 1.0), turn, rise)
    curve.evaluations = (5, 8)
    return curve


# Plateaus


def never_learns(num: int, random: np.random.Generator) -> Curve:
    """No trend at all."""
    return Curve(np.ones(num), rows=num, height=0.1)


def first_rows_only(num: int, random: np.random.Generator) -> Curve:
    """A fall to 0.65 to 0.95 of the start within the first rows, and nothing after."""
    start = random.uniform(1.05, 1.5)
    rows = random.uniform(0.3, max(0.4, 0.02 * num))
    return Curve(1.0 + (start - 1.0) * np.exp(-np.arange(num) / rows), rows=num, height=0.1)


def drifts_up(num: int, random: np.random.Generator) -> Curve:
    """A rise by at most 4 % over the run."""
    return Curve(1.0 + random.uniform(0.005, 0.04) * _time(num), rows=num, height=0.1)


def creeps_down(num: int, random: np.random.Generator) -> Curve:
    """A fall by 0.3 to 2 %, most of it early."""
    return Curve(1.0 - random.uniform(0.003, 0.02) * (1.0 - np.exp(-_time(num) / 0.1)), rows=num, height=0.1)


def stuck_early(num: int, random: np.random.Generator) -> Curve:
    """A tenth of the run falls to 0.65 to 0.9 of the start, and the rest is flat."""
    fall, end = random.uniform(0.1, 0.35), random.uniform(0.03, 0.12)
    return Curve(1.0 - fall * np.clip(_time(num) / end, 0.0, 1.0), onset=0, rows=num, height=0.1)


def blown_up_and_stuck(num: int, random: np.random.Generator) -> Curve:
    """A jump in the first rows, and chance since."""
    loss = np.ones(num)
    rows = int(random.integers(2, 5))
    loss[1 : 1 + rows] = random.uniform(1.3, 6.0, rows)
    return Curve(loss, rows=num, height=0.1)


# Oscillations


def _swinging(num: int, random: np.random.Generator, wave: Array, onset: int) -> Curve:
    """A descent to the onset, and the wave around its level from there on; the wave is in shares of the level."""
    loss = _power(num, random, 0.2)
    loss[onset:] = loss[onset] * np.maximum(1.0 + wave[onset:], 0.05)
    size = float(np.std(wave[onset:]))
    return Curve(loss, onset, height=size / 2, rows=1, jumps=True)


def _onset(num: int, random: np.random.Generator) -> int:
    return int(num * random.uniform(0.15, 0.4))


def alternating(num: int, random: np.random.Generator) -> Curve:
    """High and low rows in turn."""
    signs = np.where(np.arange(num) % 2, 1.0, -1.0) * random.uniform(0.7, 1.3, num)
    return _swinging(num, random, random.uniform(0.2, 0.7) * signs, _onset(num, random))


def waves(num: int, random: np.random.Generator) -> Curve:
    """A period of 3 to 12 rows."""
    phase = 2 * np.pi * np.arange(num) / random.uniform(3.0, max(3.5, min(12.0, num / 8)))
    return _swinging(num, random, random.uniform(0.25, 0.8) * np.sin(phase), _onset(num, random))


def bursts(num: int, random: np.random.Generator) -> Curve:
    """Rows that scatter over a factor of several."""
    wave = np.exp(random.uniform(0.5, 1.2) * random.standard_normal(num)) - 1.0
    return _swinging(num, random, wave, _onset(num, random))


def growing_swings(num: int, random: np.random.Generator) -> Curve:
    """Swings that grow from nothing."""
    onset = _onset(num, random)
    size = np.clip((np.arange(num) - onset) / (num - onset), 0.0, 1.0) * random.uniform(0.6, 1.5)
    phase = 2 * np.pi * np.arange(num) / random.uniform(2.0, 6.0)
    return _swinging(num, random, size * np.sin(phase), onset)


def two_levels(num: int, random: np.random.Generator) -> Curve:
    """The loss jumps between two levels."""
    level, wave, high = random.uniform(0.5, 2.0), [], 0.0
    for jump in random.random(num) < 0.3:
        high = level - high if jump else high
        wave.append(high)
    return _swinging(num, random, np.array(wave), _onset(num, random))


def from_the_first_rows(num: int, random: np.random.Generator) -> Curve:
    """Swings to several times the first loss, from the warm-up on, that die down towards the end."""
    size = np.exp(
        random.uniform(0.5, 1.0) * np.abs(random.standard_normal(num)) * np.clip(3.0 - 3.0 * _time(num), 0, 1)
    )
    size[: max(2, num // 20)] = 1.0
    return Curve(size, max(2, num // 20), height=0.3, rows=1, jumps=True)


# Divergences


def _away(num: int, random: np.random.Generator, rise: Array, onset: int) -> Curve:
    """A descent to the onset; from there on `rise` (0 to 1) of the way to 1.4 to 20 times the level."""
    loss = _power(num, random, 0.3)
    ratio = math.exp(random.uniform(math.log(1.4), math.log(20.0)))
    loss[onset:] = loss[onset] * (1.0 + (ratio - 1.0) * rise[onset:])
    return Curve(loss, onset, val=loss.copy(), height=0.3, rows=max(3, (num - onset) // 3))


def exponential_rise(num: int, random: np.random.Generator) -> Curve:
    """Slow first, then fast."""
    onset = int(num * random.uniform(0.3, 0.65))
    late = np.clip((np.arange(num) - onset) / (num - onset), 0.0, None)
    return _away(num, random, np.expm1(3.0 * late) / math.expm1(3.0), onset)


def jump(num: int, random: np.random.Generator) -> Curve:
    """Another level within at most three rows."""
    onset = int(num * random.uniform(0.3, 0.7))
    return _away(num, random, np.clip((np.arange(num) - onset + 1) / random.uniform(1.0, 3.0), 0.0, 1.0), onset)


def steady_rise(num: int, random: np.random.Generator) -> Curve:
    """A straight line up."""
    onset = int(num * random.uniform(0.3, 0.6))
    return _away(num, random, np.clip((np.arange(num) - onset) / (num - onset), 0.0, None), onset)


def back_to_chance(num: int, random: np.random.Generator) -> Curve:
    """Within a few rows the loss is back where the run began, and stays."""
    onset = int(num * random.uniform(0.3, 0.7))
    loss = _power(num, random, 0.35)
    share = np.clip((np.arange(num) - onset + 1) / random.uniform(1.0, 4.0), 0.0, 1.0)[onset:]
    loss[onset:] = loss[onset] + (1.0 - loss[onset]) * share
    return Curve(loss, onset, val=loss.copy(), height=0.3, rows=max(3, (num - onset) // 3))


def from_the_first_step(num: int, random: np.random.Generator) -> Curve:
    """A rise over the whole run, to 1.4 to 4 times the first loss."""
    loss = 1.0 + random.uniform(0.4, 3.0) * _time(num) ** random.uniform(0.4, 1.2)
    return Curve(loss, 0, val=loss.copy(), height=0.2)


# Spikes and NaN


def _spiked(num: int, random: np.random.Generator, ratio: float, rows: int, *, is_flat: bool = False) -> Curve:
    onset = int(num * random.uniform(0.45, 0.85))
    loss = _power(num, random, 0.2)
    rows = min(rows, num - onset)
    fall = np.ones(rows) if is_flat else np.exp(-1.5 * np.arange(rows) / rows)
    loss[onset : onset + rows] *= 1.0 + (ratio - 1.0) * fall
    return Curve(loss, onset, height=(ratio - 1.0) / 2, rows=1, jumps=True)


def falling_spike(num: int, random: np.random.Generator) -> Curve:
    """Two to ten rows, up to ten times the level at first."""
    return _spiked(num, random, math.exp(random.uniform(math.log(1.6), math.log(10.0))), int(random.integers(2, 11)))


def single_row(num: int, random: np.random.Generator) -> Curve:
    """One row at 2.2 to 20 times the level."""
    return _spiked(num, random, math.exp(random.uniform(math.log(2.2), math.log(20.0))), 1)


def broad_spike(num: int, random: np.random.Generator) -> Curve:
    """Five to twenty rows at 1.5 to 5 times the level."""
    return _spiked(num, random, random.uniform(1.5, 5.0), int(random.integers(5, 21)), is_flat=True)


def nan_to_the_end(num: int, random: np.random.Generator) -> Curve:
    """NaN from some row on."""
    onset = int(num * random.uniform(0.1, 0.9))
    loss = _power(num, random)
    loss[onset:] = np.nan
    return Curve(loss, onset)


def nan_at_times(num: int, random: np.random.Generator) -> Curve:
    """Two to five rows of NaN or infinity."""
    onset = int(num * random.uniform(0.1, 0.6))
    loss = _power(num, random)
    places = [onset, *random.integers(onset, num, int(random.integers(1, 5)))]
    loss[places] = random.choice([np.nan, np.inf])
    return Curve(loss, onset)


def nan_after_a_rise(num: int, random: np.random.Generator) -> Curve:
    """The loss rises for a few rows, and is NaN then."""
    onset = int(num * random.uniform(0.3, 0.8))
    loss = _power(num, random)
    rows = min(int(random.integers(2, 6)), num - onset - 1)
    loss[onset : onset + rows] *= np.exp(np.arange(1, rows + 1))
    loss[onset + rows :] = np.nan
    return Curve(loss, onset)


def _shapes(kind: str, tune: tuple[Draw, ...], held: tuple[Draw, ...]) -> Iterator[Shape]:
    for half, draws in (("tune", tune), ("held", held)):
        for draw in draws:
            yield Shape(kind, draw.__name__.replace("_", " "), half, draw)


SHAPES = (
    *_shapes(
        "healthy",
        (power_law, cosine, staircase, fine_tuning, start_up_hump, outlier_batches, converged),
        (
            two_exponentials,
            step_decay,
            late_start,
            heavy_noise,
            wandering,
            growing_gap,
            stable_then_decay,
            smoothed_logger,
        ),
    ),
    *_shapes("overfitting", (turning, in_steps), (from_its_start, saturating, few_evaluations)),
    *_shapes("plateau", (never_learns, first_rows_only, stuck_early), (drifts_up, creeps_down, blown_up_and_stuck)),
    *_shapes("oscillation", (alternating, waves, growing_swings), (bursts, two_levels, from_the_first_rows)),
    *_shapes("divergence", (exponential_rise, jump), (steady_rise, back_to_chance, from_the_first_step)),
    *_shapes("loss_spike", (falling_spike,), (single_row, broad_spike)),
    *_shapes("nan", (nan_to_the_end,), (nan_at_times, nan_after_a_rise)),
)


# Noise, and the log


def _memory(num: int, rho: float, random: np.random.Generator, *, heavy: bool = False) -> Array:
    """Values of scatter 1, each of which remembers this share of the one before."""
    fresh = random.standard_t(4, num) / math.sqrt(2.0) if heavy else random.standard_normal(num)
    values = np.empty(num)
    last = fresh[0]
    for i, value in enumerate(fresh):
        last = value if i == 0 else rho * last + math.sqrt(1.0 - rho * rho) * value
        values[i] = last
    return values


def _is_visible(curve: Curve, sigma: float, rho: float) -> bool:
    num = len(curve.loss)
    rows = curve.rows or max(3, num // 3)
    slow = 1.0 if curve.jumps else math.sqrt((1.0 + rho) / (1.0 - rho))
    return curve.height >= VISIBLE * sigma * slow / math.sqrt(rows)


def drawn(shape: Shape, length: str, number: int, seed: int) -> Drawn:
    """The log of this number."""
    random = random_of(seed, shape.name, length, number)
    num = int(random.integers(*LENGTHS[length], endpoint=True))
    curve = shape.draw(num, random)
    sigma, rho = 10 ** random.uniform(-3.0, -0.7), float(random.choice([0.0, 0.0, 0.3, 0.6, 0.9]))
    heavy = bool(random.random() < 0.3)
    while not _is_visible(curve, sigma, rho):
        sigma /= 2.0
    unit = 10 ** random.uniform(-3.0, 3.0)
    loss = unit * curve.loss * np.exp(sigma * _memory(num, rho, random, heavy=heavy))
    columns = {"loss": Column(loss, np.ones(num, dtype=np.bool_))}
    val = _validation(curve, sigma, random, shape.kind)
    if val is not None:
        columns["val_loss"] = Column(unit * val.values, val.is_logged)
    if curve.lr is not None or random.random() < 0.5:
        rate = curve.lr if curve.lr is not None else _cosine(num) if random.random() < 0.5 else np.ones(num)
        columns["lr"] = Column(rate * 10 ** random.uniform(-5.0, -2.0), np.ones(num, dtype=np.bool_))
    every = int(random.choice([1, 1, 10, 50, 100, 250, 1000]))
    steps = every * np.arange(num) + int(random.choice([0, every, every - 1]))
    log = Log(file=f"{shape.name}, {length}, {number}", steps=steps.astype(np.int64), columns=columns)
    return Drawn(log, shape, length, curve.onset, f"{100 * sigma:.2g} %, memory {rho:g}")


def _validation(curve: Curve, sigma: float, random: np.random.Generator, kind: str) -> Column | None:
    """Evaluations at equal distances; there is always one where validation is the matter."""
    num = len(curve.loss)
    if kind != "overfitting" and random.random() < 0.5:
        return None
    few, many = curve.evaluations
    count = min(num, int(random.integers(few, max(few, min(many, num)), endpoint=True)))
    places = np.unique(np.linspace(num / count - 1, num - 1, count).astype(int))
    if random.random() < 0.3:
        places = np.unique([0, *places])
    values = curve.val
    if values is None:
        smooth = np.array([np.median(curve.loss[max(0, i - 4) : i + 1]) for i in range(num)])
        values = smooth * (1.0 + random.uniform(0.0, 0.15))
    scatter = max(sigma * random.uniform(0.05, 0.5), 1e-4)
    while kind == "overfitting" and curve.height < VISIBLE * scatter:
        scatter /= 2.0
    has = np.zeros(num, dtype=np.bool_)
    has[places] = True
    noisy = values * np.exp(scatter * random.standard_normal(num))
    return Column(np.where(has, noisy, 0.0), has)


def all_drawn(per_shape: int, seed: int, shapes: tuple[Shape, ...] = SHAPES) -> Iterator[Drawn]:
    """So many logs of each shape and length."""
    for shape in shapes:
        for length in LENGTHS:
            for number in range(per_shape):
                yield drawn(shape, length, number, seed)


def by_kind(shapes: tuple[Shape, ...] = SHAPES) -> Mapping[str, list[Shape]]:
    """The shapes of each kind."""
    kinds: dict[str, list[Shape]] = {}
    for shape in shapes:
        kinds.setdefault(shape.kind, []).append(shape)
    return kinds
