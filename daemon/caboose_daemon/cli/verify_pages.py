"""The terminal output of `caboose verify`."""

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from caboose_daemon.format import figure, plural

Json = dict[str, Any]
HEADLINES = {
    "helped": ("it helped", "bold green"),
    "hurt": ("it made things worse", "bold red"),
    "mixed": ("it helped in one way and hurt in another", "bold yellow"),
    "faster": ("steps take less time; nothing else is clearly better", "bold yellow"),
    "same": ("no relevant difference so far", "bold"),
    "unknown": ("undecided, too little evidence", "bold yellow"),
}
UNITS = {
    "loss slope": "%/1,000 steps",
    "not finite": "/1,000 steps",
    "incidents": "/1,000 steps",
    "step time": "s",
}
MEANINGS = {
    "better": ("✓ better", "green"),
    "worse": ("✗ worse", "red"),
    "same": ("= same", ""),
    "noted": ("~ changed", "cyan"),
    "unknown": ("? undecided", "dim"),
}


def page(answer: Json) -> RenderableType:
    """The verdict, its numbers, and what else may explain them."""
    headline, style = HEADLINES[answer["verdict"]]
    headline += _by_what(answer)
    head = Text.assemble((answer["job"], "bold"), f"  {change_in_words(answer['change'])}: ", (headline, style))
    sides = (
        f"{plural(answer['num_before'], 'step')} before, {answer['num_after']:,} after; each line at 99 % confidence"
    )
    parts: list[RenderableType] = [
        Text(),
        head,
        Text(f"  {sides}", "dim"),
        Padding(_table(answer), (1, 0, 0, 2)),
    ]
    reasons = _reasons(answer)
    if reasons:
        parts += [Text("  why undecided", "bold"), *reasons]
    if answer["more_steps"]:
        parts.append(Text(f"  run it again in about {plural(answer['more_steps'], 'step')}", "bold"))
    if answer["caveats"]:
        parts.append(Text("  caveats", "bold"))
        parts += [Padding(Text(f"- {caveat}"), (0, 0, 0, 4)) for caveat in answer["caveats"]]
    return Group(*parts, Text())


def _by_what(answer: Json) -> str:
    """The quantities that changed, and whether the loss is undecided."""
    named = [row["quantity"] for row in answer["quantities"] if row["meaning"] in ("better", "worse")]
    if not named:
        return ""
    loss = answer["quantities"][0]["meaning"]
    if answer["verdict"] == "faster":
        return " (loss unchanged)" if loss == "same" else " (loss undecided)"
    is_undecided = loss == "unknown" and "loss slope" not in named
    return f" ({', '.join(named)}{'; loss undecided' if is_undecided else ''})"


def change_in_words(change: Json) -> str:
    """The change and its step."""
    fields = {name: value for name, value in change["fields"].items() if name not in ("text", "by")}
    details = [str(change["fields"]["text"])] if change["fields"].get("text") else []
    details += [", ".join(f"{name}={figure(v) if isinstance(v, float) else v}" for name, v in fields.items())]
    what = f" ({'; '.join(filter(None, details))})" if any(details) else ""
    return f"{change['kind']} after step {change['step']:,}{what}"


def _table(answer: Json) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in ("before", "after", "by the change"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in answer["quantities"]:
        words, style = MEANINGS[row["meaning"]]
        is_slope = row["quantity"] == "loss slope"
        named = Text.assemble(row["quantity"], (f" {UNITS.get(row['quantity'], '')}", "dim"))
        before, after = (_value(row[side], is_share=is_slope) for side in ("before", "after"))
        table.add_row(Text(words, style), named, before, after, _range(row))
    return table


def _reasons(answer: Json) -> list[RenderableType]:
    """Why some quantities are undecided, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for row in answer["quantities"]:
        if row["meaning"] == "unknown":
            reasons.setdefault(row["why"], []).append(row["quantity"])
    return [
        Padding(Text.assemble(", ".join(names), (f": {why}", "dim")), (0, 0, 0, 4)) for why, names in reasons.items()
    ]


def _value(value: float | None, *, is_share: bool) -> str:
    return "-" if value is None else f"{100 * value:+.3g}" if is_share else f"{value:.3g}"


def _range(row: Json) -> str:
    """The range of the possible effect."""
    if row["relative_change"] is None:
        return ""
    low, high = (100 * share for share in row["relative_change"])
    return f"{low:+.3g} .. {high:+.3g} %" if max(abs(low), abs(high)) >= 0.01 else "0 %"
