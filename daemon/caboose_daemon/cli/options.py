"""What the commands share: options, exit codes, the daemon or journal to read, the token, and how they print."""

import getpass
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from caboose_daemon.cli.console import SafeConsole, echo
from caboose_daemon.config import Config, ConfigError, DaemonConfig, load
from caboose_daemon.offline.runs.opening import open_runs, open_source
from caboose_daemon.offline.runs.run import Run, RunError
from caboose_daemon.offline.runs.source import MAX_NAMES, DaemonSource, HistorySource, RunSource
from caboose_daemon.out.api import known_daemons
from caboose_daemon.out.api.client import READ_TOKEN_FILE, Client, ClientError
from caboose_daemon.out.api.client import read_token as read_file_token
from caboose_wire.endpoints import DEFAULT_HTTP

EXIT_OK = 0
EXIT_FAILED = 1
"""The command ran, and the result is negative: refused, not helped, a problem found, a process failed."""
EXIT_USAGE = 2
"""The command could not run as asked: the user has to change something."""
EXIT_UNDECIDED = 3
"""`caboose verify` and `caboose try`: the data is not enough for a verdict."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells count it."""

PIPED_WIDTH = 120
MAX_WIDTH = 120

DAEMON_DEFAULT = "[default: CABOOSE_HTTP, that of `caboose stack`, or 127.0.0.1:9757]"
daemon_option = click.option("--daemon", "address", metavar="URL", help=f"The daemon to ask.  {DAEMON_DEFAULT}")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
json_lines_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line, for programs."
)
token_option = click.option(
    "--token-file",
    envvar="CABOOSE_TOKEN_FILE",
    help="File with the daemon's token.  [default: that of the daemon, if you started it on this machine]",
)
journal_option = click.option(
    "--journal",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read this journal.sqlite instead of asking a daemon.",
)
config_option = click.option(
    "--config",
    "config_file",
    envvar="CABOOSE_CONFIG",
    type=click.Path(path_type=Path),
    help="Configuration file.  [default: caboose.toml, if it exists]",
)


# Help


def example(*lines: str) -> str:
    """The end of a command's --help: lines to copy."""
    return "\b\nExample:\n" + "\n".join(f"    {line}" for line in lines)


# Ending


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """Prints one line to standard error and ends the command."""
    echo(f"caboose: {message}", err=True)
    sys.exit(code)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the command with one line where a configuration, daemon, journal or log cannot be read."""
    try:
        yield
    except (ConfigError, ClientError, RunError) as error:
        fail(str(error))


# Configuration


def default_file() -> Path | None:
    """caboose.toml in this directory, if it exists."""
    path = Path("caboose.toml")
    return path if path.exists() else None


def configured_file() -> Path | None:
    """The file of commands without --config: CABOOSE_CONFIG, or caboose.toml in this directory."""
    named = os.environ.get("CABOOSE_CONFIG")
    return Path(named) if named else default_file()


def load_config(path: Path | None) -> Config:
    with one_line_errors():
        return load(path)


# The daemon, a journal, logs


def daemon_address(given: str | None) -> str:
    return given or os.environ.get("CABOOSE_HTTP") or _stack_address() or DEFAULT_HTTP


def _stack_address() -> str:
    known = stack_daemon()
    return "" if known is None else known.url


def stack_daemon() -> known_daemons.KnownDaemon | None:
    """The daemon of the stack that `caboose stack up` started last; None while there is none."""
    return known_daemons.known_as(known_daemons.STACK)


def connect(given: str | None) -> Client:
    """A client of the daemon at --daemon, CABOOSE_HTTP or the default address."""
    try:
        return Client(daemon_address(given), token=read_file_token(_read_token_file()))
    except ValueError as error:
        fail(f"--daemon {error}")


def _read_token_file() -> str:
    """The file with the token for reading: of the variable, or of the configuration, where that can be read."""
    try:
        return os.environ.get(READ_TOKEN_FILE) or load(configured_file()).daemon.read_token_file
    except ConfigError:
        return ""


def configured_fleet() -> tuple[str, ...]:
    """The daemons that the configuration lists; none where it cannot be read."""
    try:
        return load(configured_file()).fleet.daemons
    except ConfigError:
        return ()


def source(address: str | None, journal: Path | None) -> RunSource:
    """The journal if --journal names one, else the daemon."""
    if journal is not None and address is not None:
        fail("--daemon and --journal: give one of them")
    with one_line_errors():
        return open_source(journal, lambda: connect(address))


def named_job(where: HistorySource, name: str | None) -> str:
    """The named job, which must exist; without a name, the only job."""
    jobs = [str(row["job"]) for row in where.jobs()]
    known = ", ".join(jobs[:MAX_NAMES]) or "no job yet"
    if name is not None and name not in jobs:
        fail(f"no job {name!r}; {where.name} knows {known}")
    if name is None and len(jobs) != 1:
        fail(f"which job? {where.name} knows {known}" if jobs else f"{where.name} knows no job yet")
    return jobs[0] if name is None else name


def the_job(name: str | None, address: str | None) -> str:
    """The named job; without a name the daemon's only one, which is then named on standard error."""
    if name is not None:
        return name
    with one_line_errors():
        job = named_job(DaemonSource(connect(address)), None)
    echo(f"job {job}", err=True)
    return job


