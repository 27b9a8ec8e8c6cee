"""Draws each dashboard from a real Prometheus on one picture: a contact sheet, to see whether it tells the story.

    make pictures        # or: PYTHONPATH=tests python -m support.contact_sheet docs/images/dashboards [NAME...]

Ranks and Layers show a real run of four ranks (`support.real_ranks`), the others the fleet of `support.fleet`.

There is no Grafana here: Chromium lays the panels out on the dashboard's own grid, and plotly draws what their queries
answer, with the committed titles, units, colours, mappings and thresholds. It shows what the queries say and what a
panel is for, not how Grafana looks to the pixel.
"""

import html
import json
import math
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from support.browser import Watched, running_browser
from support.dashboards import chosen, dashboards, filled
from support.fleet import BIG, FOUR
from support.prometheus import Store
from support.watched_fleet import WatchedFleet, watched_fleet, watched_ranks

PICTURE_SECONDS, PICTURE_STEPS = 150.0, 300
OF_REAL_RANKS = ("caboose-ranks", "caboose-layers")
WIDTH, ROW_HEIGHT = 1500, 34
NOTHING = "no data"
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
SCALE = ["#2166AC", "#67A9CF", "#F0E442", "#EF8A62", "#B2182B"]
"""Blue over yellow to red, as Grafana colours curves by value."""
GOOD_SCALE = ["#F0E442", "#A6BDDB", "#67A9CF", "#3690C0", "#2166AC"]
"""Yellow to blue, where the lowest value is the one to look at."""
STYLE = """
body { margin: 0; padding: 14px; background: #111217; color: #d8d9da; font: 13px 'DejaVu Sans', sans-serif; }
h1 { font-size: 19px; margin: 2px 0 4px; } p { margin: 0 0 10px; color: #9fa1a6; }
.grid { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: ROWpx; width: WIDTHpx; gap: 6px; }
.row { font-weight: bold; padding-top: 8px; font-size: 14px; }
.panel { background: #181b1f; border: 1px solid #2c3235; border-radius: 3px; overflow: hidden; position: relative; }
.panel > b { display: block; padding: 5px 8px 2px; font-size: 12px; font-weight: 600; white-space: nowrap; }
.plot { position: absolute; inset: 24px 2px 2px 2px; }
.number { position: absolute; inset: 24px 0 0 0; display: flex; align-items: center; justify-content: center;
  font-size: 25px; font-weight: 600; text-align: center; }
table { border-collapse: collapse; width: 100%; font-size: 12px; } td, th { padding: 3px 7px; text-align: left;
  white-space: nowrap; border-top: 1px solid #2c3235; } th { color: #6e9fff; font-weight: 500; }
""".replace("ROW", str(ROW_HEIGHT)).replace("WIDTH", str(WIDTH))
DRAW = """
for (const [id, data, layout] of FIGURES) {
  Plotly.newPlot(id, data, layout, {staticPlot: true, responsive: false});
}
document.body.dataset.drawn = FIGURES.length;
"""


