"""Nothing that others wrote reaches a terminal or a log as a control character."""

import io
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text

import caboose_daemon
from caboose_daemon.cli.console import LogFormatter, SafeConsole
from caboose_daemon.format import one_line, printable
from caboose_wire import Bye, Layer
from support.processes import DaemonProcess, caboose_command, clean_environment, running_daemon, wait_until
from support.ranks import a_report, simulated_ranks

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


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with a job whose every text is hostile, and an incident in one of its layers."""
    with running_daemon(tmp_path_factory.mktemp("hostile")) as daemon:
        layers = tuple(Layer(name=f"{EVIL}{num}", numel=10) for num in range(4))
        hello = {"job": "evil", "host": EVIL, "layers": layers, "agent_version": EVIL, "wrapper": EVIL}
        with simulated_ranks(daemon.endpoint, 1, hello) as (rank,):
            for step in range(1, 31):
                norms = np.array([0.1, 0.2, 0.3, np.nan if step > 20 else 0.4], dtype=np.float32)
                loss = np.nan if step > 22 else 2.0
                rank.send(a_report(step, loss=loss, arrays={"grad_norm": norms}))
            assert wait_until(lambda: daemon.step("evil") == 30, 10)
            assert wait_until(lambda: daemon.get("/api/v1/jobs/evil/incidents")["incidents"], 10)
            said = {"by": EVIL, "reason": EVIL}
            assert daemon.post("/api/v1/jobs/evil/incidents/1/ack", said)[0] == 200
            assert daemon.post("/api/v1/jobs/evil/events", {"kind": "note", "fields": {"text": EVIL}})[0] == 201
            rank.send(Bye(step=30, error=f"RuntimeError: {EVIL}"))
            assert wait_until(lambda: daemon.get("/api/v1/jobs/evil")["state"] == "crashed", 10)
        yield daemon


@pytest.mark.parametrize(
    ("shown", "command"),
    [
        ("boom", ("diagnose", "evil")),
        ("boom", ("history",)),
        ("evil", ("top", "--plain", "-n", "1")),
        ("evil", ("jobs",)),
        ("jobs", ("doctor",)),
    ],
)
def test_commands_print_what_a_rank_sent_without_its_escapes(
    hostile: DaemonProcess, shown: str, command: tuple[str, ...]
) -> None:
    env = clean_environment(CABOOSE_HTTP=hostile.url.removeprefix("http://").rstrip("/"))
    result = subprocess.run(caboose_command(*command), env=env, capture_output=True, text=True, timeout=60)
    printed = result.stdout + result.stderr

    assert result.returncode in (0, 1), printed
    assert shown in printed
    assert not re.search("\x1b(?!\\[[0-9;]*m)|\x07|\x9b|\u202e", printed), repr(printed)
