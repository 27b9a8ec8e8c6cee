"""`caboose ack` and `caboose note`: telling the daemon what people know."""

from typing import Any

import click

from caboose_daemon.cli.options import (
    EXIT_FAILED,
    EXIT_USAGE,
    connect,
    daemon_option,
    fail,
    json_option,
    one_line_errors,
    print_json,
    read_token,
    token_option,
    user_name,
)
from caboose_daemon.out.api.client import job_path

MAX_TEXT = 500
RESERVED = ("text", "by")


@click.command()
@click.argument("incident", metavar="INCIDENT")
@click.option("--reason", help="Why it may be silent, for whoever comes next.  [required, but with --undo]")
@click.option("--by", help="Who has it in hand.  [default: you]")
@click.option("--undo", is_flag=True, help="Nobody has it in hand any more.")
@token_option
@daemon_option
@json_option
def ack(
    incident: str,
    reason: str | None,
    by: str | None,
    undo: bool,
    token_file: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Say that somebody has an incident in hand: it stays open, and wakes nobody else.

    INCIDENT is its id, JOB/NUMBER, as `caboose diagnose` and every alert show it.

    \b
    Example:
        caboose ack llama-7b/3 --reason "bad shard, being rewritten"
        caboose ack llama-7b/3 --undo

    Exit codes: 0 done, 1 no such incident is open, 2 cannot ask (wrong id, no reason, no token, nobody at --daemon).
    """
    job, _, number = incident.rpartition("/")
    if not job or not number.isdecimal():
        fail(f"{incident!r} is no incident's id; it has the form JOB/NUMBER, as `caboose diagnose` shows it")
    if not undo and not (reason or "").strip():
        fail('say why, with --reason "...": whoever comes next will ask')
    body = {"undo": True} if undo else {"reason": reason, "by": by or user_name()}
    answer = _post(job_path(job, f"/incidents/{number}/ack"), body, address, token_file)
    if as_json:
        print_json(answer)
    elif undo:
        click.echo(f"{incident} ({answer['rule']}) is {answer['state']}: nobody has it in hand")
    else:
        said = answer["acknowledged"]
        click.echo(f"{incident} ({answer['rule']}) is in the hands of {said['by']}: {said['reason']}")


@click.command()
@click.argument("job")
@click.argument("text")
@click.option("--kind", default="note", show_default=True, help="What it is: note, fix, data_switch, batch_ramp, ...")
@click.option("--set", "fields", metavar="KEY=VALUE", multiple=True, help="What was changed, as often as needed.")
@token_option
@daemon_option
@json_option
def note(
    job: str,
    text: str,
    kind: str,
    fields: tuple[str, ...],
    token_file: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Note in a run's record what was done to it; `caboose verify` then says whether that helped.

    It is the same as monitor.event("fix", lr=1e-4) in the training script. The kinds that rules know (data_switch,
    batch_ramp, lr_restart, warmup_end, resume) change what they expect of the run.

    \b
    Example:
        caboose note llama-7b "shard 17 rewritten"
        caboose note llama-7b "halved the learning rate" --kind fix --set lr=1e-4

    Exit codes: 0 noted, 1 the daemon refused it, 2 cannot ask (no such job, no token, nobody at --daemon).
    """
    if not text.strip() or len(text) > MAX_TEXT:
        fail(f"a note has 1 to {MAX_TEXT} characters; this one has {len(text)}")
    body = {"kind": kind, "fields": {**_fields(fields), "text": text, "by": user_name()}}
    event = _post(job_path(job, "/events"), body, address, token_file)
    if as_json:
        print_json(event)
    else:
        click.echo(f"noted after step {event['step']:,} of {job} (attempt {event['attempt']}): {kind}: {text}")
        if kind in ("note", "fix"):
            click.echo(f"whether it helped: caboose verify {job}, once some steps have passed")


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
        return value if abs(value) < 2**53 else text  # NaN and infinity stay words: JSON has neither
    return text


def _post(path: str, body: dict[str, Any], address: str | None, token_file: str | None) -> dict[str, Any]:
    client, token = connect(address), read_token(token_file)
    with one_line_errors():
        status, answer = client.post(path, body, token)
    if status >= 300:
        reason = str(answer.get("error", f"the daemon answered {status}"))
        if status == 401:
            fail(f"{reason}; --token-file names the file that has it (`token` in the daemon's data_dir)")
        fail(reason, EXIT_USAGE if "known_jobs" in answer else EXIT_FAILED)
    done: dict[str, Any] = answer
    return done
