"""Checks on a running daemon and its jobs."""

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
    "unknown_peer": "harmless after a restart of the daemon: ranks send their hello again",
    "oversize": "report this as a bug: no report should be that large",
}


def check_token(client: Client, token: str | None, problem: str) -> DoctorCheck:
    """Sends a write for a job that cannot exist: with the right token the answer is 404."""
    if token is None:
        fix = "--token-file FILE, or CABOOSE_TOKEN_FILE; it is `token` in the daemon's data_dir"
        return DoctorCheck("token", "warning", f"{problem}: `caboose ack`, `note` and `rollback` need it", fix)
    status, _ = client.post("/api/v1/jobs/!/incidents/0/ack", {"reason": "none"}, token)
    if status == 401:
        return DoctorCheck("token", "cross", "the daemon rejects it", "use the file `token` in the daemon's data_dir")
    return DoctorCheck("token", "ok", "the daemon accepts it")


def check_daemon(client: Client, about: Json, rtt: float) -> Iterator[DoctorCheck]:
    """All checks that ask the daemon."""
    yield _versions(about)
    yield _clock(about, rtt)
    yield _journal(about["journal"])
    yield _scraping(client, about)
    yield _refused(about["num_refused"])
    yield _errors(about)
    rows = client.get("/api/v1/jobs")["jobs"]
    yield check_agents(rows)
    yield from _rank_clocks(client, about, rows)
    yield check_rollback(about)


def _versions(about: Json) -> DoctorCheck:
    theirs = about["version"]
    if theirs != __version__:
        fix = f"pip install 'caboose[daemon]=={theirs}' here, or restart the daemon with {__version__}"
        return DoctorCheck("versions", "cross", f"this command is {__version__}, the daemon {theirs}", fix)
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
    return DoctorCheck(
        "clock", "ok", f"the daemon's clock agrees with this machine's, within {max(abs(skew), rtt, 0.01):.1g} s"
    )


def _rank_clocks(client: Client, about: Json, rows: list[Json]) -> Iterator[DoctorCheck]:
    """Compares the time in a run's last report with its arrival."""
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
        text = f"{of}: its ranks are {duration(abs(worst))} {ahead} the daemon, or its last step is that old"
        yield DoctorCheck("clocks of ranks", "warning", text, SET_CLOCKS)


def _journal(journal: Json) -> DoctorCheck:
    if journal["error"]:
        fix = "free disk space or fix the permissions; the daemon then writes the rows it has kept"
        return DoctorCheck("journal", "cross", f"cannot be written: {journal['error']}", fix)
    if journal["num_lost"]:
        fix = "the journal is written again; the lost rows are gone. Watch the disk"
        return DoctorCheck("journal", "warning", f"{plural(journal['num_lost'], 'row')} lost", fix)
    if journal["damage"]:
        fix = "restart the daemon: it keeps the journal aside and copies what can be read into a fresh one"
        return DoctorCheck("journal", "cross", f"damaged: {journal['damage']}", fix)
    if journal["set_aside"]:
        fix = f"what could be read was taken over; look at {journal['set_aside']} in the data_dir, then remove it"
        return DoctorCheck("journal", "warning", "the last start found it damaged", fix)
    if journal["num_quarantined"] or journal["num_refused"]:
        fix = "the table `quarantine` of journal.sqlite has the rows and the reasons; the log names the first"
        text = f"{plural(journal['num_quarantined'], 'row')} set aside, {journal['num_refused']} not written"
        return DoctorCheck("journal", "warning", text, fix)
    free = journal["free_bytes"]
    size = f"{journal['bytes'] / 1e6:,.1f} MB"
    if free is not None and free < LEAST_FREE_BYTES:
        fix = "free some, or lower journal.max_steps and journal.retention_days in caboose.toml"
        return DoctorCheck("journal", "warning", f"{size}, only {free / 1e6:,.0f} MB of disk free", fix)
    left = "" if free is None else f", {free / 1e9:,.0f} GB free"
    return DoctorCheck("journal", "ok", f"{size}{left}")


def _scraping(client: Client, about: Json) -> DoctorCheck:
    fix = f"`caboose stack up`, or a scrape_config with the target {client.url.partition('://')[2]} in prometheus.yml"
    scrape, age = about["scrape"], about["time"] - about["started"]
    if scrape is None:
        text = f"/metrics was not scraped in the {duration(age)} since the daemon started"
        return DoctorCheck("prometheus", "warning", text, fix)
    by = scrape["by"] or "an unknown client"
    if scrape["seconds"] > MAX_SCRAPE_SECONDS:
        return DoctorCheck(
            "prometheus", "cross", f"the last scrape was {duration(scrape['seconds'])} ago, by {by}", fix
        )
    return DoctorCheck("prometheus", "ok", f"scraped {duration(scrape['seconds'])} ago by {by}")


