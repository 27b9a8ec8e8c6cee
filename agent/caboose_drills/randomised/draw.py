"""Draws the runs: healthy bases, and for each disease some bases that it falls upon.

Design
------
All randomness is a `random.Random` of a text that names what is drawn, so a run does not depend on how many others
there are. A diseased run differs from its base in the disease alone: the base, trained healthy with the same seed, is
its twin. Whether a run belongs to the `tune` or the `held` half is a hash of its name, and never changes.
"""

import hashlib
import random
from dataclasses import asdict, dataclass, replace
from typing import Any

from caboose_drills.randomised.diseases import DISEASES, FAMILIES, LOOPS, OWN, Disease

BASES_PER_FAMILY = 12
DRAWS = 10
"""Runs of each disease."""
DRAWN_LOOPS: dict[str, tuple[str, ...]] = {"gan": ("plain",), "rl": ("plain", "amp", "ddp", "plain", "accumulation")}
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adafactor", "lion", "muon")
NEEDS_ADAPTIVE = ("pre_ln", "post_ln", "vae", "diffusion", "gan", "rl")
"""Families that plain SGD does not train in a few hundred steps."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One run, as plain values."""

    id: str
    base: str
    """The id of its healthy twin; its own id for a healthy run."""
    disease: str
    """Empty for a healthy run."""
    family: str
    loop: str
    world: int
    optimizer: str
    seed: int
    steps: int
    batch: int
    width: int
    depth: int
    sample_every: int
    validate_every: int
    schedule: str
    activation: str
    has_norms: bool
    dropout: float
    clip: float
    """0: no clipping."""
    onset: int = 0
    strength: float = 0.0
    """How strong the disease is: 0 is the weakest that is drawn, 1 the strongest."""

    @property
    def half(self) -> str:
        """tune or held."""
        return half(self.id)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def half(name: str) -> str:
    """The half a run belongs to."""
    return "tune" if hashlib.sha256(f"half {name}".encode()).digest()[0] % 2 else "held"


def bases(again: str = "") -> list[Draw]:
    """The healthy runs; `again` makes others, from other random numbers."""
    return [_base(family, number, again) for family in FAMILIES for number in range(BASES_PER_FAMILY)]


def _base(family: str, number: int, again: str) -> Draw:
    name = f"{family}-{number:02d}"
    rng = random.Random(f"{again}base {name}")
    loops = DRAWN_LOOPS.get(family, LOOPS)
    loop = loops[(number + FAMILIES.index(family)) % len(loops)] if number < 2 * len(LOOPS) else rng.choice(loops)
    optimizers = [o for o in OPTIMIZERS if family not in NEEDS_ADAPTIVE or o not in ("sgd", "momentum")]
    optimizer = rng.choice(optimizers if loop != "fsdp2" else [o for o in optimizers if o not in ("muon", "adafactor")])
    if optimizer == "muon" and (loop in ("trainer", "lightning") or family == "gan"):
        optimizer = "adamw"  # Muon needs a second optimizer beside it, which these loops have no place for
    return Draw(
        id=name,
        base=name,
        disease="",
        family=family,
        loop=loop,
        world=rng.choice((2, 2, 3)) if loop in ("ddp", "fsdp2") else 1,
        optimizer=optimizer,
        seed=rng.randrange(1_000_000),
        steps=rng.choice((300, 400, 500)) if loop in OWN else 300,
        batch=rng.choice((16, 32, 64)) if family not in ("pre_ln", "post_ln") else rng.choice((8, 16)),
        width=rng.choice((32, 48, 64)),
        depth=rng.choice((2, 3)) if family in ("pre_ln", "post_ln", "lstm") else rng.choice((2, 3, 4)),
        sample_every=rng.choice((10, 20, 50)),
        validate_every=rng.choice((20, 40, 50)),
        schedule="warmup_cosine" if family == "post_ln" else rng.choice(("constant", "cosine", "warmup_cosine")),
        activation=rng.choice(("relu", "relu", "gelu", "tanh", "silu")),
        has_norms=family == "cnn" or rng.random() < 0.35,
        dropout=rng.choice((0.0, 0.0, 0.1)) if family != "rl" else 0.0,
        clip=rng.choice((0.0, 1.0)) if family not in ("gan", "rl") else 0.0,
    )


def diseased(again: str = "") -> list[Draw]:
    """The runs with a disease, `DRAWS` of each; `again` as for `bases`."""
    pool = bases(again)
    return [_diseased(disease, number, pool, again) for disease in DISEASES for number in range(DRAWS)]


def _diseased(disease: Disease, number: int, pool: list[Draw], again: str) -> Draw:
    name = f"{disease.name}-{number:02d}"
    rng = random.Random(f"{again}draw {name}")
    fitting = [base for base in pool if _fits(disease, base)]
    families = sorted(
        {base.family for base in fitting}, key=lambda family: random.Random(f"{again}{disease.name} {family}").random()
    )
    wanted = families[number % len(families)]
    base = rng.choice([base for base in fitting if base.family == wanted])
    onset = rng.randint(int(0.4 * base.steps), int(0.6 * base.steps)) if disease.has_onset else 0
    return replace(base, id=name, base=base.id, disease=disease.name, onset=onset, strength=rng.random())


def _fits(disease: Disease, base: Draw) -> bool:
    if base.family not in disease.families or base.loop not in disease.loops:
        return False
    if disease.optimizers and base.optimizer not in disease.optimizers:
        return False
    if disease.variant == "norms" and not base.has_norms:
        return False
    if disease.variant == "scheduled" and base.schedule == "constant":
        return False
    if disease.variant == "relu" and base.activation != "relu":
        return False
    return disease.variant != "warm_up" or base.schedule == "warmup_cosine"


def draws(again: str = "") -> list[Draw]:
    """Every run: the healthy bases, then the diseased ones; `again` as for `bases`."""
    return [*bases(again), *diseased(again)]
