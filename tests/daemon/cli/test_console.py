"""Nothing that others wrote reaches a terminal or a log as a control character."""

import io
import logging
import re
import subprocess
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import caboose_daemon
from caboose_daemon.cli.console import LogFormatter, SafeConsole
from caboose_daemon.format import one_line, printable
from caboose_wire import Bye
from support.processes import DaemonProcess, caboose_command, clean_environment, wait_until
from support.ranks import simulated_ranks

EVIL = "boom\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe"


@pytest.mark.parametrize("text", ["plain", "naïve ünïcode", "two\nlines\tand a tab"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert printable(EVIL) == r"boom\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe"
    assert one_line("a\nforged line") == r"a\nforged line"


@pytest.mark.parametrize("shape", ["text", "cell", "string"])
def test_richs_own_colours_stay_and_those_of_others_do_not(shape: str) -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system="standard", width=100)
    table = Table()
    table.add_row(EVIL)
    console.print({"text": Text(EVIL, style="red"), "cell": table, "string": f"[red]{EVIL}[/]"}[shape])

    printed = out.getvalue()
    assert r"\x1b" in printed
    assert not re.search("\x1b(?!\\[[0-9;]*m)|\x07|\x9b|\u202e", printed), repr(printed)


def test_a_log_line_is_one_line() -> None:
    record = logging.LogRecord("caboose", logging.ERROR, "", 0, "job %s failed", ("x\n2026 INFO forged\x1b[2J",), None)

    assert LogFormatter("%(message)s").format(record) == r"job x\n2026 INFO forged\x1b[2J failed"


def test_no_command_prints_past_it() -> None:
    folder = Path(caboose_daemon.__file__).parent
    sources = {path: path.read_text() for part in ("cli", "ops") for path in (folder / part).rglob("*.py")}
    found = [path.name for path, text in sources.items() if re.search(r"(?<![\w.])(Console|print)\(", text)]

    assert found == []


@pytest.mark.parametrize(
    "command", [("jobs",), ("top", "--plain", "--num", "1"), ("diagnose", "evil"), ("history",), ("doctor",)]
)
def test_commands_print_an_error_of_a_rank_without_its_escapes(daemon: DaemonProcess, command: tuple[str, ...]) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": "evil", "host": EVIL}) as (rank,):
        rank.send(Bye(step=1, error=f"RuntimeError: {EVIL}"))
        assert wait_until(lambda: daemon.get("/api/v1/jobs/evil")["state"] == "failed", 10)
        env = clean_environment(CABOOSE_HTTP=daemon.url.removeprefix("http://").rstrip("/"))
        result = subprocess.run(caboose_command(*command), env=env, capture_output=True, text=True, timeout=60)

    assert not re.search("\x1b(?!\\[[0-9;]*m)|\x07|\x9b|\u202e", result.stdout + result.stderr), result.stdout