class Sheet:
    """One dashboard of one job, as it stood when the story ended."""

    def __init__(self, fleet: WatchedFleet, store: Store, dashboard: Mapping[str, Any], job: str) -> None:
        self._fleet = fleet
        self._store = store
        self._dashboard = dashboard
        is_many = any(v["name"] == "job" and v.get("multi") for v in dashboard["templating"]["list"])
        self._variables = chosen(".*" if is_many else job, seconds=4.0)
        self._figures: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = []
        self._marks = self._annotations()
        self.empty: list[str] = []
        """Panels that had nothing to show."""
        self.page = self._page()
        """The whole sheet as a page that needs nothing from anywhere."""

    def _page(self) -> str:
        cells = [self._cell(panel) for panel in self._dashboard["panels"]]
        script = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
        figures = json.dumps(self._figures).replace("NaN", "null").replace("</", "<\\/")
        head = f"<h1>{html.escape(self._dashboard['title'])}</h1><p>{html.escape(self._dashboard['description'])}</p>"
        return (
            f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{head}<div class=grid>{''.join(cells)}</div>"
            f"<script>{script}</script><script>const FIGURES = {figures};{DRAW}</script>"
        )

    def _cell(self, panel: Mapping[str, Any]) -> str:
        at = panel["gridPos"]
        place = f"grid-column: {at['x'] + 1} / span {at['w']}; grid-row: {at['y'] + 1} / span {at['h']}"
        title = html.escape(panel["title"])
        if panel["type"] == "row":
            return f'<div class=row style="{place}">{title}</div>'
        draw = {"stat": self._number, "table": self._table, "heatmap": self._heat, "state-timeline": self._states}
        body = draw.get(panel["type"], self._curves)(panel)
        if not body:
            self.empty.append(panel["title"])
            body = f"<div class=number>{NOTHING}</div>"
        return f'<div class=panel style="{place}"><b>{title}</b>{body}</div>'

    # What the queries answer

    def _over(self, expression: str) -> list[dict[str, Any]]:
        return self._store.over(filled(expression, self._variables), self._fleet.start, self._fleet.stop, 1.0)

    def _now(self, expression: str) -> list[dict[str, Any]]:
        return self._store.now(filled(expression, self._variables), self._fleet.stop)

    def _points(self, series: Mapping[str, Any]) -> tuple[list[float], list[float | None]]:
        """One value for every second: a gap where there was none, or none that is finite."""
        known = {round(time - self._fleet.start): _number(value) for time, value in series["values"]}
        seconds = list(range(int(self._fleet.stop - self._fleet.start) + 1))
        return [float(second) for second in seconds], [known.get(second) for second in seconds]

    def _annotations(self) -> list[dict[str, Any]]:
        """Lines where an incident began, as Grafana marks them."""
        marks = []
        asked = (one for one in self._dashboard["annotations"].get("list", []) if "expr" in one)
        for annotation in asked:
            for series in self._over(annotation["expr"]):
                x = series["values"][0][0] - self._fleet.start
                line = {"color": annotation["iconColor"], "width": 1, "dash": "dot"}
                marks.append({"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line})
        return marks

    # The kinds of panels

    def _number(self, panel: Mapping[str, Any]) -> str:
        defaults, (target,) = panel["fieldConfig"]["defaults"], panel["targets"]
        found = self._now(target["expr"])
        if not found:
            return (
                f"<div class=number>{html.escape(defaults.get('noValue', ''))}</div>"
                if "cause" in target["expr"]
                else ""
            )
        if panel["options"]["textMode"] == "name":
            names = ", ".join(_legend(target["legendFormat"], series["metric"]) for series in found)
            return f"<div class=number>{html.escape(names)}</div>"
        value = float(found[0]["value"][1])
        text, color = said(value, defaults)
        ground = f"background: {color}; color: #fff" if panel["options"]["colorMode"] == "background" else ""
        return f'<div class=number style="{ground}">{html.escape(text)}</div>'

    def _table(self, panel: Mapping[str, Any]) -> str:
        (names,) = [t["options"]["renameByName"] for t in panel["transformations"] if t["id"] == "organize"]
        labels = [name for name in names if not name.startswith("Value")]
        rows: list[dict[str, Any]] = []
        for target in panel["targets"]:
            value_name = f"Value #{target['refId']}" if f"Value #{target['refId']}" in names else "Value"
            for series in self._now(target["expr"]):
                _merge(rows, {label: series["metric"][label] for label in labels if label in series["metric"]}).update(
                    {value_name: float(series["value"][1])}
                )
        settings = {
            override["matcher"]["options"]: {p["id"]: p["value"] for p in override["properties"]}
            for override in panel["fieldConfig"]["overrides"]
        }
        sorting = [
            name for name, title in names.items() if panel["options"].get("sortBy", [{}])[0].get("displayName") == title
        ]
        ordered = sorted(rows, key=lambda row: [-row.get(name, -math.inf) for name in sorting])
        cells = "".join(
            "<tr>" + "".join(_cell(row.get(name), settings.get(title, {})) for name, title in names.items()) + "</tr>"
            for row in ordered
        )
        head = "".join(f"<th>{html.escape(title)}</th>" for title in names.values())
        return f"<table><tr>{head}</tr>{cells}</table>" if rows else ""

    def _curves(self, panel: Mapping[str, Any]) -> str:
        defaults = panel["fieldConfig"]["defaults"]
        custom, is_by_value = defaults["custom"], defaults["color"]["mode"].startswith("continuous")
        traces: list[dict[str, Any]] = []
        for target in panel["targets"]:
            for series in self._over(target["expr"]):
                x, y = self._points(series)
                if any(value is not None for value in y):
                    name = _legend(target["legendFormat"], series["metric"])
                    traces.append({"x": x, "y": y, "name": name, **_drawn(panel, target["refId"], name, custom)})
        if not traces:
            return ""
        if is_by_value:
            _color_by_value(traces, GOOD_SCALE if defaults["color"]["mode"] == "continuous-YlBl" else SCALE)
        layout = _layout(panel, len(traces))
        steps = [step for step in defaults["thresholds"]["steps"] if step["value"] is not None]
        highest = max(value for trace in traces for value in trace["y"] if value is not None)
        lines = [
            {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": s["value"], "y1": s["value"],
             "line": {"color": s["color"], "width": 1, "dash": "dash"}}
            for s in steps if s["value"] <= 2 * highest or s is steps[0]
        ]  # fmt: skip
        return self._figure(traces, {**layout, "shapes": [*lines, *self._marks], "barmode": "stack"})

    def _heat(self, panel: Mapping[str, Any]) -> str:
        (target,) = panel["targets"]
        rows = {_legend(target["legendFormat"], s["metric"]): self._points(s) for s in self._over(target["expr"])}
        if not rows:
            return ""
        limits = {f"z{end}": v for end in ("min", "max") if (v := panel["options"]["color"].get(end)) is not None}
        names = sorted(rows)
        trace = {
            "type": "heatmap", "x": rows[names[0]][0], "y": names, "z": [rows[name][1] for name in names],
            "colorscale": "Cividis", "colorbar": {"thickness": 9, "tickfont": {"size": 9}}, **limits,
        }  # fmt: skip
        layout = _layout(panel, 0)
        layout["yaxis"].update(
            type="category", title={"text": panel["options"]["yAxis"]["axisLabel"], "font": {"size": 10}}
        )
        return self._figure([trace], layout)

    def _states(self, panel: Mapping[str, Any]) -> str:
        (target,) = panel["targets"]
        defaults, traces = panel["fieldConfig"]["defaults"], []
        for series in sorted(self._over(target["expr"]), key=lambda s: _legend(target["legendFormat"], s["metric"])):
            name = _legend(target["legendFormat"], series["metric"])
            for second, value in zip(*self._points(series), strict=True):
                if value is not None:
                    color = said(value, defaults)[1]
                    traces.append((name, second, color))
        if not traces:
            return ""
        bars = [
            {"type": "bar", "orientation": "h", "y": [n for n, _, c in traces if c == color], "width": 0.8,
             "x": [1 for _, _, c in traces if c == color], "base": [s for _, s, c in traces if c == color],
             "marker": {"color": color, "line": {"width": 0}}}
            for color in dict.fromkeys(color for _, _, color in traces)
        ]  # fmt: skip
        layout = _layout(panel, 0)
        layout["yaxis"].update(type="category", automargin=True)
        return self._figure(bars, {**layout, "barmode": "overlay", "bargap": 0})

    def _figure(self, traces: list[dict[str, Any]], layout: dict[str, Any]) -> str:
        name = f"plot{len(self._figures)}"
        self._figures.append((name, traces, layout))
        return f'<div class=plot id="{name}"></div>'


def _merge(rows: list[dict[str, Any]], labels: dict[str, str]) -> dict[str, Any]:
    """The row whose labels agree with these, or a new one, as Grafana's *merge* does it."""
    for row in rows:
        if all(row.get(label, value) == value for label, value in labels.items()):
            row.update(labels)
            return row
    rows.append(dict(labels))
    return rows[-1]


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _legend(pattern: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), pattern)


def said(value: Any, settings: Mapping[str, Any]) -> tuple[str, str]:
    """A value as Grafana would say it, with its mapping, unit and colour."""
    steps = settings.get("thresholds", {}).get("steps", [])
    numeric = isinstance(value, float)
    reached = [s["color"] for s in steps if s["value"] is None or (numeric and value >= s["value"])]
    color = reached[-1] if reached else ""
    key = f"{value:g}" if numeric else str(value)
    for mapping in settings.get("mappings", []):
        result = mapping["options"].get(key)
        if result:
            return result.get("text", key), result.get("color", color)
    return (_with_unit(value, settings.get("unit", ""), settings.get("decimals")) if numeric else str(value)), color


def _with_unit(value: float, unit: str, decimals: int | None) -> str:
    if not math.isfinite(value):
        return str(value)
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "sci":
        return f"{value:.2e}"
    if unit == "s":
        return (
            f"{1000 * value:.3g} ms" if abs(value) < 1 else f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"
        )
    if unit == "locale" or (unit == "none" and decimals is None):
        return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"
    for size, prefix in PREFIXES:
        if unit in ("short", "bytes", "Bps") and abs(value) >= size:
            return f"{value / size:.3g} {prefix}{ {'bytes': 'B', 'Bps': 'B/s'}.get(unit, '') }"
    return f"{value:.{decimals}f}" if decimals is not None else f"{value:.4g}"


def _cell(value: Any, settings: Mapping[str, Any]) -> str:
    if value is None:
        return "<td></td>"
    text, color = said(value, settings)
    ground = f' style="background: {color}; color: #fff"' if "custom.cellOptions" in settings and color else ""
    return f"<td{ground}>{html.escape(text)}</td>"


def _drawn(panel: Mapping[str, Any], ref: str, name: str, custom: Mapping[str, Any]) -> dict[str, Any]:
    """Colour and line as the panel's overrides say: those by name after those by query."""
    settings: dict[str, Any] = {}
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] in (ref, name):
            settings.update({p["id"]: p["value"] for p in override["properties"]})
    color = settings.get("color", {}).get("fixedColor", "#56B4E9")
    if custom.get("drawStyle") == "bars":
        return {"type": "bar", "marker": {"color": color, "line": {"width": 0}}}
    dash = "dot" if "custom.lineStyle" in settings else "solid"
    line = {"color": color, "width": 1 if dash == "dot" else 1.8, "dash": dash}
    stack = {"stackgroup": "all"} if custom.get("stacking", {}).get("mode") == "normal" else {}
    return {"type": "scatter", "mode": "lines", "line": line, "connectgaps": bool(custom["spanNulls"]), **stack}


