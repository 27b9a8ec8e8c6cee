"""The terminal's part of `caboose diagnose --guided`: questions go out, lines come in."""

from typing import Any

import click

from caboose_daemon.cli.exits import fail
from caboose_daemon.cli.run_loading import load_runs
from caboose_daemon.offline.guided.interview import Interview

WHICH = "Which run? A job, FILE.sqlite:JOB or a log; nothing for none"


def interview(what: tuple[str, ...], address: str | None, *, is_quiet: bool) -> dict[str, Any]:
    """The answer of the conversation; words go to standard error where the answer is for a program."""
    if len(what) > 1:
        fail(f"--guided is about one run, not {len(what)}; name one of {', '.join(what)}")

    def ask(text: str) -> str:
        suffix = " " if text.endswith(("?", ")")) else ": "
        words = click.style(text, bold=True)
        return str(click.prompt(words, default="", show_default=False, prompt_suffix=suffix, err=is_quiet))

    def tell(text: str) -> None:
        click.echo(text, err=is_quiet)

    try:
        name = what[0] if what else ask(WHICH).strip()
        runs = load_runs([name], address) if name else []
        if len(runs) > 1:
            fail(f"{name}: holds {', '.join(run.name for run in runs[:20])}; name one: {name}:{runs[0].name}")
        answer = Interview(ask, tell, runs[0] if runs else None).hold()
    except click.Abort:  # Ctrl-C, or the end of what was piped in
        click.echo("\ncaboose: broken off; nothing was kept", err=True)
        raise SystemExit(1) from None
    tell("")
    return answer
