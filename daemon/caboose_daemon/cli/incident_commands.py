"""`caboose ack` and `caboose note`: what users add to an incident and to a run."""

from typing import Any

import click

from caboose_daemon.cli.console import echo
from caboose_daemon.cli.options import (
    EXIT_FAILED,
    EXIT_USAGE,
    connect,
    daemon_option,
    example,
    fail,
    json_option,
    one_line_errors,
    print_json,
    read_token,
    the_job,
    token_option,
    user_name,
)
from caboose_daemon.offline.runs.source import MAX_NAMES
from caboose_daemon.out.api.client import job_path

MAX_TEXT = 500
RESERVED = ("text", "by")


@click.command(
    epilog=example("caboose ack llama-7b/3 --reason 'bad shard, being rewritten'", "caboose ack llama-7b/3 --undo")
)
@click.argument("incident", metavar="INCIDENT", required=False)
@click.option("--reason", help="Why no further alert is needed, for the next reader.  [required without --undo]")
@click.option("--by", help="Who works on it.  [default: you]")
@click.option("--undo", is_flag=True, help="Withdraw the acknowledgement.")
@token_option
@daemon_option
@json_option
def ack(
    incident: str | None,
    reason: str | None,
    by: str | None,
    undo: bool,
    token_file: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Acknowledge an incident: it stays open, and its alert stops. What a run ended with is then no longer red.

    INCIDENT is its id, JOB/NUMBER, as `caboose diagnose` and every alert show it. Without one: the only incident that
    waits for somebody.

    Exit codes: 0 done, 1 no such incident is open or unresolved, 2 cannot ask (wrong id, no reason, no token, no daemon
    answers).
    """
    if incident is None:
        incident = _only_incident(address, is_acknowledged=undo)
    job, _, number = incident.rpartition("/")
    if not job or not number.isdecimal():
        fail(f"{incident!r} is not an incident id; expected JOB/NUMBER, as `caboose diagnose` shows it")
    if not undo and not (reason or "").strip():
        fail('--reason "..." is missing: the next reader needs to know why')
    body = {"undo": True} if undo else {"reason": reason, "by": by or user_name()}
    answer = _post(job_path(job, f"/incidents/{number}/ack"), body, address, token_file)
    if as_json:
        print_json(answer)
    elif undo:
        echo(f"{incident} ({answer['rule']}) is {answer['state']}; not acknowledged")
    else:
        ack_ = answer["acknowledged"]
        echo(f"{incident} ({answer['rule']}) acknowledged by {ack_['by']}: {ack_['reason']}")


@click.command(
    epilog=example(
        "caboose note llama-7b 'shard 17 rewritten'",
        "caboose note llama-7b 'halved the learning rate' --kind fix --set lr=1e-4",
    )
)
@click.argument("words", metavar="[JOB] TEXT", nargs=-1, required=True)
@click.option(
    "--kind", default="note", show_default=True, help="Kind of event: note, fix, data_switch, batch_ramp, ..."
)
@click.option("--set", "fields", metavar="KEY=VALUE", multiple=True, help="A value that was changed; may be repeated.")
@token_option
@daemon_option
@json_option
def note(
    words: tuple[str, ...],
    kind: str,
    fields: tuple[str, ...],
    token_file: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Record a change to a run; `caboose verify` then judges whether it helped. Without JOB: the only one.

    The same as monitor.event("fix", lr=1e-4) in the training script. The kinds that rules know (data_switch,
    batch_ramp, lr_restart, warmup_end, resume) change what they expect of the run.

    Exit codes: 0 recorded, 1 refused by the daemon, 2 cannot ask (no such job, no token, no daemon answers).
    """
    if len(words) > 2:
        fail(f"one text is expected after the job, and {len(words) - 1} are given: put it in quotes")
    text = words[-1]
    if not text.strip() or len(text) > MAX_TEXT:
        fail(f"a note has 1 to {MAX_TEXT} characters; this one has {len(text)}")
    job = the_job(words[0] if len(words) == 2 else None, address)
    body = {"kind": kind, "fields": {**_fields(fields), "text": text, "by": user_name()}}
    event = _post(job_path(job, "/events"), body, address, token_file)
    if as_json:
        print_json(event)
    else:
        echo(f"recorded after step {event['step']:,} of {job} (attempt {event['attempt']}): {kind}: {text}")
        if kind in ("note", "fix"):
            echo(f"to see whether it helped, after some steps: caboose verify {job}")


def _only_incident(address: str | None, *, is_acknowledged: bool) -> str:
    """The id of the only incident that is open or unresolved, and acknowledged or not."""
    client = connect(address)
    with one_line_errors():
        jobs = [row["job"] for row in client.get("/api/v1/jobs")["jobs"] if row["num_open"] or row.get("ending")]
        rows = [row for job in jobs for row in client.get(job_path(job, "/incidents"))["incidents"]]
    waiting = [
        row["id"]
        for row in rows
        if (row["is_open"] or row["state"] == "unresolved") and (row["acknowledged"] is not None) == is_acknowledged
    ]
    if not waiting:
        fail("no incident is acknowledged" if is_acknowledged else "no incident waits for anybody", EXIT_FAILED)
    if len(waiting) > 1:
        fail(f"which incident? {', '.join(waiting[:MAX_NAMES])}")
    return str(waiting[0])


def _fields(given: tuple[str, ...]) -> dict[str, float | int | str]:
    found: dict[str, float | int | str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key or key in RESERVED:
            fail(f"--set {text!r}: expected KEY=VALUE, e.g. --set lr=1e-4 (KEY other than {' and '.join(RESERVED)})")
        found[key] = _value(value)
    return found


def _value(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if abs(value) < 2**53 else text  # NaN and infinity stay text: JSON has neither
    return text


def _post(path: str, body: dict[str, Any], address: str | None, token_file: str | None) -> dict[str, Any]:
    client = connect(address)
    token = read_token(token_file, client.url)
    with one_line_errors():
        status, answer = client.post(path, body, token)
    if status >= 300:
        reason = str(answer.get("error", f"the daemon answered {status}"))
        if status == 401:
            fail(f"{reason}; --token-file names the file that has it (`token` in the daemon's data_dir)")
        fail(reason, EXIT_USAGE if "known_jobs" in answer else EXIT_FAILED)
    done: dict[str, Any] = answer
    return done
