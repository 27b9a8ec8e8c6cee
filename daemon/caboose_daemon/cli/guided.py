"""The terminal's part of `caboose diagnose --guided`: questions go out, lines come in."""

from typing import Any

import click

from caboose_daemon.cli.options import EXIT_FAILED, fail, load_one_run
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
        run = load_one_run(name, address) if name else None
        answer = Interview(ask, tell, run).hold()
    except click.Abort:  # Ctrl-C, or the end of what was piped in
        click.echo(err=True)
        fail("broken off; nothing was kept", EXIT_FAILED)
    tell("")
    return answer
