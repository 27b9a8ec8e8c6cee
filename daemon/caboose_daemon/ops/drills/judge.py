"""Compares what the daemon found in one seed of a drill with what it should have found.

Design
------
Only the API's answers are judged, as a user sees them. Any finding before the fault is wrong. The origin is named if
a finding of the drill's rule, or the witness of its incident, names exactly the origin ranks, and an origin layer
first: a finding that lists every layer names none. A fault is one incident: counted are the incidents opened since the
fault that hold a finding of the drill's rules; one that was merged into another is not counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from caboose_daemon.ops.drills.catalogue import Drill

LOUDNESS = {"info": 0, "warning": 1, "critical": 2}


class DrillOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one seed of a drill went."""

    seed: int
    found: bool = False
    told_step: int | None = None
    delay: int | None = None
    """Steps from the fault to the finding."""
    origin: bool | None = None
    """Whether it was named; None if there is none, or nothing was found."""
    cause_rank: int | None = None
    """The true cause's place in the diagnosis; 0 if missing, or nothing was found; None without a diagnosis."""
    causes: tuple[str, ...] = ()
    """The diagnosis' causes, the likeliest first."""
    num_incidents: int | None = None
    """Incidents of the fault, at warning or above: 1 is right. None without a diagnosis."""
    wrong: dict[str, str] = {}
    """Rules that should not have fired, with their severity."""
    spoke: tuple[str, ...] = ()
    """Every rule that fired at warning or above."""
    summary: str = ""
    """The summary of the rule's first finding at the expected severity."""
    error: str = ""
    """Why this seed could not be judged."""

    @property
    def is_one(self) -> bool:
        """Whether the fault was at most one incident, or that is unknown."""
        return self.num_incidents is None or self.num_incidents <= 1

    @property
    def num_critical(self) -> int:
        """Rules that were wrong and critical."""
        return sum(severity == "critical" for severity in self.wrong.values())


def judge(
    drill: Drill, seed: int, findings: Sequence[Mapping[str, Any]], incidents: Sequence[Mapping[str, Any]] | None
) -> DrillOutcome:
    """The outcome; `incidents` is None if the daemon gave none."""
    loud = [finding for finding in findings if LOUDNESS[finding["severity"]] >= LOUDNESS["warning"]]
    right = [
        finding
        for finding in findings
        if finding["rule"] == drill.rule
        and LOUDNESS[finding["severity"]] >= LOUDNESS[drill.severity]
        and finding["told_step"] >= drill.fault_step
    ]
    wrong: dict[str, str] = {}
    for finding in loud:
        is_expected = finding["rule"] in (drill.rule, *drill.companions) and finding["told_step"] >= drill.fault_step
        if not is_expected:
            wrong[finding["rule"]] = _louder(wrong.get(finding["rule"], "info"), finding["severity"])
    spoke = tuple(sorted({finding["rule"] for finding in loud}))
    can_explain = incidents is not None and bool(drill.cause)
    num_incidents = None if incidents is None or drill.is_healthy else _num_incidents(drill, incidents)
    if not right:
        cause_rank = 0 if can_explain else None
        return DrillOutcome(seed=seed, wrong=wrong, spoke=spoke, cause_rank=cause_rank, num_incidents=num_incidents)
    first = min(right, key=lambda finding: finding["told_step"])
    holding = _holding(drill, incidents or ())
    causes = tuple(cause["id"] for cause in (holding.get("diagnosis") or {}).get("causes", ())) if holding else ()
    return DrillOutcome(
        seed=seed,
        found=True,
        told_step=first["told_step"],
        delay=first["told_step"] - drill.fault_step,
        origin=_names_origin(drill, right, holding) if drill.has_origin else None,
        cause_rank=_place(drill.cause, causes) if can_explain else None,
        causes=causes,
        num_incidents=num_incidents,
        wrong=wrong,
        spoke=spoke,
        summary=first["first"]["summary"],
    )


def _louder(one: str, other: str) -> str:
    return max(one, other, key=LOUDNESS.__getitem__)


def _num_incidents(drill: Drill, incidents: Iterable[Mapping[str, Any]]) -> int:
    """The incidents with a finding of the drill's rules, at warning or above, since the fault."""
    rules = (drill.rule, *drill.companions)
    return sum(
        any(
            member["rule"] in rules
            and LOUDNESS[member["severity"]] >= LOUDNESS["warning"]
            and member["detected_step"] >= drill.fault_step
            for member in incident["members"]
        )
        for incident in incidents
        if incident.get("merged_into") is None
    )


def _holding(drill: Drill, incidents: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first incident since the fault that the rule's finding belongs to."""
    with_rule = [
        incident
        for incident in incidents
        if drill.rule == incident["rule"] or drill.rule in {member["rule"] for member in incident.get("members", ())}
    ]
    since = [incident for incident in with_rule if incident["onset_step"] >= drill.fault_step]
    return min(since or with_rule, key=lambda incident: incident["onset_step"], default=None)


def _place(right: Sequence[str], causes: Sequence[str]) -> int:
    return next((place for place, cause in enumerate(causes, start=1) if cause in right), 0)


def _names_origin(drill: Drill, findings: Sequence[Mapping[str, Any]], holding: Mapping[str, Any] | None) -> bool:
    named = [(part["ranks"], part["layers"]) for finding in findings for part in (finding["first"], finding["last"])]
    witness = (holding or {}).get("witness") or {}
    named.append((witness.get("ranks") or [], witness.get("layers") or []))
    return any(_is_origin(drill, ranks, layers) for ranks, layers in named)


def _is_origin(drill: Drill, ranks: Sequence[int], layers: Sequence[str]) -> bool:
    if drill.origin_ranks and set(ranks) != set(drill.origin_ranks):
        return False
    if not drill.origin_layers:
        return True
    return bool(layers) and any(f"{layers[0]}.".startswith(f"{origin}.") for origin in drill.origin_layers)
