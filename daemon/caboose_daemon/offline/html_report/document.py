"""The HTML report as one file that works offline: text, numbers, style and plotly's script.

Design
------
The text is rendered here, so that it can be read, searched and printed without a script; only the charts need one.
Numbers are JSON in a block that no browser runs, with `<` escaped, since names of layers and hosts and error texts come
from the training run. The content policy in its head forbids loading anything.
"""

import json
import time
from collections.abc import Iterator
from html import escape
from importlib.resources import files

from caboose_daemon.offline.comparing.measures import measure
from caboose_daemon.offline.html_report import passages
from caboose_daemon.offline.html_report.figures import figures
from caboose_daemon.offline.runs.run import PHASES, RATES, Run
from caboose_daemon.version import __version__

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def _charts(run: Run) -> Iterator[tuple[str, str]]:
    """The small charts with data, and their headings."""
    if "grad_norm" in run.curves:
        yield "grad_norm", "gradient norm"
    if "lr" in run.curves:
        yield "lr", "learning rate"
    for rate in RATES:
        if rate in run.curves:
            yield "throughput", f"throughput, {rate.partition('_')[0]} per second"
            break
    if "step_seconds" in run.curves:
        has_phases = any(phase in run.curves for phase in PHASES)
        yield "step_seconds", "step time by phase, mean over ranks" if has_phases else "step time"


def render(run: Run, now: float | None = None) -> str:
    """The report of one run."""
    now = time.time() if now is None else now
    own = files("caboose_daemon.offline.html_report") / "static"
    style, script = ((own / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    data = json.dumps(figures(run), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    plotly = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    small = "".join(
        f"<div><h3>{title}</h3><div class='chart' data-chart='{name}'></div>"
        f"<ul class='legend' data-legend='{name}'></ul></div>"
        for name, title in _charts(run)
    )
    body = [
        passages.headline(run, now),
        passages.tiles(run, measure(run, run.last_step, None)),
        "<section class='card' id='curves'><div class='head'><h2>Loss</h2><div class='tools'>"
        "<button id='scale' type='button' aria-pressed='false'>log scale</button>"
        "<button id='smooth' type='button' aria-pressed='false'>smooth</button></div></div>"
        f"<div class='chart tall' data-chart='loss'></div><ul class='legend' id='legend'></ul>"
        f"<div class='pair'>{small}</div></section>",
        f"<section class='card' id='incidents'><h2>Incidents</h2>{passages.incidents(run)}</section>",
        passages.decisions(run),
        f"<section class='card' id='layers'><h2>Layers</h2>{passages.layers(run)}</section>",
        passages.ranks(run),
        f"<section class='card' id='settings'><h2>Configuration</h2>{passages.settings(run)}</section>",
        passages.events(run),
        f"<section class='card' id='blind'><h2>Not monitored</h2>{passages.blindness(run)}</section>",
    ]
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="content-security-policy" content="{POLICY}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta name='color-scheme' content='light dark'>"
        f"<title>{escape(run.name)}: Caboose report</title><style>{style}</style></head><body>"
        "<nav><b>Caboose</b><a href='#curves'>Loss</a><a href='#incidents'>Incidents</a><a href='#layers'>Layers</a>"
        "<a href='#settings'>Configuration</a><a href='#blind'>Not monitored</a>"
        "<button id='theme' type='button'>light or dark</button></nav>"
        f"<main>{''.join(body)}</main><footer>Caboose {__version__}. This file works offline.</footer>"
        "<noscript><p class='empty'>The charts need JavaScript; the text does not.</p></noscript>"
        f"<script type='application/json' id='data'>{data}</script><script>{plotly}</script><script>{script}</script>"
        "</body></html>\n"
    )
