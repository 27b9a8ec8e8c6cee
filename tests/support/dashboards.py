"""The committed dashboards as tests read them: their panels, and every query, with Grafana's variables filled in."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parents[2] / "dashboards" / "grafana"
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::\w+)?\}|([A-Za-z_]\w*))")
LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), *(?P<label>\w+)\)")
Kind = Literal["range", "instant", "variable", "annotation"]


@dataclass(frozen=True)
class Query:
    """One question a dashboard asks its data source."""

    dashboard: str
    place: str
    """The panel's title, or the variable's or annotation's name."""
    kind: Kind
    expression: str
    """PromQL; of a variable, the selector whose label values are asked for."""
    legend: str = ""
    label: str = ""
    """Of a variable: whose values."""
    columns: tuple[str, ...] = ()
    """Of a table: the labels it shows, among those of its other queries."""
    ref: str = ""

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.place} {self.ref}".rstrip().replace("/", " ")

    @property
    def is_over_time(self) -> bool:
        """Whether it is asked for a range."""
        return self.kind in ("range", "annotation")


def dashboards() -> dict[str, dict[str, Any]]:
    """All dashboards by uid."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    return {dashboard["uid"]: dashboard for dashboard in read}


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Its panels without the rows' headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> Iterator[Query]:
    """Every query of every panel, variable and annotation."""
    for uid, dashboard in dashboards().items():
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                match = LABEL_VALUES.fullmatch(variable["query"])
                assert match, variable["query"]
                yield Query(uid, variable["name"], "variable", match["selector"], label=match["label"])
        for annotation in dashboard["annotations"].get("list", []):
            if "expr" not in annotation:
                continue  # asks Grafana itself
            legend = annotation["titleFormat"] + annotation["textFormat"]
            yield Query(uid, annotation["name"], "annotation", annotation["expr"], legend)
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield of_target(uid, panel, target)


def of_target(uid: str, panel: Mapping[str, Any], target: Mapping[str, Any]) -> Query:
    """One query of a panel."""
    kind: Kind = "range" if target.get("range") else "instant"
    shown = [t["options"].get("renameByName", {}) for t in panel.get("transformations", []) if t["id"] == "organize"]
    columns = tuple(name for names in shown for name in names if not name.startswith("Value"))
    legend = target.get("legendFormat", "")
    return Query(uid, panel["title"], kind, target["expr"], legend, columns=columns, ref=target["refId"])


def filled(expression: str, variables: Mapping[str, str]) -> str:
    """The expression as Grafana sends it; KeyError names a variable that nobody sets."""
    return VARIABLE.sub(lambda match: variables[match[1] or match[2]], expression)


def chosen(job: str, seconds: float = 10.0) -> dict[str, str]:
    """Grafana's variables when one job is chosen and everything else left at All."""
    everything = dict.fromkeys(("instance", "host", "rank"), ".*")
    return {**everything, "job": job, "__rate_interval": f"{seconds:.0f}s", "__interval": "1s", "__range": "1h"}
