"""What a running daemon says of itself and its jobs, judged."""

import time
from collections.abc import Iterator
from typing import Any

from caboose_daemon.format import duration, plural, to_float
from caboose_daemon.ops.doctor.check import DoctorCheck
from caboose_daemon.out.api.client import Client, ClientError, job_path
from caboose_daemon.version import __version__

Json = dict[str, Any]
MAX_SKEW_SECONDS = 2.0
MAX_RANK_SKEW_SECONDS = 10.0
MAX_SCRAPE_SECONDS = 150.0
"""Two missed scrapes at a minute each, and a little."""
MAX_SILENT_SECONDS = 60.0
LEAST_FREE_BYTES = 2**30
MAX_JOBS = 20
SET_CLOCKS = "set the clocks: `timedatectl set-ntp true`, or chrony, on both machines; then restart the daemon"
REFUSALS = {
    "version": "install the same version of caboose where the job runs",
    "capacity": "the daemon is full: run one for each group of jobs",
    "unknown_peer": "harmless after a restart of the daemon: ranks introduce themselves again",
    "oversize": "raise nothing: report it; a report should never be that large",
}


def check_token(client: Client, token: str | None, problem: str) -> DoctorCheck:
    """A write to a job that cannot exist: a daemon that takes the token says that there is none."""
    if token is None:
        fix = "--token-file FILE, or CABOOSE_TOKEN_FILE; it is `token` in the daemon's data_dir"
        return DoctorCheck("token", "warning", f"{problem}: `caboose ack`, `note` and `rollback` need it", fix)
    status, _ = client.post("/api/v1/jobs/!/incidents/0/ack", {"reason": "none"}, token)
    if status == 401:
        return DoctorCheck(
            "token", "cross", "the daemon does not take it", "use the file `token` in the daemon's data_dir"
        )
    return DoctorCheck("token", "ok", "the daemon takes it")


def check_daemon(client: Client, about: Json, rtt: float) -> Iterator[DoctorCheck]:
    """Everything the daemon can be asked."""
    yield _versions(about)
    yield _clock(about, rtt)
    yield _journal(about["journal"])
    yield _scraping(client, about)
    yield _refused(about["num_refused"])
    rows = client.get("/api/v1/jobs")["jobs"]
    yield check_agents(rows)
    yield from _rank_clocks(client, about, rows)
    yield _rollback(about)


def _versions(about: Json) -> DoctorCheck:
    theirs = about["version"]
    if theirs != __version__:
        fix = f"pip install 'caboose[daemon]=={theirs}' here, or restart the daemon with {__version__}"
        return DoctorCheck("versions", "cross", f"this is {__version__}, the daemon {theirs}", fix)
    agents = {version for job in about["jobs"] for version in job["agent_versions"] if version} - {theirs}
    if agents:
        fix = f"pip install caboose=={theirs} where these jobs run"
        return DoctorCheck("versions", "cross", f"the daemon is {theirs}, agents are {', '.join(sorted(agents))}", fix)
    return DoctorCheck("versions", "ok", f"{theirs} everywhere")


def _clock(about: Json, rtt: float) -> DoctorCheck:
    skew = time.time() - rtt / 2 - about["time"]
    if abs(skew) > MAX_SKEW_SECONDS + rtt:
        ahead = "behind" if skew > 0 else "ahead of"
        return DoctorCheck("clock", "cross", f"the daemon is {duration(abs(skew))} {ahead} this machine", SET_CLOCKS)
    return DoctorCheck("clock", "ok", f"the daemon's is this machine's, within {max(abs(skew), rtt, 0.01):.1g} s")


def _rank_clocks(client: Client, about: Json, rows: list[Json]) -> Iterator[DoctorCheck]:
    """The time in a run's last report against when it came."""
    worst, of = 0.0, ""
    for row in [row for row in rows if row["state"] == "running"][:MAX_JOBS]:
        detail = client.get(job_path(row["job"]))
        if detail["last"] is None:
            continue
        skew = about["time"] - detail["silent_seconds"] - to_float(detail["last"]["time"])
        allowed = MAX_RANK_SKEW_SECONDS + 3 * max(0.0, to_float(detail["step_seconds"] or 0.0))
        if abs(skew) > allowed and abs(skew) > abs(worst):
            worst, of = skew, row["job"]
    if of:
        ahead = "behind" if worst > 0 else "ahead of"
        said = f"{of}: its ranks are {duration(abs(worst))} {ahead} the daemon, or its last step is that old"
        yield DoctorCheck("clocks of ranks", "warning", said, SET_CLOCKS)


