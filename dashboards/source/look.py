"""The style that all dashboards share: colours, severities, thresholds, links.

Design
------
Colours are those of Okabe and Ito, which people with any colour blindness can distinguish. Colour is never the only
signal: health is also a word, a threshold is also a line. Where the number of curves has no limit (ranks, layers,
jobs), a curve is coloured by its value from blue over yellow to red, so that one outlier is visible among five hundred.
"""

import re
from collections.abc import Iterable

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog import builder as cogbuilder
from grafana_foundation_sdk.models import dashboard as model

from caboose_daemon.out.metrics.table import ENTRIES
from caboose_daemon.rules import RULES

BLUE, ORANGE, GREEN, YELLOW = "#0072B2", "#E69F00", "#009E73", "#F0E442"
SKY, VERMILLION, PURPLE, GREY = "#56B4E9", "#D55E00", "#CC79A7", "#999999"
CURVES = (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILLION, BLUE, GREY)
"""In the order in which curves get them; the first is the main curve of a panel."""
FINE, NOTED, WARNED, PAGED = BLUE, SKY, ORANGE, VERMILLION
PLAIN = "transparent"
"""The colour of normal table cells: only cells that need attention are coloured."""
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
RUNBOOKS = "${runbooks}"
"""A hidden variable of every dashboard, with the address at which the daemon serves them."""
UIDS = {
    name: f"caboose-{name}" for name in ("fleet", "run", "layers", "ranks", "rollbacks", "itself")
}  # links use them; never change one
KEPT = "${datasource:queryparam}&${__url_time_range}"
"""Parameters that a link keeps: data source and time range."""
METRIC = re.compile(r"\bcaboose_\w+")


def alert_name(rule: str) -> str:
    """The name of a rule's alert and runbook."""
    return "Caboose" + "".join(word.capitalize() for word in rule.split("_"))


ALERTS = {rule.name: alert_name(rule.name) for rule in RULES}


def runbooks(*names: str) -> list[cogbuilder.Builder[model.DashboardLink]]:
    """Links from a panel to runbooks, by the name of a rule or of an alert on Caboose itself."""
    return [
        build.DashboardLink(f"Runbook: {name}")
        .type(model.DashboardLinkType.LINK)
        .url(f"{RUNBOOKS}/{name if name.startswith('Caboose') else ALERTS[name]}.md")
        .target_blank(True)
        for name in names
    ]


def to_dashboard(title: str, name: str, **variables: str) -> build.DashboardLink:
    """A link to another dashboard with its variables set and the same time range."""
    chosen = "&".join(f"var-{key}={value}" for key, value in variables.items())
    return build.DashboardLink(title).url(f"/d/{UIDS[name]}?{chosen}&{KEPT}")


def thresholds(*steps: tuple[float, str], base: str = FINE) -> build.ThresholdsConfig:
    """The colour `base` below the first value, then each colour from its value on."""
    values = [model.Threshold(value=None, color=base), *(model.Threshold(value=v, color=c) for v, c in steps)]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(values)


def words(**meanings: tuple[str, str]) -> list[model.ValueMapping]:
    """Numbers shown as words: `_0=("fine", FINE)`."""
    options = {
        key.removeprefix("_"): model.ValueMappingResult(text=text, color=color, index=index)
        for index, (key, (text, color)) in enumerate(meanings.items())
    }
    return [model.ValueMap(options=options)]


def mapped(**texts: str) -> list[model.ValueMapping]:
    """Words shown as other words, or in a colour of the palette."""
    options = {
        key: model.ValueMappingResult(color=value, index=index)
        if value.startswith("#")
        else model.ValueMappingResult(text=value, index=index)
        for index, (key, value) in enumerate(texts.items())
    }
    return [model.ValueMap(options=options)]


HEALTH = words(_0=("fine", FINE), _1=("info", NOTED), _2=("warning", WARNED), _3=("CRITICAL", PAGED))
INCIDENTS = words(_0=("acknowledged", GREY), _1=("info", NOTED), _2=("warning", WARNED), _3=("CRITICAL", PAGED))
YES_IS_GOOD = words(_0=("no", PAGED), _1=("yes", FINE))
YES_IS_BAD = words(_0=("no", FINE), _1=("YES", PAGED))
RUNNING = words(_0=("ended", GREY), _1=("running", FINE))
FAILED_CELL = words(_0=("no", PLAIN), _1=("YES", PAGED))
RUNNING_CELL = words(_0=("ended", PLAIN), _1=("running", PLAIN))


def described(text: str, expressions: Iterable[str]) -> str:
    """The description of a panel: its own text, else that of its metrics; then the metrics and their units."""
    names = dict.fromkeys(name for expression in expressions for name in METRIC.findall(expression))
    paragraphs = [text] if text else [f"{ENTRIES[name].help}. {ENTRIES[name].tells.rstrip('.')}." for name in names]
    units = ", ".join(f"{name} ({ENTRIES[name].unit})" for name in names)
    return "\n\n".join([*paragraphs, f"Metrics: {units}"])
