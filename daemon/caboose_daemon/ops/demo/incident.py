"""An incident of the API as text: what was found, the likeliest cause, the first fix."""

from typing import Any

Json = dict[str, Any]


def headline(incident: Json) -> str:
    """Id, rule, severity and state."""
    return f"{incident['id']} · {incident['rule']} · {incident['severity']} · {incident['state']}"


def found_by(incident: Json) -> str:
    """The rules in it, each once, in the order in which they joined."""
    return ", ".join(dict.fromkeys(member["rule"] for member in incident["members"]))


def first_cause(incident: Json) -> Json | None:
    """The likeliest cause; None without one."""
    causes = (incident["diagnosis"] or {}).get("causes", ())
    return causes[0] if causes else None


def cause_in_words(incident: Json) -> str:
    """The likeliest cause with its confidence; "unknown" first where that is likelier."""
    cause = first_cause(incident)
    if cause is None:
        return "unknown: no known cause fits"
    likeliest = f"{cause['title']}, {cause['confidence']:.0%}"
    unknown = incident["diagnosis"]["unknown"]
    return likeliest if cause["confidence"] >= unknown else f"unknown ({unknown:.0%}); likeliest: {likeliest}"


def fix_in_words(incident: Json) -> str:
    """The first fix with the code to change; empty without a cause."""
    cause = first_cause(incident)
    return "\n".join(filter(None, (cause["first_fix"], cause["code"]))) if cause is not None else ""


def opening(incident: Json) -> str:
    """A line for when it opens."""
    name = f"{incident['id']} {incident['rule']} ({incident['severity']})"
    return f"step {incident['opened_step']}: {name}: {incident['summary']}"


def news(incident: Json) -> str:
    """A line for its state; a new one means news."""
    if not incident["is_open"]:
        return f"{incident['id']} closed: {incident['reason']}"
    return f"{incident['id']} is {incident['state']}; cause: {cause_in_words(incident)}"
