"""Generated loss curves that answer to a rollback: the weights go back, the data and the schedule go on.

Design
------
A run's state is its *age*, the steps of training its weights are worth, and its *damage*, the loss by which they are
above the healthy curve. A step adds 1 to the age, less the share of the progress that is lost at that step: so the
steps lost over a run are its length less its age at the end. A rollback sets age and damage back to those of the
snapshot, and so loses every step since. What disturbs the run belongs to its steps (bad batches, a rate too high): a
rollback does not meet it again once it has passed.

The noise of a step depends on the step alone, so a run that is branched at any step meets the same noise.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Healing = Literal["exponential", "power", "two_phase", "stays", "linear", "growing", "nan"]
Scatter = Literal["normal", "heavy", "outliers"]


@dataclass(frozen=True)
class Kick:
    """A disturbance of some steps, and what becomes of the damage it does."""

    onset: int
    num_steps: int = 1
    height: float = 0.0
    """Damage at its end, as a multiple of the progress."""
    shown: float = 0.0
    """Height of the loss on its own batches, as a multiple of the progress: bad data show it, whatever the weights."""
    healing: Healing = "exponential"
    steps: float = 50.0
    """Steps until the damage has fallen to 5 % (or of the slow phase, or of the growth by a factor of e)."""
    residue: float = 0.0
    """Share of the damage that stays."""

    def covers(self, step: int) -> bool:
        """Whether this step is disturbed."""
        return self.onset <= step < self.onset + self.num_steps


@dataclass(frozen=True)
class Curve:
    """One run: its healthy curve, its noise, its pace and its disturbances."""

    family: str
    number: int
    half: Literal["tuned", "held", "fresh"]
    num_steps: int
    step_seconds: float
    start: float
    floor: float
    decay: float = 0.5
    """Exponent of the healthy fall over the age; 0 for a plateau."""
    knee: float = 20.0
    noise: float = 0.01
    """Scatter of single steps, relative to the loss."""
    scatter: Scatter = "normal"
    warm_up: int = 0
    resumed_at: int = 0
    """Step at which the run was resumed; its steps before that are not seen."""
    kicks: tuple[Kick, ...] = ()
    every: int = 50
    """Cadence of snapshots that was asked for."""

    @property
    def id(self) -> str:
        """`family/number`."""
        return f"{self.family}/{self.number}"

    @property
    def onset(self) -> int:
        """The first disturbed step; the end of a healthy run."""
        return min((kick.onset for kick in self.kicks), default=self.num_steps)

    def healthy(self, age: float) -> float:
        """The loss of undamaged weights of this age."""
        age += self.resumed_at
        if age < self.warm_up:
            return self.start * (1.0 + 0.1 * math.sin(math.pi * age / self.warm_up))
        return self.floor + (self.start - self.floor) * (1.0 + (age - self.warm_up) / self.knee) ** -self.decay

    def factors(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The noise of every step."""
        random = np.random.default_rng([self.number, sum(self.family.encode())])
        scatter = random.standard_normal(self.num_steps + 1)
        if self.scatter == "heavy":
            scatter = random.standard_t(4, self.num_steps + 1)
        if self.scatter == "outliers":
            scatter += (random.random(self.num_steps + 1) < 0.005) * random.exponential(6.0, self.num_steps + 1)
        return np.exp(np.clip(self.noise * scatter, -3.0, 3.0))


@dataclass
class Weights:
    """What a snapshot keeps."""

    age: float = 0.0
    damages: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By kick: the damage it had when it ended (0: none yet), and the steps since."""

    def copy(self) -> "Weights":
        """The same values, apart."""
        return Weights(self.age, dict(self.damages))


class World:
    """One run of a curve; `loss` of each step in turn, and `go_back`."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self.step = 0
        self.weights = Weights()
        self._factors = curve.factors()

    def branch(self) -> "World":
        """The same run at the same step, to be continued in another way."""
        other = World.__new__(World)
        other.curve, other.step, other._factors = self.curve, self.step, self._factors
        other.weights = self.weights.copy()
        return other

    def advance(self) -> float:
        """Trains one step; returns its loss as it is reported."""
        self.step += 1
        curve, weights = self.curve, self.weights
        healthy = curve.healthy(weights.age)
        progress = max(curve.start - healthy, 1e-9)
        shown = damage = 0.0
        for place, kick in enumerate(curve.kicks):
            if kick.covers(self.step):
                known, _ = weights.damages.get(place, (0.0, 0))
                weights.damages[place] = (known + kick.height * progress / kick.num_steps, 0)
                shown = max(shown, kick.shown * progress)
            elif place in weights.damages:
                known, since = weights.damages[place]
                weights.damages[place] = (known, since + 1)
            if place in weights.damages:
                damage += _left(kick, *weights.damages[place])
        excess = math.nan if math.isnan(damage) else max(shown, damage)
        share = 1.0 if math.isnan(excess) else min(1.0, excess / progress)
        weights.age += 1.0 - share
        return (healthy + excess) * float(self._factors[self.step])

    def go_back(self, weights: Weights) -> None:
        """Continues from a snapshot, with the next step's data."""
        self.weights = weights.copy()

    @property
    def lost(self) -> float:
        """Steps of training lost so far."""
        return self.step - self.weights.age


def _left(kick: Kick, damage: float, since: int) -> float:
    """What is left of a damage so many steps after it was done."""
    if damage == 0.0:
        return 0.0
    match kick.healing:
        case "nan":
            return math.nan
        case "stays":
            return damage
        case "linear":
            return damage * (1.0 + since / kick.steps)
        case "growing":
            return damage * math.exp(min(50.0, since / kick.steps))
        case "power":
            share = (1.0 + 19.0 * since / kick.steps) ** -1.0
        case "two_phase":
            share = 0.7 * math.exp(-30.0 * since / kick.steps) + 0.3 * math.exp(-3.0 * since / kick.steps)
        case _:
            share = math.exp(-3.0 * since / kick.steps)
    return damage * (kick.residue + (1.0 - kick.residue) * share)
