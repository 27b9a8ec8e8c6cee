"""The families of loss curves: what disturbs a run, how it heals, and how the run looks otherwise.

Design
------
Each family is a rule by which curves are drawn. Noise, pace, length, the shape of the healthy fall and the cadence of
snapshots are drawn alike in all of them, so that no family has a look of its own. Half of the families are `tuned`: the
policy may be improved by looking at them. The other half, other shapes of the same phenomena, was `held` out at first,
and has been looked at since. `fresh` families were drawn up after that, and nothing was changed for them. A family has
any number of curves: those from a number on that nobody has looked at are a fresh check too.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from regret_curves import Curve, Kick, Scatter

Random = np.random.Generator
Drawn = Callable[[Random, Curve], Curve]


def curves(per_family: int, half: str = "", first: int = 0) -> Iterator[Curve]:
    """So many curves of each family, from this number on; of one half, if named."""
    for name, (belongs_to, draw) in FAMILIES.items():
        if half in ("", belongs_to):
            for number in range(first, first + per_family):
                random = np.random.default_rng([number, sum(name.encode()), len(name)])
                yield draw(random, replace(_base(random, name, number), half=belongs_to))


def _between(random: Random, low: float, high: float) -> float:
    """Log-uniform."""
    return math.exp(random.uniform(math.log(low), math.log(high)))


def _base(random: Random, family: str, number: int) -> Curve:
    """A healthy run."""
    floor = _between(random, 0.003, 3.0)
    scatter: Scatter = ("normal", "normal", "heavy")[int(random.integers(3))]
    return Curve(
        family=family,
        number=number,
        half="tuned",
        num_steps=int(_between(random, 800, 4000)),
        step_seconds=_between(random, 0.02, 60.0),
        start=floor + _between(random, 1.0, 10.0),
        floor=floor,
        decay=random.uniform(0.3, 1.2),
        knee=_between(random, 5, 50),
        noise=_between(random, 0.001, 0.3),
        scatter=scatter,
        every=10 << int(random.integers(4)),
    )


def _onset(random: Random, curve: Curve) -> int:
    return int(random.uniform(0.2, 0.6) * curve.num_steps)


def _kicked(random: Random, curve: Curve, **changes: object) -> Curve:
    """With one disturbance, of a few steps unless named."""
    fields = {"onset": _onset(random, curve), "num_steps": int(_between(random, 1, 8)), **changes}
    return replace(curve, kicks=(Kick(**fields),))  # type: ignore[arg-type]  # fields of a Kick


def _heals(random: Random, curve: Curve) -> Curve:
    return _kicked(random, curve, height=_between(random, 0.1, 3.0), steps=_between(random, 5, 500))


def _heals_soon(random: Random, curve: Curve) -> Curve:
    return _kicked(random, curve, num_steps=1, height=_between(random, 0.1, 10.0), steps=_between(random, 5, 30))


def _heals_partly(random: Random, curve: Curve) -> Curve:
    return _kicked(
        random,
        curve,
        height=_between(random, 0.3, 3.0),
        steps=_between(random, 10, 200),
        residue=random.uniform(0.05, 0.8),
    )


def _stays(random: Random, curve: Curve) -> Curve:
    return _kicked(random, curve, height=_between(random, 0.2, 3.0), healing="stays")


def _rises_slowly(random: Random, curve: Curve) -> Curve:
    steps = _between(random, 20, 200)
    return _kicked(random, curve, num_steps=1, height=random.uniform(0.02, 0.1), healing="linear", steps=steps / 10)


def _nan(random: Random, curve: Curve) -> Curve:
    return _kicked(random, curve, num_steps=1, height=1.0, healing="nan")


def _bad_data(random: Random, curve: Curve) -> Curve:
    num, shown = int(_between(random, 1, 20)), _between(random, 0.2, 2.0)
    damage = shown * random.uniform(0.0, 0.5)
    return _kicked(random, curve, num_steps=num, shown=shown, height=damage, steps=_between(random, 5, 40))


def _plain(random: Random, curve: Curve) -> Curve:
    return curve


def _plateau(random: Random, curve: Curve) -> Curve:
    still = replace(curve, decay=0.8, knee=3.0)
    return _kicked(random, still, height=_between(random, 0.1, 3.0), healing="stays")


# Held out, but for `_again`


def _heals_by_a_power(random: Random, curve: Curve) -> Curve:
    steps = _between(random, 5, 500)
    return _kicked(random, curve, height=_between(random, 0.1, 3.0), healing="power", steps=steps)


def _heals_in_two_phases(random: Random, curve: Curve) -> Curve:
    steps = _between(random, 30, 500)
    return _kicked(random, curve, height=_between(random, 0.2, 5.0), healing="two_phase", steps=steps)


def _grows(random: Random, curve: Curve) -> Curve:
    steps = _between(random, 10, 80)
    return _kicked(random, curve, num_steps=1, height=random.uniform(0.02, 0.1), healing="growing", steps=steps)


def _huge(random: Random, curve: Curve) -> Curve:
    """Thrown up by orders of magnitude, and falling by a few percent of its height a step."""
    return _kicked(random, curve, height=_between(random, 100.0, 1e6), steps=3.0 / random.uniform(0.01, 0.2))


def _long_bad_data(random: Random, curve: Curve) -> Curve:
    num, shown = int(random.uniform(20, 100)), _between(random, 0.2, 2.0)
    damage = shown * random.uniform(0.0, 1.0)
    return _kicked(random, curve, num_steps=num, shown=shown, height=damage, steps=_between(random, 5, 400))


def _again(random: Random, curve: Curve) -> Curve:
    """Three spikes, of which each may heal, or not."""
    onset, kicks = _onset(random, curve) // 2, []
    for _ in range(3):
        healing = ("exponential", "stays")[int(random.integers(2))]
        height, steps = _between(random, 0.2, 3.0), _between(random, 5, 200)
        kicks.append(Kick(onset, int(_between(random, 1, 8)), height, healing=healing, steps=steps))
        onset += int(random.uniform(0.15, 0.3) * curve.num_steps)
    return replace(curve, kicks=tuple(kicks))


def _after_a_resume(random: Random, curve: Curve) -> Curve:
    resumed = replace(curve, resumed_at=int(_between(random, 500, 50_000)))
    healing = ("exponential", "stays")[int(random.integers(2))]
    height, steps = _between(random, 0.2, 3.0), _between(random, 5, 400)
    return _kicked(random, resumed, height=height, healing=healing, steps=steps)


def _in_warm_up(random: Random, curve: Curve) -> Curve:
    warm = replace(curve, warm_up=int(random.uniform(50, 200)))
    onset = warm.warm_up + int(random.uniform(20, 200))
    height, steps = _between(random, 0.2, 2.0), _between(random, 5, 300)
    return _kicked(random, warm, onset=onset, height=height, steps=steps)


def _with_outliers(random: Random, curve: Curve) -> Curve:
    return replace(curve, scatter="outliers")


def _fast(random: Random, curve: Curve) -> Curve:
    """Steps of milliseconds: what takes seconds takes many of them."""
    fast = replace(curve, step_seconds=_between(random, 0.001, 0.02), num_steps=8000)
    return _kicked(random, fast, height=_between(random, 0.3, 3.0), healing="stays")


# Drawn up after the others were looked at


def _in_bursts(random: Random, curve: Curve) -> Curve:
    """Bad data again and again, a few batches each."""
    onset, kicks = _onset(random, curve), []
    for _ in range(int(random.integers(2, 6))):
        num, shown = int(_between(random, 1, 12)), _between(random, 0.2, 2.0)
        damage = shown * random.uniform(0.0, 0.5)
        kicks.append(Kick(onset, num, damage, shown=shown, steps=_between(random, 5, 60)))
        onset += num + int(_between(random, 5, 60))
    return replace(curve, kicks=tuple(kicks))


def _relapses(random: Random, curve: Curve) -> Curve:
    """A spike that heals, and soon a worse one that does not."""
    onset = _onset(random, curve)
    warning = Kick(onset, int(_between(random, 1, 4)), _between(random, 0.1, 1.0), steps=_between(random, 5, 60))
    later = onset + int(_between(random, 30, 200))
    lasting = Kick(later, int(_between(random, 1, 8)), _between(random, 0.3, 3.0), healing="stays")
    return replace(curve, kicks=(warning, lasting))


def _climbs(random: Random, curve: Curve) -> Curve:
    """A rate that is too high for a while: the damage grows as long as it lasts, and most of it stays."""
    num = int(random.uniform(20, 150))
    residue = random.uniform(0.5, 1.0)
    return _kicked(random, curve, num_steps=num, height=_between(random, 0.3, 3.0), steps=100.0, residue=residue)


FAMILIES: dict[str, tuple[str, Drawn]] = {
    "heals": ("tuned", _heals),
    "heals_soon": ("tuned", _heals_soon),
    "heals_partly": ("tuned", _heals_partly),
    "stays": ("tuned", _stays),
    "rises_slowly": ("tuned", _rises_slowly),
    "nan": ("tuned", _nan),
    "bad_data": ("tuned", _bad_data),
    "plateau": ("tuned", _plateau),
    "again": ("tuned", _again),
    "healthy": ("tuned", _plain),
    "heals_by_a_power": ("held", _heals_by_a_power),
    "heals_in_two_phases": ("held", _heals_in_two_phases),
    "grows": ("held", _grows),
    "huge": ("held", _huge),
    "long_bad_data": ("held", _long_bad_data),
    "after_a_resume": ("held", _after_a_resume),
    "in_warm_up": ("held", _in_warm_up),
    "outliers": ("held", _with_outliers),
    "fast": ("held", _fast),
    "in_bursts": ("fresh", _in_bursts),
    "relapses": ("fresh", _relapses),
    "climbs": ("fresh", _climbs),
}
