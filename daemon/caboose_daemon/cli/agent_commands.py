"""`caboose preflight` and `caboose inspect`: the agent's own commands, which run where torch is.

Design
------
The daemon never imports the agent. These commands start it in a process of its own, with the arguments as they are;
that process replaces nothing here, so that an interrupt and the exit code pass through.
"""

import subprocess
import sys

import click

from caboose_daemon.cli.console import echo

SETTINGS = {"ignore_unknown_options": True, "help_option_names": [], "allow_interspersed_args": False}


@click.command(context_settings=SETTINGS, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def preflight(arguments: tuple[str, ...]) -> None:
    """Check model, loss, data and optimizer before a run: caboose preflight script.py:parts.

    Parts is a function that returns them as a dict. Everything is restored, nothing is written.
    """
    _run("caboose.checklist.command", arguments)


@click.command(context_settings=SETTINGS, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def inspect(arguments: tuple[str, ...]) -> None:
    """Run one tool on your model: gradients, activations, lr, one-batch, sharpness or nan, with a plot."""
    _run("caboose.inspect_command", arguments)


def _run(module: str, arguments: tuple[str, ...]) -> None:
    if not arguments or {"-h", "--help"} & set(arguments):
        arguments = ("--help",)
        shown = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
        )
        echo(shown.stdout or shown.stderr, nl=False)
        sys.exit(shown.returncode)
    try:
        ended = subprocess.run([sys.executable, "-m", module, *arguments], check=False)  # noqa: S603 - our own command
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(ended.returncode if ended.returncode >= 0 else 128 - ended.returncode)