def _refused(reasons: Json) -> DoctorCheck:
    if not sum(reasons.values()):
        return DoctorCheck("messages", "ok", "none refused")
    text = ", ".join(f"{num:,} x {reason}" for reason, num in sorted(reasons.items(), key=lambda item: -item[1]))
    worst = max(reasons, key=lambda reason: reasons[reason])
    return DoctorCheck("messages", "warning", f"refused: {text}", REFUSALS.get(worst, "see the agents' log"))


def _errors(about: Json) -> DoctorCheck:
    """Exceptions that the daemon caught, and the jobs that it does not judge because of them."""
    errors, jobs = about.get("num_errors", {}), about.get("quarantined", [])
    if not errors:
        return DoctorCheck("errors", "ok", "none caught since the daemon started")
    text = ", ".join(f"{num:,} x {what}" for what, num in sorted(errors.items(), key=lambda item: -item[1])[:5])
    fix = "report the tracebacks in the daemon's log as a bug"
    if jobs:
        return DoctorCheck("errors", "cross", f"caught: {text}; not judged now: {', '.join(jobs[:5])}", fix)
    return DoctorCheck("errors", "warning", f"caught: {text}", fix)


def check_agents(rows: list[Json]) -> DoctorCheck:
    """Whether all ranks of the running jobs report; a lost job counts as not running."""
    if not rows:
        fix = "caboose.attach(model, optimizer) in the script, or `torchrun -m caboose train.py`; set CABOOSE_ENDPOINT"
        return DoctorCheck("agents", "warning", "no agent has reported yet", fix)
    running = [row for row in rows if row["state"] == "running"]
    if not running:
        return DoctorCheck("agents", "ok", f"{plural(len(rows), 'job')} known, none running")
    quiet = [row for row in running if not row["num_live"] or row["silent_seconds"] > MAX_SILENT_SECONDS]
    if quiet:
        text = "; ".join(f"{row['job']} for {duration(row['silent_seconds'])}" for row in quiet[:5])
        fix = f"see `caboose diagnose {quiet[0]['job']}`; a killed job sends no last message"
        return DoctorCheck("agents", "cross", f"no report from {text}", fix)
    short = [row for row in running if row["num_live"] < row["world"]]
    if short:
        text = "; ".join(f"{row['job']}: {row['num_live']} of {row['world']} ranks" for row in short[:5])
        fix = f"find them with `caboose top {short[0]['job']}`; each needs the same CABOOSE_ENDPOINT"
        return DoctorCheck("agents", "cross", f"ranks missing: {text}", fix)
    ranks = sum(row["num_live"] for row in running)
    return DoctorCheck("agents", "ok", f"{plural(len(running), 'running job')}, {plural(ranks, 'rank')} reporting")


def check_rollback(about: Json) -> DoctorCheck:
    """The rollback mode in force, and what going back would lose."""
    mode = about["rollback"]["mode"]
    running = [job for job in about["jobs"] if job["state"] == "running"]
    modes = ", ".join(
        f"{job['job']}: {job['mode']} (run allows {job['owner_mode']}{_expected(job)})" for job in running[:5]
    )
    signed = (
        ""
        if mode != "auto" or about["rollback"]["is_signed"]
        else "; commands are not signed, and no rank obeys them: set --secret-file"
    )
    lower = [job for job in running if job["owner_mode"] == "auto" and mode != "auto"]
    text = f"the daemon's mode is {mode}{'; ' + modes if modes else ''}{signed}"
    if lower:
        fix = "`caboose daemon --rollback auto`; otherwise a run that allows auto gets advice only"
        return DoctorCheck("rollback", "warning", text, fix)
    return DoctorCheck("rollback", "ok", text)


def _expected(job: Json) -> str:
    """What a rollback of this job is expected to lose; an older daemon does not report it."""
    num = job.get("expected_steps_lost")
    return "" if num is None else f"; going back loses about {num} steps"


class OtherVersion(ClientError):
    """A daemon whose API this version cannot read."""


def ask_about(client: Client) -> tuple[Json, float]:
    """The daemon's status and the seconds it took; ClientError without an answer."""
    health = client.get("/healthz")
    if not isinstance(health, dict) or "version" not in health:
        raise ClientError(f"{client.url} answers, but is not a Caboose daemon")
    started = time.monotonic()
    try:
        about: Json = client.get("/api/v1/daemon")
    except ClientError:
        text = (
            f"{client.url} is a daemon of version {health['version']}, which this version ({__version__}) cannot read"
        )
        raise OtherVersion(text) from None
    return about, time.monotonic() - started
