"""Runs the rules over a view: times each one, and keeps one rule's failure from the others.

Design
------
Which conditions are open is known to the job's `EpisodeLog` alone. The engine reads it to end what a rule had found
when that rule is switched off or made anew, and to hand a restarted daemon's rules what was open.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from caboose_daemon.incidents.episodes import EpisodeLog
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import AnyRule, RuleConfig, Trigger
from caboose_daemon.rules.rank_silent import RankSilent, RankSilentConfig
from caboose_daemon.steps.view import MOVING_OBJECTIVE, JobView

logger = logging.getLogger("caboose.daemon")


@dataclass
class RuleStats:
    """How one rule did, over all jobs."""

    runs: int = 0
    seconds: float = 0.0
    failures: int = 0


GRADIENT_NORM = "gradient_norm"
"""Visible where an engine computes the norm of all gradients, and shows none of them."""


class Engine:
    """The rules of one attempt of one job, run in the order given; the statistics are shared by all jobs."""

    def __init__(
        self,
        rules: Sequence[type[AnyRule]],
        configs: Mapping[str, RuleConfig],
        stats: dict[str, RuleStats],
        episodes: EpisodeLog,
        *,
        part: str = "",
        is_further_part: bool = False,
    ) -> None:
        """`part` is set in a job with several models; further parts than the first have only rules that judge parts."""
        self.part = part
        self._classes = [rule for rule in rules if rule.judges_parts] if is_further_part else rules
        self._stats = stats
        self._episodes = episodes
        self._rules: dict[str, AnyRule] = {}
        self._visible: frozenset[str] | None = None
        self._by_trigger: dict[Trigger, list[tuple[AnyRule, RuleStats]]] = {}
        self.configure(configs)

    def configure(self, configs: Mapping[str, RuleConfig]) -> list[Finding]:
        """Sets new thresholds; what rules have learned stays. Returns the end of what switched-off rules had open."""
        silence = configs.get(RankSilent.name, RankSilentConfig())
        assert isinstance(silence, RankSilentConfig), "every rule has the config of its class"
        self.silence_seconds = silence.warn_seconds
        """Silence after which a rank counts as missing, also where the rule rank_silent is off."""
        ended = []
        rules: dict[str, AnyRule] = {}
        for rule in self._classes:
            config = configs[rule.name]
            known = self._rules.get(rule.name)
            if not config.enabled:
                ended += self._end(rule.name, None, "the rule was switched off")
            elif known is None:
                rules[rule.name] = rule(config)
            else:
                known.config = config
                rules[rule.name] = known
        self._rules = rules  # at once: a reader on another thread may go through the old ones
        self._visible = None
        return ended

    def judge_part(self, name: str) -> list[Finding]:
        """From now on rules that judge parts judge this one; returns the end of what they had found before."""
        if name == self.part:
            return []
        why = "the job trains several models, and each is judged by itself from now on"
        ended = [f for rule in self._rules.values() if rule.judges_parts for f in self._end(rule.name, None, why)]
        self.part = name
        return ended

    def _part_of(self, rule: str) -> str:
        """The part that a rule's episodes are of; empty for a rule that judges the whole job."""
        return self.part if any(each.name == rule and each.judges_parts for each in self._classes) else ""

    def run(self, view: JobView, trigger: Trigger, of_part: JobView | None = None) -> list[Finding]:
        """Every rule's findings; `of_part` is the view for those that judge parts."""
        findings: list[Finding] = []
        if view.regime.began:
            findings += self._restart_rules(view)
        if view.visible is not self._visible:
            self._choose_rules(view.visible)
        active = view.regime.active
        start = time.perf_counter()
        for rule, stats in self._by_trigger[trigger]:
            if active and not active.isdisjoint(rule.muted_in):
                continue
            try:
                finding = rule.observe(view if of_part is None or not rule.judges_parts else of_part)
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
                findings.append(finding if not self.part else self._of_part(finding, rule))
        return findings

    def _of_part(self, finding: Finding, rule: AnyRule) -> Finding:
        """The finding with the part that it is about."""
        if not rule.judges_parts:
            return finding
        return msgspec.structs.replace(finding, part=self.part, summary=f"{self.part}: {finding.summary}")

    def _choose_rules(self, visible: frozenset[str]) -> None:
        """Finds the rules that can judge this job; only where what is visible has changed, which is rare."""
        self._by_trigger = {"step": [], "tick": []}
        for rule in self._rules.values():
            if not _lacks(rule, visible):
                stats = self._stats.setdefault(rule.name, RuleStats())
                self._by_trigger[rule.trigger].append((rule, stats))
        self._visible = visible

    def _restart_rules(self, view: JobView) -> list[Finding]:
        """Makes rules anew whose baseline a new regime ends; returns the end of what they had found."""
        ended = []
        for name, rule in self._rules.items():
            why = sorted(view.regime.began & rule.forgets_after)
            if why:
                self._rules[name] = type(rule)(rule.config)
                ended += self._end(name, view, f"{' and '.join(why).replace('_', ' ')}: a new baseline begins")
                self._visible = None
        return ended

    def _end(self, name: str, view: JobView | None, why: str) -> list[Finding]:
        part = self._part_of(name)
        episode = self._episodes.open_of(name, part)
        if episode is None:
            return []
        last = episode.last
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
                part=part,
                state="resolved",
            )
        ]

    def resume(self) -> None:
        """Hands each rule the last finding of the episode that was open when the daemon ended."""
        for name, rule in self._rules.items():
            episode = self._episodes.open_of(name, self._part_of(name))
            if episode is not None:
                rule.resume(episode.last)

    def is_on(self, rule: str) -> bool:
        return rule in self._rules

    def abstaining(self, visible: frozenset[str]) -> dict[str, list[str]]:
        """Rules that cannot judge this job, with what is not visible to them."""
        lacks = {rule.name: _lacks(rule, visible) for rule in self._rules.values()}
        return {name: missing for name, missing in lacks.items() if missing}


def _lacks(rule: AnyRule, visible: frozenset[str]) -> list[str]:
    """What a rule needs to judge a job and does not have."""
    seen = visible | {GRADIENT_NORM} if "gradients" in visible else visible
    missing = sorted(rule.needs - seen)
    return [*missing, "falling_loss"] if rule.assumes_falling_loss and MOVING_OBJECTIVE in visible else missing
