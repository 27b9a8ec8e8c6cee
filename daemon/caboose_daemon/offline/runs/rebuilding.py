"""Rebuilds incidents from the API's JSON: a diagnosis weighs findings, not texts."""

from collections.abc import Iterator, Sequence

from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.offline.runs.run import NOT_FINITE, Json
from caboose_daemon.rules.parts.finding import Finding, Severity


def rebuilt(job: str, incidents: Sequence[Json], episodes: Sequence[Json]) -> Iterator[Incident]:
    """The incidents with findings that the daemon still has, the first opened first."""
    known = {int(row["id"]): _episode(row) for row in episodes}
    for row in sorted(incidents, key=lambda row: int(row["number"])):
        members = tuple(known[m["episode"]] for m in row["members"] if m["episode"] in known)
        if members:
            yield Incident(
                job=job,
                number=row["number"],
                attempt=row["attempt"],
                rule=row["rule"],
                opened_step=row["opened_step"],
                opened_time=row["opened_time"],
                regimes=tuple(row["regimes"]),
                episodes=members,
                state=row["state"],
                severity=Severity(row["severity"]),
                worst=Severity(row["worst"]),
                closed_step=row["closed_step"],
                closed_time=row["closed_time"],
                reason=row["reason"],
                merged_into=row.get("merged_into"),
                num_reopened=row["num_reopened"],
            )


def _episode(row: Json) -> Episode:
    first, last = _finding(row, row["first"]), _finding(row, row["last"])
    severity = Severity(row["severity"])
    return Episode(
        id=row["id"],
        attempt=row["attempt"],
        first=first,
        last=last,
        severity=severity,
        num_findings=row["num_findings"],
        detected_time=row["detected_time"],
        last_time=row["last_time"],
        is_open=row["is_open"],
        worst=first if first.severity == severity else last,
        reported_step=row["told_step"],
    )


def _finding(row: Json, finding: Json) -> Finding:
    values = {key: NOT_FINITE[v] if isinstance(v, str) else float(v) for key, v in finding["values"].items()}
    return Finding(
        rule=row["rule"],
        severity=Severity(finding["severity"]),
        step=finding["step"],
        onset_step=row["onset_step"],
        summary=finding["summary"],
        ranks=tuple(finding["ranks"]),
        layers=tuple(finding["layers"]),
        phase=finding["phase"],
        state=finding["state"],
        values=values,
    )
