"""`caboose try`."""

import sys
from pathlib import Path
from typing import Any

import click

from caboose_daemon.cli.agent_process import AgentCommandError, ask
from caboose_daemon.cli.console import echo
from caboose_daemon.cli.keeping import keep
from caboose_daemon.cli.options import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_UNDECIDED,
    daemon_option,
    example,
    fail,
    json_option,
    print_json,
    token_option,
)
from caboose_daemon.offline.trying.judging import TrialVerdict, judge
from caboose_daemon.offline.trying.knowledge import TRIAL

MODULE = "caboose.trying.command"
EXIT_CODES = {"helped": EXIT_OK, **dict.fromkeys(("hurt", "same", "mixed"), EXIT_FAILED), "unknown": EXIT_UNDECIDED}
WORDS = {
    "helped": "it helped",
    "hurt": "it made things worse",
    "same": "no relevant difference",
    "mixed": "training and validation disagree",
    "unknown": "undecided",
}
Json = dict[str, Any]


@click.command(
    "try",
    epilog=example(
        "caboose try train.py:parts --change lr=0.5x --checkpoint checkpoints/step-4000",
        "caboose try train.py:parts --change clip=1.0 --change warmup=100 --steps 500 --job llama-7b",
    ),
)
@click.argument("parts", metavar="SCRIPT:FUNCTION")
@click.option(
    "--change",
    "changes",
    metavar="NAME=VALUE",
    multiple=True,
    required=True,
    help="lr, weight_decay, momentum, dropout (a value, or a factor such as 0.5x), clip, clip_value, warmup, "
    "label_smoothing, optimizer; may be repeated.",
)
@click.option("--steps", type=click.IntRange(20, 1000), default=200, show_default=True, help="Steps of each side.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, exists=True),
    help="Where both sides start: a checkpoint of Caboose, or a file of torch.save.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the batches' order and of dropout.")
@click.option("--job", help="Keep the verdict with this job, for `caboose history`.")
@click.option("--incident", metavar="JOB/NUMBER", help="The incident that it is for.  [default: the job's newest]")
@token_option
@daemon_option
@json_option
def try_change(
    parts: str,
    changes: tuple[str, ...],
    steps: int,
    checkpoint: Path | None,
    seed: int,
    job: str | None,
    incident: str | None,
    token_file: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Try a change for some steps, beside the same steps without it, and say whether it helped.

    SCRIPT:FUNCTION returns model, loss_fn, loader and optimizer, as for `caboose preflight`. It is called in a process
    of its own, once for each side: a live run is not touched, and the checkpoint is only read. Both sides see the same
    batches in the same order. With validation_loader in the parts, both sides are validated at the end.

    Exit codes: 0 it helped, 1 it did not, 2 it cannot be tried, 3 undecided.
    """
    if incident is not None and job is None:
        job = incident.rpartition("/")[0]
    arguments = [parts, *(word for change in changes for word in ("--change", change))]
    arguments += ["--steps", str(steps), "--seed", str(seed)]
    if checkpoint is not None:
        arguments += ["--checkpoint", str(checkpoint)]
    try:
        answer = ask(MODULE, arguments)
    except AgentCommandError as error:
        fail(f"{parts}: {error}")
    verdict = judge(answer)
    if job is not None:
        fields = {"change": ", ".join(answer["changes"]), "verdict": verdict.verdict, "why": verdict.why}
        fields["text"] = f"tried {fields['change']}: {verdict.verdict}"
        keep(TRIAL, job, fields, incident=incident, address=address, token_file=token_file)
    if as_json:
        print_json({"parts": parts, "steps": steps, **verdict.as_object(), **answer})
    else:
        _print(answer, verdict, job)
    sys.exit(EXIT_CODES[verdict.verdict])


def _print(answer: Json, verdict: TrialVerdict, job: str | None) -> None:
    echo(f"tried {', '.join(answer['changes'])} from {answer['with']['start']}: {WORDS[verdict.verdict]}")
    echo(f"  {verdict.why}")
    for name in ("without", "with"):
        side = answer[name]
        changed = "; ".join(side["changes"]) or "no change"
        last = side["losses"][-1]
        loss = "not finite" if last is None else f"{last:.4g}"
        echo(f"  {name:8} loss {side['losses'][0]:.4g} to {loss} in {len(side['losses'])} steps ({changed})")
    for caveat in verdict.caveats:
        echo(f"  note: {caveat}")
    if job is not None:
        echo(f"  kept with {job}: caboose history shows it")