def _journal(journal: Json) -> DoctorCheck:
    if journal["error"]:
        fix = "free the disk or mend its rights: it goes on by itself, with what it kept meanwhile"
        return DoctorCheck("journal", "cross", f"cannot be written: {journal['error']}", fix)
    if journal["num_lost"]:
        fix = "it is written again; the lost rows are gone. Watch the disk"
        return DoctorCheck("journal", "warning", f"{plural(journal['num_lost'], 'row')} were given up", fix)
    free = journal["free_bytes"]
    size = f"{journal['bytes'] / 1e6:,.1f} MB"
    if free is not None and free < LEAST_FREE_BYTES:
        fix = "free some, or lower journal.max_steps and journal.retention_days in caboose.toml"
        return DoctorCheck("journal", "warning", f"{size}, and only {free / 1e6:,.0f} MB of the disk are free", fix)
    left = "" if free is None else f", {free / 1e9:,.0f} GB free"
    return DoctorCheck("journal", "ok", f"is written: {size}{left}")


def _scraping(client: Client, about: Json) -> DoctorCheck:
    fix = f"`caboose stack up`, or a scrape_config with the target {client.url.partition('://')[2]} in prometheus.yml"
    scrape, age = about["scrape"], about["time"] - about["started"]
    if scrape is None:
        said = f"nobody asked for /metrics in the {duration(age)} since the daemon started"
        return DoctorCheck("prometheus", "warning", said, fix)
    by = scrape["by"] or "somebody"
    if scrape["seconds"] > MAX_SCRAPE_SECONDS:
        return DoctorCheck(
            "prometheus", "cross", f"the last scrape was {duration(scrape['seconds'])} ago, by {by}", fix
        )
    return DoctorCheck("prometheus", "ok", f"scraped {duration(scrape['seconds'])} ago by {by}")


def _refused(reasons: Json) -> DoctorCheck:
    if not sum(reasons.values()):
        return DoctorCheck("messages", "ok", "none was refused")
    said = ", ".join(f"{num:,} x {reason}" for reason, num in sorted(reasons.items(), key=lambda item: -item[1]))
    worst = max(reasons, key=lambda reason: reasons[reason])
    return DoctorCheck("messages", "warning", f"refused: {said}", REFUSALS.get(worst, "the agents' own log says more"))


def check_agents(rows: list[Json]) -> DoctorCheck:
    """Of the jobs that run, whether their ranks are heard; one that is lost, killed it seems, runs no more."""
    if not rows:
        fix = "caboose.attach(model, optimizer) in the script, or `torchrun -m caboose train.py`; set CABOOSE_ENDPOINT"
        return DoctorCheck("agents", "warning", "no agent has ever reported", fix)
    running = [row for row in rows if row["state"] == "running"]
    if not running:
        return DoctorCheck("agents", "ok", f"{plural(len(rows), 'job')} known, none is running")
    quiet = [row for row in running if not row["num_live"] or row["silent_seconds"] > MAX_SILENT_SECONDS]
    if quiet:
        said = "; ".join(f"{row['job']} for {duration(row['silent_seconds'])}" for row in quiet[:5])
        fix = f"`caboose diagnose {quiet[0]['job']}` says what is known; a job that was killed never says good-bye"
        return DoctorCheck("agents", "cross", f"nothing heard of {said}", fix)
    short = [row for row in running if row["num_live"] < row["world"]]
    if short:
        said = "; ".join(f"{row['job']}: {row['num_live']} of {row['world']} ranks" for row in short[:5])
        fix = f"look for the missing ranks with `caboose top {short[0]['job']}`; each needs the same CABOOSE_ENDPOINT"
        return DoctorCheck("agents", "cross", f"not all are heard: {said}", fix)
    ranks = sum(row["num_live"] for row in running)
    return DoctorCheck("agents", "ok", f"{plural(len(running), 'running job')}, all of {plural(ranks, 'rank')} heard")


def _rollback(about: Json) -> DoctorCheck:
    mode = about["rollback"]["mode"]
    running = [job for job in about["jobs"] if job["state"] == "running"]
    modes = ", ".join(f"{job['job']}: {job['mode']} (it allows {job['owner_mode']})" for job in running[:5])
    signed = "" if mode != "auto" or about["rollback"]["is_signed"] else "; commands go unsigned, to this machine only"
    lower = [job for job in running if job["owner_mode"] == "auto" and mode != "auto"]
    said = f"the daemon's mode is {mode}{'; ' + modes if modes else ''}{signed}"
    if lower:
        fix = "`caboose daemon --rollback auto`: a run that allows auto is only advised otherwise"
        return DoctorCheck("rollback", "warning", said, fix)
    return DoctorCheck("rollback", "ok", said)


class OtherVersion(ClientError):
    """A daemon that is too old, or too new, to be asked."""


def ask_about(client: Client) -> tuple[Json, float]:
    """What the daemon says of itself, and how long it took; ClientError where it does not answer."""
    health = client.get("/healthz")
    if not isinstance(health, dict) or "version" not in health:
        raise ClientError(f"{client.url} answers, but is no daemon of Caboose's")
    started = time.monotonic()
    try:
        about: Json = client.get("/api/v1/daemon")
    except ClientError:
        said = f"{client.url} is a daemon of version {health['version']}, which this one ({__version__}) cannot ask"
        raise OtherVersion(said) from None
    return about, time.monotonic() - started
