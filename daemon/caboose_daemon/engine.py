"""Runs the rules over a view: times each one, and keeps one rule's failure from the others."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caboose_daemon.rules import RULES, AnyRule
from caboose_daemon.rules.finding import Finding
from caboose_daemon.rules.rule import RuleConfig, Trigger
from caboose_daemon.view import JobView

logger = logging.getLogger("caboose.daemon")


@dataclass
class RuleStats:
    """How one rule did, over all jobs."""

    runs: int = 0
    seconds: float = 0.0
    failures: int = 0


class Engine:
    """The rules of one attempt of one job; the statistics are shared by all jobs."""

    def __init__(self, configs: Mapping[str, RuleConfig], stats: dict[str, RuleStats]) -> None:
        self._stats = stats
        self._rules: list[AnyRule] = [rule(configs[rule.name]) for rule in RULES if configs[rule.name].enabled]

    def run(self, view: JobView, trigger: Trigger) -> list[Finding]:
        """What the rules of this trigger find."""
        findings = []
        for rule in self._rules:
            if rule.trigger != trigger or not rule.needs <= view.visible:
                continue
            stats = self._stats.setdefault(rule.name, RuleStats())
            start = time.perf_counter()
            try:
                finding = rule.observe(view)
            except Exception:
                # A rule is code about the unexpected; if it fails, the others still see the step.
                if not stats.failures:
                    logger.exception("rule %s failed on job %s", rule.name, view.job)
                stats.failures += 1
                finding = None
            stats.runs += 1
            stats.seconds += time.perf_counter() - start
            if finding is not None:
                findings.append(finding)
        return findings

    def resume(self, findings: Iterable[Finding]) -> None:
        """Hands each rule the last finding of the episode that was open when the daemon ended."""
        last = {finding.rule: finding for finding in findings}
        for rule in self._rules:
            if rule.name in last:
                rule.resume(last[rule.name])

    def abstaining(self, visible: frozenset[str]) -> dict[str, list[str]]:
        """Rules that cannot judge this job, with what they miss."""
        return {rule.name: sorted(rule.needs - visible) for rule in self._rules if not rule.needs <= visible}
