"""Runs the rules over a view: times each one, and keeps one rule's failure from the others."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import AnyRule, RuleConfig, Trigger
from caboose_daemon.rules.rank_silent import RankSilent, RankSilentConfig
from caboose_daemon.steps.view import JobView

logger = logging.getLogger("caboose.daemon")


@dataclass
class RuleStats:
    """How one rule did, over all jobs."""

    runs: int = 0
    seconds: float = 0.0
    failures: int = 0


class Engine:
    """The rules of one attempt of one job, run in the order given; the statistics are shared by all jobs."""

    def __init__(
        self, rules: Sequence[type[AnyRule]], configs: Mapping[str, RuleConfig], stats: dict[str, RuleStats]
    ) -> None:
        self._classes = rules
        self._stats = stats
        self._rules: dict[str, AnyRule] = {}
        self._open: dict[str, Finding] = {}
        self._visible: frozenset[str] | None = None
        self._able: dict[Trigger, list[tuple[AnyRule, RuleStats]]] = {}
        self.configure(configs)

    def configure(self, configs: Mapping[str, RuleConfig]) -> list[Finding]:
        """Takes over new thresholds; what rules have learned stays. Those switched off end what they had open."""
        silence = configs.get(RankSilent.name, RankSilentConfig())
        assert isinstance(silence, RankSilentConfig), "every rule has the config of its class"
        self.silence_seconds = silence.warn_seconds
        """Silence after which a rank is missed, whether or not the rule that says so is on."""
        ended = []
        for rule in self._classes:
            config = configs[rule.name]
            known = self._rules.get(rule.name)
            if not config.enabled:
                self._rules.pop(rule.name, None)
                ended += self._end(rule.name, None, "the rule was switched off")
            elif known is None:
                self._rules[rule.name] = rule(config)
            else:
                known.config = config
        self._rules = {rule.name: self._rules[rule.name] for rule in self._classes if rule.name in self._rules}
        self._visible = None
        return ended

    def run(self, view: JobView, trigger: Trigger) -> list[Finding]:
        """What the rules of this trigger find."""
        findings: list[Finding] = []
        if view.regime.began:
            findings += self._forget(view)
        if view.visible is not self._visible:
            self._sort_out(view.visible)
        active = view.regime.active
        start = time.perf_counter()
        for rule, stats in self._able[trigger]:
            if active and not active.isdisjoint(rule.muted_in):
                continue
            try:
                finding = rule.observe(view)
            except Exception:
                # A rule is code about the unexpected; if it fails, the others still see the step.
                if not stats.failures:
                    logger.exception("rule %s failed on job %s", rule.name, view.job)
                stats.failures += 1
                finding = None
            now = time.perf_counter()
            stats.runs += 1
            stats.seconds += now - start
            start = now
            if finding is not None:
                findings.append(finding)
                self._remember(finding)
        return findings

    def _sort_out(self, visible: frozenset[str]) -> None:
        """Which rules can judge this job at all: what is visible seldom changes, so that is not asked at every step."""
        self._able = {"step": [], "tick": []}
        for rule in self._rules.values():
            if rule.needs <= visible:
                stats = self._stats.setdefault(rule.name, RuleStats())
                self._able[rule.trigger].append((rule, stats))
        self._visible = visible

    def _remember(self, finding: Finding) -> None:
        if finding.state == "resolved":
            self._open.pop(finding.rule, None)
        else:
            self._open[finding.rule] = finding

    def _forget(self, view: JobView) -> list[Finding]:
        """Rules for which the new regime changes everything start over."""
        ended = []
        for name, rule in self._rules.items():
            why = sorted(view.regime.began & rule.forgets_after)
            if why:
                self._rules[name] = type(rule)(rule.config)
                ended += self._end(name, view, f"{' and '.join(why).replace('_', ' ')}: a new baseline begins")
                self._visible = None
        return ended

    def _end(self, name: str, view: JobView | None, why: str) -> list[Finding]:
        last = self._open.pop(name, None)
        if last is None:
            return []
        step = last.step if view is None or view.step is None else view.step.step
        return [
            Finding(
                rule=name,
                severity=Severity.INFO,
                step=step,
                onset_step=last.onset_step,
                summary=why,
                ranks=last.ranks,
                layers=last.layers,
                phase=last.phase,
                state="resolved",
            )
        ]

    def resume(self, findings: Iterable[Finding]) -> None:
        """Hands each rule the last finding of the episode that was open when the daemon ended."""
        last = {finding.rule: finding for finding in findings}
        for name, rule in self._rules.items():
            if name in last:
                rule.resume(last[name])
                self._open[name] = last[name]

    def is_on(self, rule: str) -> bool:
        """Whether a rule is switched on."""
        return rule in self._rules

    def abstaining(self, visible: frozenset[str]) -> dict[str, list[str]]:
        """Rules that cannot judge this job, with what they miss."""
        return {rule.name: sorted(rule.needs - visible) for rule in self._rules.values() if not rule.needs <= visible}
