"""Updates a Grafana: folder, data source, dashboards, and the incidents as annotations.

Design
------
Everything is read first, then changed: a plan lists what exists, what is missing and what differs, and `--dry-run`
prints it. Objects have fixed uids, so a second push finds them; one differs if a field of ours differs. Fields that
Grafana adds (ids, versions, defaults) do not count.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from caboose_daemon.out.grafana import annotations
from caboose_daemon.out.grafana.connection import GrafanaConnection
from caboose_daemon.out.grafana.library import GrafanaError

Json = dict[str, Any]
Action = Literal["create", "update", "keep"]
FOLDER_UID = "caboose"
SOURCE_UID = "caboose-prometheus"
SOURCE_NAME = "Caboose Prometheus"


@dataclass(frozen=True)
class GrafanaChange:
    """One object in Grafana, and the action that brings it up to date."""

    kind: str
    name: str
    action: Action
    apply: Callable[[], Any] = field(default=lambda: None, compare=False)


@dataclass(frozen=True)
class Wanted:
    """The objects that Grafana should have."""

    folder: str
    prometheus: str
    """Prometheus' address, as Grafana's server reaches it; empty for the Prometheus that Grafana already has."""
    dashboards: Sequence[Path]
    incidents: Mapping[str, Sequence[Json]]
    """By job, as the daemon's API gives them."""


def plan(connection: GrafanaConnection, wanted: Wanted) -> list[GrafanaChange]:
    """Every wanted object with its action; changes nothing."""
    return [
        _folder(connection, wanted.folder),
        _source(connection, wanted.prometheus),
        *_dashboards(connection, wanted),
        *_incidents(connection, wanted.incidents),
    ]


def _folder(connection: GrafanaConnection, title: str) -> GrafanaChange:
    api, doing = connection.api.folder, "creating folders"
    there = connection.find(doing, api.get_folder, FOLDER_UID)
    if there is None:
        return GrafanaChange(
            "folder", title, "create", lambda: connection.call(doing, api.create_folder, title, FOLDER_UID)
        )
    if there.get("title") == title:
        return GrafanaChange("folder", title, "keep")
    return GrafanaChange(
        "folder",
        title,
        "update",
        lambda: connection.call(doing, api.update_folder, FOLDER_UID, title, overwrite=True),
    )


def _source(connection: GrafanaConnection, prometheus: str) -> GrafanaChange:
    api, kind = connection.api.datasource, "data source"
    if not prometheus:
        known = connection.call("reading data sources", api.list_datasources) or []
        found = next((source for source in known if source.get("type") == "prometheus"), None)
        if found is None:
            raise GrafanaError(
                f"Grafana at {connection.url} has no Prometheus data source; give its address: --prometheus URL"
            )
        return GrafanaChange(kind, str(found.get("name")), "keep")
    ours: Json = {
        "uid": SOURCE_UID,
        "name": SOURCE_NAME,
        "type": "prometheus",
        "access": "proxy",
        "url": prometheus,
        "jsonData": {"httpMethod": "POST"},
    }
    there = connection.find("reading data sources", api.get_datasource_by_uid, SOURCE_UID)
    doing = "changing data sources"
    if there is None:
        return GrafanaChange(kind, SOURCE_NAME, "create", lambda: connection.call(doing, api.create_datasource, ours))
    if contains(there, ours):
        return GrafanaChange(kind, SOURCE_NAME, "keep")
    if there.get("readOnly"):
        raise GrafanaError(f"data source {SOURCE_NAME!r} comes from a provisioning file; change it there")
    merged = {**there, **ours, "jsonData": {**(there.get("jsonData") or {}), **ours["jsonData"]}}
    return GrafanaChange(
        kind,
        SOURCE_NAME,
        "update",
        lambda: connection.call(doing, api.update_datasource_by_uid, SOURCE_UID, merged),
    )


def _dashboards(connection: GrafanaConnection, wanted: Wanted) -> Iterator[GrafanaChange]:
    for path in wanted.dashboards:
        ours = read_dashboard(path)
        doing = f"writing dashboard {ours['title']!r}"
        there = connection.find(doing, connection.api.dashboard.get_dashboard, ours["uid"])
        meta = {} if there is None else there.get("meta") or {}
        if there is not None and meta.get("folderUid") == FOLDER_UID and contains(there["dashboard"], ours):
            yield GrafanaChange("dashboard", ours["title"], "keep")
            continue
        if meta.get("provisioned"):
            raise GrafanaError(f"dashboard {ours['title']!r} comes from a provisioning file; change it there")
        body = {
            "dashboard": {**ours, "id": None},
            "folderUid": FOLDER_UID,
            "overwrite": True,
            "message": "caboose grafana push",
        }
        yield GrafanaChange(
            "dashboard",
            ours["title"],
            "create" if there is None else "update",
            _call(connection, doing, connection.api.dashboard.update_dashboard, body),
        )


def _incidents(connection: GrafanaConnection, incidents: Mapping[str, Sequence[Json]]) -> Iterator[GrafanaChange]:
    for job, items in sorted(incidents.items()):
        there = annotations.find(connection, f"training_job:{job}") if items else {}
        for item in items:
            ours = annotations.of_incident(job, item)
            found = there.get((ours.key, ours.start))
            name = f"{item['id']} {item['rule']}"
            if found is not None and annotations.is_current(ours, found):
                yield GrafanaChange("annotation", name, "keep")
            else:
                apply = _writing(connection, ours, found)
                yield GrafanaChange("annotation", name, "create" if found is None else "update", apply)


def read_dashboard(path: Path) -> Json:
    """A dashboard file, without the fields that Grafana assigns."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GrafanaError(f"{path}: {error}") from None
    if not isinstance(content, dict) or not content.get("uid") or not content.get("title"):
        raise GrafanaError(f"{path}: not a dashboard: uid or title is missing")
    return {key: value for key, value in content.items() if key not in ("id", "version")}


def contains(theirs: Any, ours: Any) -> bool:
    """Whether `theirs` holds every value of `ours`; it may hold more."""
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and all(
            contains(theirs.get(key), value) for key, value in ours.items() if value is not None or key in theirs
        )
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(theirs) == len(ours) and all(map(contains, theirs, ours))
    return bool(theirs == ours)


def _call(connection: GrafanaConnection, doing: str, request: Callable[..., Any], body: Json) -> Callable[[], Any]:
    return lambda: connection.call(doing, request, body)


def _writing(
    connection: GrafanaConnection, annotation: annotations.Annotation, found: Mapping[str, Any] | None
) -> Callable[[], None]:
    return lambda: annotations.write(connection, annotation, found)