def load_runs(names: Sequence[str], address: str | None) -> list[Run]:
    """The named runs, with a progress bar where reading takes long."""
    runs: list[Run] = []
    with one_line_errors(), progress_bar(SafeConsole(stderr=True)) as progress:
        rules = load(configured_file()).rules
        for name in names:
            task = progress.add_task(name[-40:], total=None)
            runs += open_runs(
                name,
                lambda: connect(address),
                rules,
                lambda done, total, task=task: progress.update(task, completed=done, total=total),  # type: ignore[misc]
            )
            progress.remove_task(task)
    return runs


def load_one_run(name: str, address: str | None) -> Run:
    """The named run; a journal of several jobs needs a job's name."""
    runs = load_runs([name], address)
    if len(runs) > 1:
        fail(f"{name}: holds {', '.join(run.name for run in runs[:MAX_NAMES])}; name one: {name}:{runs[0].name}")
    return runs[0]


# The token


def read_token(given: str | None, url: str) -> str:
    """The token for writes to the daemon at `url`: of --token-file, as that daemon noted it, or as configured here."""
    known = known_daemons.known_at(url)
    if given:
        path = Path(given).expanduser()
    elif known is not None:
        path = Path(known.token_file)
    else:
        path = token_file_of(load_config(configured_file()).daemon)
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        fail(f"{path}: {error.strerror}; --token-file names the file with the daemon's token (`token` in its data_dir)")


def token_file_of(config: DaemonConfig) -> Path:
    """Where a daemon that is started here, with this configuration, keeps its token."""
    if config.token_file:
        return Path(config.token_file).expanduser()
    return Path(os.environ.get("CABOOSE_DATA_DIR") or config.data_dir).expanduser() / "token"


def user_name() -> str:
    """The user who runs the command, for the daemon's records."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as containers have them
        return f"uid {os.getuid()}"


# Printing


def make_console(max_width: int = MAX_WIDTH) -> Console:
    """Standard output: as wide as the terminal, up to `max_width` columns; a pipe gets 120."""
    width = int(os.environ.get("COLUMNS", "0") or 0) if sys.stdout.isatty() else PIPED_WIDTH
    console = SafeConsole(width=width or None, highlight=False)
    return console if console.width <= max_width else SafeConsole(width=max_width, highlight=False)


def print_json(value: Any) -> None:
    """One JSON object on one line."""
    echo(json.dumps(value, allow_nan=False))


def progress_bar(errors: Console) -> Progress:
    """A bar for each task on standard error, removed at the end; nothing where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
