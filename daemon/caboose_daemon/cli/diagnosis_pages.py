"""The terminal output of `caboose diagnose`."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from caboose_daemon.format import witness

COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan", "ok": "green"}
MAX_REMEDIES = 3
"""Further remedies shown; JSON has all."""
BAR = 20
"""Characters of a confidence of 100 %."""


def page(answer: dict[str, Any], width: int) -> RenderableType:
    """One job's or log's incidents with their causes."""
    parts: list[RenderableType] = [_head(answer)]
    for incident in answer["incidents"]:
        parts += [Text(), _title(incident), Padding(_facts(incident), (0, 0, 0, 2))]
        if incident["diagnosis"] is not None:
            parts.append(Padding(_causes(incident["diagnosis"], width), (1, 0, 0, 2)))
    if answer.get("guided"):
        parts.append(Padding(_guided(answer["guided"]), (1, 0, 0, 2)))
    return Group(*parts, Text())


def _head(answer: dict[str, Any]) -> Text:
    num, past = answer["num_open"], len(answer["incidents"])
    if num:
        verdict = (f"{num} open incident{'s' if num > 1 else ''}", COLOURS.get(answer["health"], ""))
    else:
        verdict = ("no open incident" + ("; past incidents:" if past else ""), "green")
    state = "replayed" if answer["state"] == "log" else answer["state"]
    return Text.assemble((answer["job"], "bold"), f"  {state}, step {answer['step']:,}: ", verdict)


def _title(incident: dict[str, Any]) -> Text:
    colour = COLOURS[incident["severity"] if incident["is_open"] else "info"]
    state = incident["state"] + (f": {incident['reason']}" if incident["reason"] else "")
    return Text.assemble(
        (incident["id"], "bold"),
        "  ",
        (f"{incident['rule']}  {incident['severity'] if incident['is_open'] else incident['worst']}", colour),
        (f"  {state}", "dim"),
    )


def _facts(incident: dict[str, Any]) -> Table:
    table = _table()
    table.add_row("", incident["summary"])
    began, seen = incident["onset_step"], incident["opened_step"]
    again = incident["num_reopened"]
    stretch = f", in {' and '.join(incident['regimes']).replace('_', ' ')}" if incident["regimes"] else ""
    back = f"; reopened {again} time{'s' if again > 1 else ''}" if again else ""
    table.add_row("began", f"at step {began}, detected at step {seen}{stretch}{back}")
    if incident["witness"] is not None:
        table.add_row("first seen", witness(incident["witness"]))
    others = {m["rule"]: m["onset_step"] for m in incident["members"] if m["rule"] != incident["rule"]}
    if others:
        table.add_row("with it", ", ".join(f"{rule} (step {step})" for rule, step in others.items()))
    table.add_row("read", f"caboose rules show {incident['rule']}, or docs/rules.md#{incident['rule']}")
    ack = incident["acknowledged"]
    if ack is not None:
        table.add_row("acknowledged", f"{ack['by'] or 'unknown user'}: {ack['reason']}")
    elif (was := incident.get("outgrown")) is not None:
        table.add_row("was acknowledged", f"{was['by'] or 'unknown user'}, before it got worse: {was['reason']}")
    return table


def _causes(diagnosis: dict[str, Any], width: int) -> Group:
    parts: list[RenderableType] = []
    for place, cause in enumerate(diagnosis["causes"]):
        parts.append(_bar(cause["confidence"], cause["title"], cause["id"]))
        parts.append(Padding(_cause(cause, is_first=place == 0), (0, 0, 0, 7)))
    parts.append(_bar(diagnosis["unknown"], "unknown", ""))
    lines = [*_lines("hunted", diagnosis.get("hunts", ()))]
    lines += [*_lines("unlikely to help", (f"{r['advice']}: {r['why']}" for r in diagnosis["refusals"]))]
    lines += _lines("missing data", diagnosis["missing"])
    lines += _lines("numbers", diagnosis.get("numbers", ()))
    if lines:
        table = _table()
        for name, text in lines:
            table.add_row(name, text)
        parts += [Text(), table]
    return Group(*parts)


def _guided(guided: dict[str, Any]) -> Table:
    """The questions with their answers, and what to check beside the causes."""
    table = _table()
    words = {True: "yes", False: "no"}
    for row in guided["questions"]:
        answer = row["answer"]
        table.add_row("asked", f"{row['question']} {words.get(answer, answer) if isinstance(answer, bool) else answer}")
    for name, text in (*_lines("check", guided["checks"]), ("note", guided["referral"])):
        if text:
            table.add_row(name, text)
    return table


def _bar(confidence: float, title: str, name: str) -> Text:
    full = round(BAR * confidence)
    style = "bold" if name else "dim"
    return Text.assemble(
        (f"{100 * confidence:3.0f} %  ", style),
        ("█" * full, "cyan" if name else "dim"),
        ("░" * (BAR - full), "dim"),
        f"  {title}" if name else (f"  {title}", "dim"),
        (f"  {name}", "dim"),
    )


def _cause(cause: dict[str, Any], *, is_first: bool) -> Table:
    table = _table()
    for text in cause["for"]:
        table.add_row(Text("+", "green"), text)
    for text in cause["against"]:
        table.add_row(Text("-", "red"), text)
    table.add_row("do first", Text(cause["first_fix"], "bold" if is_first else ""))
    if is_first:
        for name, key in (("line", "code"), ("do not", "avoid"), ("verify", "verify")):
            if cause[key]:
                table.add_row(name, Text(cause[key].removeprefix("do not "), "cyan" if key == "code" else ""))
        for remedy in cause.get("also", ())[:MAX_REMEDIES]:
            table.add_row("or", remedy["what"])
            table.add_row("", Text(remedy["code"], "cyan"))
    return table


def _lines(name: str, texts: Any) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(texts):
        yield ("" if number else name), text


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table
