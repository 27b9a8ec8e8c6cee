"""The `caboose` command.

Subcommands are imported when they are run: `caboose jobs` does not wait for the daemon, rules or plots to load.
"""

import difflib
from importlib import import_module

import click

from caboose_daemon.version import __version__

HOMES = {
    "ack": "incident_commands",
    "apply": "rollback",
    "checkpoint": "rollback",
    "inspect": "agent_commands",
    "preflight": "agent_commands",
    "note": "incident_commands",
    "snapshot": "rollback",
    "try": "try_change",
}
"""The module of a command that is not named after it."""
FUNCTIONS = {"try": "try_change"}
"""The function of a command whose name is a word of Python."""
NAMES = (
    "ack",
    "apply",
    "checkpoint",
    "compare",
    "config",
    "daemon",
    "demo",
    "diagnose",
    "doctor",
    "drill",
    "grafana",
    "history",
    "hunt",
    "inspect",
    "jobs",
    "keys",
    "mcp",
    "note",
    "plot",
    "preflight",
    "relay",
    "replay",
    "report",
    "rollback",
    "rules",
    "snapshot",
    "stack",
    "top",
    "try",
    "verify",
)


class LazyGroup(click.Group):
    """Commands from the modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command(cmd_name) if cmd_name in NAMES else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggests the nearest command for an unknown name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], NAMES, 1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None


def command(name: str) -> click.Command:
    """One of `NAMES`."""
    found = getattr(import_module(f"{__name__}.{HOMES.get(name, name)}"), FUNCTIONS.get(name, name))
    assert isinstance(found, click.Command), f"{name} is a command in its module"
    return found


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n    caboose demo",
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="caboose")
@click.pass_context
def caboose(context: click.Context) -> None:
    """Watches PyTorch DDP and FSDP training runs: every rank, every layer.

    \b
    Start here:
        caboose demo        watch a two-rank run with a fault, in a minute
        caboose preflight   check a model, its loss and its data before a run
        caboose inspect     gradients, activations, learning rate of a model, with plots
        caboose plot        draw the curves of a run or a log
        caboose daemon      run the daemon that your jobs report to
        caboose relay       collect the reports of a node or rack, for jobs of thousands of ranks
        caboose top         watch all jobs in this terminal
        caboose diagnose    show what is wrong with a run, and the likely causes
        caboose compare     compare runs, and find the setting that made the difference
        caboose report      write one HTML file about a run
        caboose rules       list the rules and their thresholds
        caboose replay      run the rules over a log you have
        caboose drill       train models with known faults, and check what is found
        caboose rollback    roll a run back to a healthy snapshot
        caboose hunt        find which number broke first, and in which samples
        caboose try         try a change for some steps, beside the same steps without it
        caboose verify      judge whether a change helped
        caboose history     past incidents, their causes, what resolved them
        caboose doctor      find out why nothing shows up
        caboose grafana     dashboards and incidents in your Grafana
        caboose mcp         let an assistant ask about your runs
    """
    if context.invoked_subcommand is None:
        import_module(f"{__name__}.overview").overview(context)
