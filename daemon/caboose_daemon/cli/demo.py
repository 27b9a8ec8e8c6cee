"""`caboose demo`."""

import click


@click.command()
def demo() -> None:
    """A two-rank run, watched end to end."""
