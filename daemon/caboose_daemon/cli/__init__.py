"""The `caboose` command.

Its subcommands are imported when they are asked for: who types `caboose jobs` at 3 a.m. need not wait for the daemon,
the rules and the plots to load.
"""

import difflib
from importlib import import_module

import click

from caboose_daemon.version import __version__

HOMES = {
    "ack": "incident_commands",
    "apply": "rollback",
    "checkpoint": "rollback",
    "note": "incident_commands",
    "snapshot": "rollback",
}
"""The file a command is in, where that is not named after it."""
NAMES = (
    "ack",
    "apply",
    "checkpoint",
    "compare",
    "daemon",
    "demo",
    "diagnose",
    "doctor",
    "drill",
    "grafana",
    "history",
    "hunt",
    "jobs",
    "keys",
    "note",
    "replay",
    "report",
    "rollback",
    "rules",
    "snapshot",
    "stack",
    "top",
    "verify",
)


class LazyGroup(click.Group):
    """Commands that lie in files of this folder."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the alphabet."""
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, if there is one."""
        return command(cmd_name) if cmd_name in NAMES else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As any group; a name that is nearly one of ours gets that one suggested."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], NAMES, 1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None


def command(name: str) -> click.Command:
    """One of `NAMES`."""
    found = getattr(import_module(f"{__name__}.{HOMES.get(name, name)}"), name)
    assert isinstance(found, click.Command), f"{name} is a command of its file"
    return found


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="caboose")
def caboose() -> None:
    """Watches PyTorch DDP and FSDP training runs: every rank, every layer.

    \b
    Start here:
        caboose demo        a two-rank run, watched end to end, in a minute
        caboose daemon      the daemon your own jobs report to
        caboose top         all jobs, live in this terminal
        caboose diagnose    what is wrong with a run, and why
        caboose compare     runs side by side, and what their differences say
        caboose report      one HTML file about a run, for people who were not there
        caboose rules       what it looks for
        caboose replay      what it would have said about a log you have
        caboose drill       models with known diseases, and what it says of them
        caboose rollback    a run back to its last healthy state
        caboose hunt        which number broke first, and in which samples
        caboose verify      whether a change helped
        caboose history     past incidents, their causes, what resolved them
        caboose doctor      what keeps any of this from working
        caboose grafana     dashboards and incidents in your Grafana
    """