def _color_by_value(traces: list[dict[str, Any]], scale: Sequence[str]) -> None:
    lasts = [next((v for v in reversed(trace["y"]) if v is not None), 0.0) for trace in traces]
    low, high = min(lasts), max(lasts)
    for trace, last in zip(traces, lasts, strict=True):
        share = (last - low) / (high - low) if high > low else 0.0
        color = scale[min(len(scale) - 1, int(share * len(scale)))]
        trace["line" if trace["type"] == "scatter" else "marker"]["color"] = color


def _layout(panel: Mapping[str, Any], num_curves: int) -> dict[str, Any]:
    defaults, at = panel["fieldConfig"]["defaults"], panel["gridPos"]
    axis = {"gridcolor": "#2c3235", "zeroline": False, "tickfont": {"size": 10}}
    y: dict[str, Any] = {**axis, "automargin": True}
    if defaults["unit"] == "percentunit" and panel["type"] == "timeseries":
        y["tickformat"] = ".3~%"
    if defaults.get("custom", {}).get("scaleDistribution", {}).get("type") == "log":
        y.update(type="log", dtick=None, exponentformat="e", nticks=6)
    elif "min" in defaults or "max" in defaults:
        y["rangemode"] = "tozero"
        if "max" in defaults:
            y["range"] = [defaults.get("min", 0), 1.04 * defaults["max"]]
    return {
        "width": WIDTH * at["w"] // 24 - 14,
        "height": (ROW_HEIGHT + 6) * at["h"] - 36,
        "margin": {"l": 44, "r": 10, "t": 4, "b": 20},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "#c7c8c9", "size": 10},
        "xaxis": {**axis, "ticksuffix": " s"},
        "yaxis": y,
        "showlegend": 0 < num_curves <= 10,
        "legend": {"orientation": "h", "y": -0.12, "font": {"size": 9}},
    }


