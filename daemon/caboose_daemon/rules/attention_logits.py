"""attention_logits: queries and keys grow until attention logits overflow or a softmax sees one position only.

Design
------
The agent bounds the logits of every attention by the norms of its queries and keys. A trained model has large logits in
some heads, and models with biases in their keys begin with such bounds, so height alone is no fault. A finding needs
all of three: the bound is above `limit`, it is `growth` times what this attention had at its lowest, and it still rises
(a trend over the later half of the run, tested against its scatter). In float16, which overflows at 65,504, the limit
is lower. A warning at most: the softmax works in a higher precision in most implementations.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from caboose_daemon.format import amount
from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule, and_more
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

MIN_BUCKETS = 16
"""Bucket averages of the curve before its later half shows a trend."""
PERSIST = 3
"""Samples in a row that must be above the limit."""
FLOAT16_SHARE = 0.25
"""Share of the limit that counts in float16."""
CALM = 0.5
"""Share of the limit below which it is resolved."""


@dataclass(frozen=True)
class AttentionLogitsConfig(RuleConfig):
    """Thresholds of attention_logits."""

    limit: float = 1000.0
    """Bound of the largest logit above which a growing one is reported; a quarter of it in float16."""
    growth: float = 10.0
    """Factor over its lowest level that the bound must have reached."""


class _Attention:
    """The bounds of one attention over the run, as logarithms."""

    def __init__(self) -> None:
        self.curve = Curve()
        self.last: deque[float] = deque(maxlen=PERSIST)

    def add(self, bound: float) -> None:
        self.curve.add(math.log(max(bound, 1e-6)))
        self.last.append(bound)

    @property
    def growth(self) -> float:
        return math.exp(min(700.0, self.curve.means[-1] - min(self.curve.means))) if self.curve.means else 1.0


class AttentionLogits(LastingRule[AttentionLogitsConfig]):
    """Attention logits that grow without a bound."""

    name = "attention_logits"
    config_class = AttentionLogitsConfig
    needs = frozenset({"activations"})
    forgets_after = frozenset({"resume", "restart"})

    def __init__(self, config: AttentionLogitsConfig) -> None:
        super().__init__(config)
        self._attentions: dict[int, _Attention] = {}

    def observe(self, view: JobView) -> Finding | None:
        """A warning at every sampled step at which an attention's bound is too high and grows."""
        step = view.step
        found = step.module_values("attention_logit") if step is not None and step.is_sampled else None
        if step is None or found is None:
            return None
        bounds = np.where(found.is_known, found.values, -1.0).max(axis=0)
        limit = self.config.limit * (FLOAT16_SHARE if view.facts.get("precision") == "float16" else 1.0)
        rows = []
        for row in np.flatnonzero(bounds >= 0).tolist():
            attention = self._attentions.setdefault(row, _Attention())
            attention.add(min(float(bounds[row]), 1e30))
            if self._is_bad(attention, limit):
                rows.append(row)
        if not rows:
            return self._resolved(step.step, f"no attention logit can exceed {limit:,.0f} and grows")
        rows.sort(key=lambda row: -bounds[row])
        return self._report(view, step, float(bounds[rows[0]]), rows)

    def _is_bad(self, attention: _Attention, limit: float) -> bool:
        last, means = attention.last, attention.curve.means
        if len(last) < PERSIST or attention.growth < self.config.growth:
            return False
        if self.is_open:
            return min(last) > CALM * limit
        return min(last) > limit and len(means) >= MIN_BUCKETS and trend(means[len(means) // 2 :]).rises()

    def _report(self, view: JobView, step: AlignedStep, bound: float, rows: list[int]) -> Finding:
        names = [view.modules[row].name if row < len(view.modules) else f"module {row}" for row in rows]
        growth = self._attentions[rows[0]].growth
        head = step.module_values("attention_head")
        of_head = ""
        if head is not None and rows[0] < head.shape[1] and head.is_known[:, rows[0]].any():
            of_head = f", head {head.values[head.is_known[:, rows[0]], rows[0]][0]:.0f}"
        return self._found(
            Severity.WARNING,
            step.step,
            f"attention logits of {names[0]}{of_head} can reach {bound:,.0f}, {amount(growth)}x their lowest level, and"
            f" grow{and_more(len(rows), 'attention')}, {self._since(step.step)}",
            layers=tuple(names),
            phase="forward",
            values={"logit": bound, "growth": growth, "num_layers": float(len(rows))},
        )
