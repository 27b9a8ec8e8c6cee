"""The text of the HTML report: everything visible without a script."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from html import escape
from typing import Any

from caboose_daemon.format import seconds, witness
from caboose_daemon.offline.comparing.evidence import shown
from caboose_daemon.offline.comparing.measures import Measures
from caboose_daemon.offline.runs.run import Run

Json = dict[str, Any]
MAX_RANKS = 64
MAX_EVENTS = 100
MAX_SAVED = 50
HEALTH = {"critical": "critical", "warning": "warning", "info": "info", "ok": "ok"}


def health(run: Run) -> str:
    """The worst open severity; for a log, the worst of all incidents."""
    if run.detail is not None:
        return HEALTH.get(run.detail["health"], "ok")
    order = {"info": 0, "warning": 1, "critical": 2}
    return max((incident["worst"] for incident in run.incidents), key=lambda s: order.get(s, 0), default="ok")


def headline(run: Run, now: float) -> str:
    """Name, state and one sentence."""
    num_open = sum(incident["is_open"] for incident in run.incidents)
    worst = health(run)
    text = "no open incident" if not num_open else f"{_count(num_open, 'incident')} open"
    if run.source == "log":
        text = f"{_count(len(run.incidents), 'incident')} found" if run.incidents else "no incident found"
    elif len(run.incidents) > num_open:
        text += f", {len(run.incidents) - num_open} closed"
    state = {"log": "replayed from a log", "known": "from the journal"}.get(run.state, run.state)
    return (
        f'<header class="card headline" data-health="{worst}"><div><h1>{escape(run.name)}</h1>'
        f'<p><b class="badge" data-kind="{worst}">{worst}</b> {escape(state)}, step {run.last_step:,}: {text}</p></div>'
        f"<dl><div><dt>written</dt><dd>{_time(now)}</dd></div>"
        f"<div><dt>from</dt><dd>{escape(run.where)}</dd></div></dl></header>"
    )


def tiles(run: Run, numbers: Measures) -> str:
    """The key numbers."""
    detail = run.detail or {}
    agent = detail.get("agent_share")
    cells = [
        ("final loss", *_end(numbers)),
        ("best loss", _number(numbers.best), _at(numbers.best_step)),
        ("best validation", _number(numbers.validation_best), _at(numbers.validation_best_step)),
        ("steps", f"{numbers.last_step:,}", _count(numbers.num_attempts, "attempt")),
        ("step time", _seconds(numbers.step_seconds), _count(detail["world"], "rank") if detail.get("world") else ""),
        ("learning rate", _number(numbers.lr_final), f"peak {numbers.lr_peak:.3g}" if numbers.lr_peak else ""),
        ("non-finite steps", f"{numbers.num_bad}", "NaN or infinity"),
        ("agent overhead", f"{100 * agent:.2g} %" if isinstance(agent, float) else "", "of a step"),
    ]
    body = "".join(
        f"<div><dt>{label}</dt><dd>{escape(value)}</dd><small>{escape(more)}</small></div>"
        for label, value, more in cells
        if value
    )
    return f'<dl class="tiles">{body}</dl>'


def incidents(run: Run) -> str:
    """Every incident with its diagnosis; open and severe ones expanded."""
    if not run.incidents:
        return "<p class='empty'>No incidents.</p>"
    latest = sorted(run.incidents, key=lambda i: (not i["is_open"], i["worst"] != "critical", -i["opened_step"]))
    return "".join(_incident(incident, is_expanded=place < 3) for place, incident in enumerate(latest))


def _incident(incident: Json, *, is_expanded: bool) -> str:
    state = escape(incident["state"] + (f": {incident['reason']}" if incident["reason"] else ""))
    facts = [("began", f"at step {incident['onset_step']:,}, detected at step {incident['opened_step']:,}")]
    if incident["witness"] is not None:
        facts.append(("first seen", witness(incident["witness"])))
    others = {m["rule"]: m["onset_step"] for m in incident["members"] if m["rule"] != incident["rule"]}
    if others:
        facts.append(("also", ", ".join(f"{rule} (step {step:,})" for rule, step in others.items())))
    ack = incident["acknowledged"]
    if ack is not None:
        facts.append(("acknowledged", f"{ack['by'] or 'unknown'}: {ack['reason']}"))
    elif (was := incident.get("outgrown")) is not None:
        facts.append(("acknowledgement expired", f"{was['by'] or 'unknown'}: {was['reason']}; it got worse since"))
    diagnosis = incident["diagnosis"]
    causes = "" if diagnosis is None else "".join(_diagnosis(diagnosis))
    return (
        f'<details class="incident" id="incident-{incident["number"]}" data-kind="{escape(incident["worst"])}"'
        f"{' open' if is_expanded else ''}><summary><b class='badge' data-kind='{escape(incident['worst'])}'>"
        f"{escape(incident['worst'])}</b> <b>{escape(incident['rule'])}</b> <span>{_prose(incident['summary'])}</span>"
        f"<small>#{incident['number']}, {state}</small></summary>{_pairs(facts)}{causes}</details>"
    )


def _diagnosis(diagnosis: Json) -> Iterator[str]:
    yield _pairs([("hunted", text) for text in diagnosis.get("hunts", ())])
    yield "<ol class='causes'>"
    for place, cause in enumerate(diagnosis["causes"]):
        lines = [("first", cause["first_fix"])] + [
            (label, cause[key].removeprefix("do not "))
            for label, key in (("do not", "avoid"), ("verify", "verify"))
            if place == 0 and cause[key]
        ]
        evidence = "".join(f"<li data-kind='for'>{_prose(text)}</li>" for text in cause["for"])
        evidence += "".join(f"<li data-kind='against'>{_prose(text)}</li>" for text in cause["against"])
        code = f"<pre>{escape(cause['code'])}</pre>" if place == 0 and cause["code"] else ""
        yield (
            f"<li>{_bar(cause['confidence'])}<div><b>{escape(cause['title'])}</b> <code>{escape(cause['id'])}</code>"
            f"<ul class='evidence'>{evidence}</ul>{_pairs(lines)}{code}</div></li>"
        )
    yield f"<li class='unknown'>{_bar(diagnosis['unknown'])}<div>unknown</div></li></ol>"
    refused = [(f"unlikely to help: {r['advice']}", r["why"]) for r in diagnosis["refusals"]]
    missing = [("missing data", text) for text in diagnosis["missing"]]
    numbers = [("numbers", text) for text in diagnosis.get("numbers", ())]
    yield _pairs(refused + missing + numbers)


def _bar(share: float) -> str:
    return f"<span class='share'><i style='width:{100 * share:.0f}%'></i><em>{_belief(share)}&nbsp;%</em></span>"


def _belief(share: float) -> str:
    """In whole percent; never 0 or 100 unless exact."""
    rounded = round(100 * share)
    if share > 0 and not rounded:
        return "&lt;1"
    return "&gt;99" if share < 1 and rounded == 100 else f"{rounded}"


def decisions(run: Run) -> str:
    """The rollback decisions with reasons and outcome, and the saved states."""
    if run.source == "log":
        return ""
    rows = "".join(
        f"<details><summary><b>{escape(d['summary'])}</b> <b class='badge'>{escape(d['state'])}</b>"
        f"<small>{_time(d['time'])}</small></summary><ul>{_items(d['explanation'])}</ul></details>"
        for d in reversed(run.decisions)
    )
    saved = "".join(
        f"<tr><td>{escape(entry['kind'])}</td><td class='number'>{entry['step']:,}</td><td><b class='badge' "
        f"data-kind='{'warning' if entry['health'] == 'tainted' else ''}'>{escape(entry['health'])}</b></td>"
        f"<td>{escape(entry['reason'] or '')}</td><td class='long'>{escape(entry['name'])}</td></tr>"
        for entry in run.ledger[:MAX_SAVED]
    )
    head = "<thead><tr><th>saved</th><th>step</th><th>health</th><th>why</th><th>where</th></tr></thead>"
    table = f"<table>{head}{saved}</table>"
    body = rows or "<p class='empty'>No rollback decisions.</p>"
    return _section("rollback", "Rollback", body + (table if saved else ""))


def layers(run: Run) -> str:
    """The placeholders of the layer charts, or the reason for none."""
    if run.latest_sample is None:
        why = "a log has no layer statistics" if run.source == "log" else "no sample was taken, or it was not kept"
        return f"<p class='empty'>No layer statistics: {why}.</p>"
    step, num = run.latest_sample["step"], run.latest_sample["num_layers"]
    return (
        f"<p class='about'>{num:,} parameter tensors from input to output, sampled at step {step:,}. "
        "Hover over a point for its name.</p>"
        "<div class='pair'><div><h3>gradient norm</h3><div class='chart' data-chart='layer:grad_norm'></div></div>"
        "<div><h3>update / weight per step</h3><div class='chart' data-chart='layer:update_ratio'></div></div>"
        "<div><h3>weight norm</h3><div class='chart' data-chart='layer:weight_norm'></div></div>"
        "<div><h3><i class='key' data-kind='critical'></i>dead and <i class='key' data-kind='warning'></i>saturated "
        "units, by module</h3><div class='chart' data-chart='modules'></div></div></div>"
    )


def settings(run: Run) -> str:
    if not run.settings:
        return "<p class='empty'>The run reported no settings.</p>"
    return _pairs(((name, shown(value)) for name, value in run.settings.items()), kind="wide")


def ranks(run: Run) -> str:
    """The ranks in their last known state."""
    known = (run.detail or {}).get("ranks", [])
    if not known:
        return ""
    listed = sorted(known, key=lambda r: (r["state"] in ("live", "left"), r["rank"]))[:MAX_RANKS]
    rows = "".join(
        f"<tr><td class='number'>{r['rank']}</td><td>{escape(r['host'])}</td><td>{escape(r['state'])}</td>"
        f"<td class='number'>{r['step']:,}</td><td>{escape(r['error'] or '')}</td></tr>"
        for r in listed
    )
    more = (
        f"<p class='about'>{len(known) - len(listed)} more ranks are not shown.</p>" if len(known) > len(listed) else ""
    )
    head = "<thead><tr><th>rank</th><th>host</th><th>state</th><th>step</th><th>error</th></tr></thead>"
    return _section("ranks", "Ranks", f"<table>{head}{rows}</table>{more}")


def events(run: Run) -> str:
    """Declared events, except validations, which are in the chart."""
    declared = [event for event in (run.detail or {}).get("events", []) if event["kind"] != "validation"]
    if not declared:
        return ""
    rows = "".join(
        f"<tr><td class='number'>{event['step']:,}</td><td>{escape(event['kind'])}</td>"
        f"<td>{escape(', '.join(f'{k} = {shown(v)}' for k, v in event['fields'].items()))}</td>"
        f"<td>{_time(event['time'])}</td></tr>"
        for event in declared[-MAX_EVENTS:]
    )
    return _section("events", "Events", f"<table><tbody>{rows}</tbody></table>")


def blindness(run: Run) -> str:
    """What was not monitored."""
    missing = list(run.cannot_see)
    if run.steps_per_row > 1:
        missing.append(f"single steps: the curves were read in buckets of up to {run.steps_per_row} steps")
    if not missing:
        return "<p class='empty'>Everything available was monitored.</p>"
    return f"<ul>{_items(missing)}</ul>"


def _section(name: str, title: str, body: str) -> str:
    return f"<section class='card' id='{name}'><h2>{title}</h2>{body}</section>"


def _pairs(rows: Iterable[tuple[str, str]], kind: str = "") -> str:
    body = "".join(f"<div><dt>{escape(name)}</dt><dd>{_prose(text)}</dd></div>" for name, text in rows)
    return f"<dl class='pairs {kind}'>{body}</dl>" if body else ""


def _prose(text: str) -> str:
    """As HTML; a number and its percent sign stay on one line."""
    return re.sub(r"(\d) %", "\\1&nbsp;%", escape(text))


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{_prose(text)}</li>" for text in texts)


def _count(num: int, what: str) -> str:
    return f"{num:,} {what}{'' if num == 1 else 's'}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _end(numbers: Measures) -> tuple[str, str]:
    """The final level, or that it is not finite, and a note."""
    if numbers.final is None and numbers.not_finite_since is not None:
        return "not finite", f"since step {numbers.not_finite_since:,}"
    began = "" if numbers.first is None else f"began at {numbers.first:.4g}"
    return ("" if numbers.final is None else f"{numbers.final.value:.4g}"), began


def _at(step: int | None) -> str:
    return "" if step is None else f"at step {step:,}"


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds(value)


def _time(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M UTC")
