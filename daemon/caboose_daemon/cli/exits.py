"""How a command ends that cannot do what it was asked."""

import sys
from typing import NoReturn

import click

EXIT_USAGE = 2


def fail(message: str) -> NoReturn:
    """One line to standard error, and exit code 2: the user has to change something."""
    click.echo(f"caboose: {message}", err=True)
    sys.exit(EXIT_USAGE)