def draw(browser: Browser, sheet: Sheet, path: Path) -> list[str]:
    """Writes the picture; returns what the page complained about."""
    context = browser.new_context(viewport={"width": WIDTH + 28, "height": 900}, device_scale_factor=1)
    try:
        watched = Watched(context.new_page())
        watched.page.set_content(sheet.page, timeout=120_000)
        watched.page.wait_for_selector("body[data-drawn]", timeout=120_000)
        path.parent.mkdir(parents=True, exist_ok=True)
        watched.page.screenshot(path=path, full_page=True, timeout=120_000)
        return watched.complaints
    finally:
        context.close()


def main() -> None:
    """Plays the fleet for some minutes and writes one picture per dashboard."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/dashboards")
    wanted = [uid for uid in dashboards() if not sys.argv[2:] or uid.removeprefix("caboose-") in sys.argv[2:]]
    real = [uid for uid in wanted if uid in OF_REAL_RANKS]
    seconds, steps = PICTURE_SECONDS, PICTURE_STEPS
    with tempfile.TemporaryDirectory() as home:
        if real:
            with watched_ranks(Path(home) / "ranks", seconds=seconds, steps=2 * steps) as fleet:
                _draw_all(fleet, real, FOUR, folder)
        if len(real) < len(wanted):
            with watched_fleet(Path(home) / "fleet", seconds=seconds, steps=steps, with_victoria=False) as fleet:
                _draw_all(fleet, [uid for uid in wanted if uid not in real], BIG, folder)


def _draw_all(fleet: WatchedFleet, wanted: list[str], job: str, folder: Path) -> None:
    with running_browser() as browser:
        for uid in wanted:
            draw(browser, Sheet(fleet, fleet.prometheus, dashboards()[uid], job), folder / f"{uid}.png")


if __name__ == "__main__":
    main()
