"""expert_collapse: the router of a mixture-of-experts layer gives almost all tokens to a few experts.

Design
------
The agent counts which experts the routers choose. The entropy of the experts' shares of tokens, over that of equal
shares, is 1 where all get the same and 0 where one gets everything. Ranks have their own data, so the highest entropy
over the ranks counts, and the smallest share of dead experts: those without a token in a whole window of samples.

Routers need no balance to learn, and none has equal shares. So only a strong imbalance is reported, after several
samples in a row; a low share of dead experts never is. Without a router that the agent recognises, or that
`monitor.watch_router` names, there is nothing to judge. A warning at most: the loss shows whether the model suffers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule, and_more
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

CALM = 1.15
"""Factor on the thresholds at which it is resolved, so that a router at the threshold is reported once."""
DEAD_WINDOWS = 2
"""Windows in a row in which experts must be dead."""


@dataclass(frozen=True)
class ExpertCollapseConfig(RuleConfig):
    """Thresholds of expert_collapse."""

    entropy: float = 0.6
    """Entropy of the experts' shares, over that of equal shares, below which a router has collapsed."""
    dead_share: float = 0.3
    """Share of experts without a token over a window above which it is reported."""
    persist_samples: int = 4
    """Sampled steps in a row before a low entropy is reported."""


class ExpertCollapse(LastingRule[ExpertCollapseConfig]):
    """Routers that use few of their experts."""

    name = "expert_collapse"
    config_class = ExpertCollapseConfig
    needs = frozenset({"activations"})
    muted_in = frozenset({"startup"})
    forgets_after = frozenset({"data_switch", "resume", "restart"})

    def __init__(self, config: ExpertCollapseConfig) -> None:
        super().__init__(config)
        self._num_low: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._num_dead: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._dead: NDArray[np.float64] = np.zeros(0)

    def observe(self, view: JobView) -> Finding | None:
        """A warning at every sampled step at which a router uses few of its experts."""
        step = view.step
        found = step.module_values("router_entropy") if step is not None and step.is_sampled else None
        if step is None or found is None or 2 * len(found.ranks) < view.world:
            return None
        entropies = np.where(found.is_known, found.values, -np.inf).max(axis=0)
        self._make_room(len(entropies))
        limit = CALM if self.is_open else 1.0
        is_seen = np.isfinite(entropies)
        is_low = is_seen & (entropies < self.config.entropy * limit)
        self._num_low = np.where(is_low, self._num_low + 1, np.where(is_seen, 0, self._num_low))
        self._follow_dead(step, self.config.dead_share / limit)
        is_bad = (self._num_low >= self.config.persist_samples) | (self._num_dead >= DEAD_WINDOWS)
        rows = np.flatnonzero(is_bad & is_seen)
        if not len(rows):
            return self._resolved(step.step, "routers use their experts evenly enough again")
        return self._report(view, step, entropies, rows[np.argsort(entropies[rows], kind="stable")])

    def _make_room(self, num: int) -> None:
        more = num - len(self._num_low)
        if more > 0:  # functional activations are found later
            self._num_low, self._num_dead = np.pad(self._num_low, (0, more)), np.pad(self._num_dead, (0, more))
            self._dead = np.pad(self._dead, (0, more))

    def _follow_dead(self, step: AlignedStep, limit: float) -> None:
        found = step.module_values("router_dead")
        if found is None:
            return
        shares = np.where(found.is_known, found.values, np.inf).min(axis=0)
        seen = np.isfinite(shares)
        with np.errstate(invalid="ignore"):
            self._num_dead = np.where(seen & (shares > limit), self._num_dead + 1, np.where(seen, 0, self._num_dead))
        self._dead = np.where(seen, shares, self._dead)

    def _report(
        self, view: JobView, step: AlignedStep, entropies: NDArray[np.float64], rows: NDArray[np.intp]
    ) -> Finding:
        first = int(rows[0])
        module = view.modules[first] if first < len(view.modules) else None
        names = [view.modules[row].name if row < len(view.modules) else f"module {row}" for row in rows.tolist()]
        num = 0 if module is None else module.num_units
        share, busiest = _typical(step, "router_share", first), _typical(step, "router_busiest", first)
        entropy = float(entropies[first])
        values = {"entropy": entropy, "dead": float(self._dead[first]), "num_layers": float(len(rows))}
        values |= {"share": share} if share is not None else {}
        values |= {"num_experts": float(num)} if num else {}
        of = f" of {num}" if num else ""
        text = f"router {names[0]}{and_more(len(rows), 'router')}: entropy of its experts' shares is {entropy:.2f}"
        if share is not None and busiest is not None:
            text += f" (limit {self.config.entropy:g}), expert {busiest:.0f}{of} gets {100 * share:.0f} % of the tokens"
        if self._dead[first] > 0:
            text += f", {100 * self._dead[first]:.0f} % of the experts get none"
        return self._found(
            Severity.WARNING,
            step.step,
            f"{text}, {self._since(step.step)}",
            layers=tuple(names),
            phase="forward",
            values=values,
        )


def _typical(step: AlignedStep, array: str, row: int) -> float | None:
    """The middle one of the ranks' values."""
    found = step.module_values(array)
    if found is None or row >= found.shape[1]:
        return None
    values = np.sort(found.values[:, row][found.is_known[:, row]])
    return float(values[(len(values) - 1) // 2]) if len(values) else None
