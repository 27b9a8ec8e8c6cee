"""The frame of a dashboard: variables, incidents as annotations, and links to the other dashboards."""

from collections.abc import Sequence
from typing import Any, Literal

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog import builder as cogbuilder
from grafana_foundation_sdk.models import dashboard as model

from caboose_daemon.out.grafana import annotations
from caboose_daemon.out.metrics.metric import JOB
from dashboards.source.look import GREEN, NOTED, PAGED, SOURCE, UIDS, WARNED
from dashboards.source.panels import Panel
from dashboards.source.queries import WINDOW, select

TAG = "caboose"
Rows = Sequence[tuple[str, Sequence[Panel]]]
Jobs = Literal["", "one", "many"]


class Annotation(cogbuilder.Builder[model.AnnotationQuery]):
    """A Prometheus query whose series are events while their value is above 0."""

    def __init__(self, name: str, expression: str, title: str, text: str, tags: str, color: str) -> None:
        extra = {"titleFormat": title, "textFormat": text, "tagKeys": tags, "useValueForTime": False}
        self._query = _PrometheusAnnotation(extra, name=name, datasource=SOURCE, expr=expression, icon_color=color)

    def build(self) -> model.AnnotationQuery:
        return self._query


class Posted(cogbuilder.Builder[model.AnnotationQuery]):
    """Annotations that the daemon and `caboose grafana push` have posted to Grafana for the chosen job.

    Off until somebody switches it on: Prometheus has the incidents already, and each would be marked twice.
    """

    def build(self) -> model.AnnotationQuery:
        tags = [annotations.COMMON, f"{JOB}:$job"]
        return model.AnnotationQuery(
            name="Posted to Grafana",
            enable=False,
            datasource=model.DataSourceRef(type_val="grafana", uid="-- Grafana --"),
            icon_color=NOTED,
            target=model.AnnotationTarget(limit=100, match_any=False, tags=tags, type_val="tags"),
        )


class _PrometheusAnnotation(model.AnnotationQuery):
    """Adds the fields of the Prometheus data source."""

    def __init__(self, extra: dict[str, object], **fields: Any) -> None:
        super().__init__(**fields)
        self._extra = extra

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), **self._extra}


def incidents() -> list[cogbuilder.Builder[model.AnnotationQuery]]:
    """Open incidents of the chosen job, non-finite steps, and rollbacks: they explain gaps and drops."""
    severities = (("Critical incidents", "critical", PAGED), ("Other incidents", "warning|info", WARNED))
    where = "cause {{cause}}; rank {{rank}} {{host}}; layer {{layer}}; {{phase}}"
    made: list[cogbuilder.Builder[model.AnnotationQuery]] = [
        Annotation(
            name,
            select("caboose_incident_info", f'severity=~"{severity}"'),
            "{{severity}}: {{rule}}",
            where,
            "rule,severity",
            color,
        )
        for name, severity, color in severities
    ]
    lost = f"sum by ({JOB}) (increase({select('caboose_non_finite_steps_total')}[{WINDOW}])) > 0"
    text = "The loss or the gradient is NaN or infinite: the curves have a gap here."
    done = select("caboose_decisions_total", 'action="rollback"', 'reason="committed"')
    back = f"sum by ({JOB}) (increase({done}[{WINDOW}])) > 0"
    made += [
        Annotation("Not finite", lost, "Not finite", text, JOB, PAGED),
        Annotation("Rolled back", back, "Rolled back", "All ranks went back to a snapshot.", JOB, GREEN),
        Posted(),
    ]
    return made


def chosen(
    name: str, label: str, query: str, *, is_many: bool, about: str, is_number: bool = False
) -> build.QueryVariable:
    """A variable with values from the data source."""
    variable = build.QueryVariable(name).label(label).description(about).datasource(SOURCE).query(query)
    variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable.sort(model.VariableSort.NUMERICAL_ASC if is_number else model.VariableSort.ALPHABETICAL_ASC)
    variable.multi(is_many).include_all(is_many)
    if is_many:
        variable.all_value(".*").current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    return variable


def daemons() -> build.QueryVariable:
    """The choice of daemons, for dashboards over several."""
    query, about = "label_values(caboose_daemon_info, instance)", "The daemons, by the address that Prometheus scrapes."
    return chosen("instance", "Daemon", query, is_many=True, about=about)


def board(
    name: str,
    title: str,
    about: str,
    rows: Rows,
    *,
    jobs: Jobs,
    extra: Sequence[build.QueryVariable] = (),
    since: str = "now-6h",
    refresh: str = "30s",
) -> build.Dashboard:
    """A dashboard. `jobs`: whether one job, several or none can be chosen."""
    made = build.Dashboard(f"Caboose / {title}").uid(UIDS[name]).description(about).tags([TAG]).editable()
    made.time(since, "now").refresh(refresh).timezone("browser").tooltip(model.DashboardCursorSync.CROSSHAIR)
    made.with_variable(build.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    if jobs:
        query = f"label_values(caboose_job_up, {JOB})"
        made.with_variable(chosen("job", "Job", query, is_many=jobs == "many", about="The training job."))
    for variable in extra:
        made.with_variable(variable)
    for variable_name, label, what in (("runbooks", "runbooks", "the runbooks"), ("page", "url", "its live page")):
        query, where = f"label_values(caboose_daemon_links_info, {label})", f"Where the daemon serves {what}."
        address = chosen(variable_name, variable_name.capitalize(), query, is_many=False, about=where)
        made.with_variable(address.hide(model.VariableHide.HIDE_VARIABLE))
    for link in _links(name, jobs):
        made.link(link)
    if jobs == "one":
        made.annotations(incidents())
    number = 0
    for heading, panels in rows:
        made.with_row(build.Row(heading))
        for panel in panels:
            number += 1
            made.with_panel(panel.id(number))
    return made


def _links(name: str, jobs: Jobs) -> list[build.DashboardLink]:
    """To the live page of the job, and to the other dashboards; several chosen jobs are none for a board of one."""
    page = build.DashboardLink("Live page").type(model.DashboardLinkType.LINK).target_blank(True).icon("external link")
    if jobs == "one":
        others = build.DashboardLink("Caboose").type(model.DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(False)
        kept = others.include_vars(True).keep_time(True).icon("external link")
        return [page.url("${page}/?job=${job:percentencode}"), kept]
    to = (
        build.DashboardLink(f"Caboose / {other.capitalize()}")
        .type(model.DashboardLinkType.LINK)
        .url(f"/d/{UIDS[other]}?${{datasource:queryparam}}")
        .keep_time(True)
        .icon("dashboard")
        for other in UIDS
        if other != name
    )
    return [page.url("${page}/?jobs"), *to]


def as_json(made: build.Dashboard) -> dict[str, Any]:
    """The JSON for Grafana. Rows get ids from 1000 on, after the panels."""
    built = made.build()
    rows = [panel for panel in built.panels or [] if isinstance(panel, model.RowPanel)]
    for number, row in enumerate(rows, 1000):
        row.id_val = number
    return built.to_json()
