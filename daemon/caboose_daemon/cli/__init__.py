"""The `caboose` command."""

import click

from caboose_daemon.cli.daemon import daemon
from caboose_daemon.cli.demo import demo
from caboose_daemon.cli.keys import keys
from caboose_daemon.cli.replay import replay
from caboose_daemon.cli.rules import rules
from caboose_daemon.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="caboose")
def caboose() -> None:
    """Watches PyTorch DDP training runs: every rank, every layer.

    \b
    Start here:
        caboose demo        a two-rank run, watched end to end, in a minute
        caboose daemon      the daemon your own jobs report to
        caboose rules       what it looks for
        caboose replay      what it would have said about a log you have
    """


caboose.add_command(daemon)
caboose.add_command(demo)
caboose.add_command(keys)
caboose.add_command(replay)
caboose.add_command(rules)
