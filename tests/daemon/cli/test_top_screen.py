"""`caboose top` on a real terminal: it draws, obeys keys, and leaves the terminal as it found it."""

import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from caboose_daemon.cli.jobs import jobs_table
from caboose_daemon.cli.keyboard import Keyboard
from caboose_daemon.cli.top_pages import screen
from caboose_daemon.cli.top_view import View
from caboose_daemon.offline.runs.source import DaemonSource
from caboose_daemon.out.api.client import Client
from support.processes import DaemonProcess, caboose_command, clean_environment, end, running_daemon, wait_until
from support.ranks import send_steps, simulated_ranks


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with (
        running_daemon(tmp_path_factory.mktemp("watched")) as daemon,
        simulated_ranks(daemon.endpoint, 2, {"job": "gpt"}) as ranks,
    ):
        send_steps(ranks, 1, 60)
        assert wait_until(lambda: daemon.get("/api/v1/jobs/gpt")["step"] == 60, 20)
        yield daemon


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        self.seen = ""
        self.process = subprocess.Popen(
            caboose_command(*arguments),
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=subprocess.PIPE,
            cwd=directory,
            env=clean_environment(TERM="xterm-256color"),
        )

    def wait_for(self, text: str, seconds: float = 15.0) -> bool:
        deadline = time.monotonic() + seconds
        while text not in self.seen and time.monotonic() < deadline:
            if select.select([self.ours], [], [], 0.1)[0]:
                self.seen += os.read(self.ours, 65536).decode("utf-8", "replace")
        return text in self.seen

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def close(self) -> None:
        end(self.process)
        if self.process.stderr is not None:
            self.process.stderr.close()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal(watched: DaemonProcess, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path, "top", "--every", "0.2", "--daemon", watched.url)
    yield opened
    opened.close()


def test_keys_open_a_job_and_end_it_and_the_terminal_is_as_before(terminal: Terminal) -> None:
    assert terminal.wait_for("gpt"), terminal.seen
    terminal.press(b"\r")
    assert terminal.wait_for("gradient norm"), terminal.seen
    terminal.press(b"q")

    assert terminal.process.wait(10) == 0
    assert terminal.wait_for("\x1b[?1049l", 2), "the other screen is back"
    assert termios.tcgetattr(terminal.theirs) == terminal.before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_cleanly(terminal: Terminal, number: int) -> None:
    assert terminal.wait_for("gpt"), terminal.seen
    terminal.process.send_signal(number)

    assert terminal.process.wait(10) == 0
    assert terminal.wait_for("\x1b[?1049l", 2)
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert terminal.process.stderr is not None
    assert terminal.process.stderr.read() == b""


def test_keys_that_come_together_are_told_one_by_one() -> None:
    ours, theirs = os.pipe()
    try:
        keys = Keyboard(ours)
        os.write(theirs, b"\x1b[B\x1b[B\x1b[Ajl\r")
        assert [keys.wait(1) for _ in range(6)] == ["down", "down", "up", "down", "l", "enter"]
        os.write(theirs, b"\x1b")
        assert keys.wait(1) == "back"
        os.write(theirs, b"\x1b[1;5C")
        assert (keys.wait(1), keys.wait(0)) == ("unknown", "")
    finally:
        os.close(ours)
        os.close(theirs)


def drawn(view: View, width: int, height: int) -> list[str]:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=width, height=height, file=nowhere, record=True)
        console.print(screen(view, console))
        return console.export_text().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50)])
def test_a_screen_fits_into_the_terminal(watched: DaemonProcess, width: int, height: int) -> None:
    for job in (None, "gpt"):
        view = View(DaemonSource(Client(watched.url)), job)
        view.refresh()
        lines = drawn(view, width, height)

        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert any("gpt" in line for line in lines)


def test_a_daemon_that_goes_away_leaves_what_was_known_and_says_so(watched: DaemonProcess) -> None:
    view = View(DaemonSource(Client(watched.url)), "gpt")
    view.refresh()
    view.source = DaemonSource(Client("127.0.0.1:1"))
    view.refresh()

    text = "\n".join(drawn(view, 100, 30))

    assert "no daemon answers" in text
    assert "step 60" in text


def a_view(**changes: Any) -> View:
    rank = {"host": "node0", "state": "live", "loss": 2.0, "step_seconds": 0.1, "silent_seconds": 0.1, "error": ""}
    detail = {"state": "running", "health": "ok", "attempt": 1, "num_live": 4096, "world": 4096, "rollback": "off"}
    detail |= {"step": 3, "loss": 2.0, "last": None, "step_seconds": 0.1, "agent_share": None}
    detail |= {"ranks": [{**rank, "rank": number} for number in range(4096)]}
    return View(DaemonSource(Client("127.0.0.1:1")), "huge", detail=detail, **changes)


def test_of_thousands_of_ranks_the_worst_are_shown() -> None:
    view = a_view(steps=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": None, "num_bad": 1}, {"step": 3, "loss": 1.0}])
    assert view.detail is not None
    view.detail["ranks"][4000]["state"] = "failed"
    view.detail["ranks"][77]["loss"] = "NaN"

    lines = drawn(view, 100, 40)

    assert len(lines) <= 40
    assert any("4,095 live, 1 failed" in line for line in lines)
    shown = [line for line in lines if line.startswith("  rank ")]
    assert [line.split()[1] for line in shown[:2]] == ["4000", "77"]


def test_a_loss_that_is_not_finite_is_a_gap_and_a_norm_that_was_not_taken_stands() -> None:
    losses, norms = [2.0, None, None, 1.0], [1.0, None, None, 3.0]
    bad = [0, 0, 1, 0]
    rows = zip(losses, norms, bad, strict=True)
    view = a_view(steps=[{"loss": loss, "grad_norm_max": norm, "num_bad": num} for loss, norm, num in rows])

    assert str(view.curve("loss")) == "[2.0, nan, nan, 1.0]"
    assert str(view.curve("grad_norm_max")) == "[1.0, 1.0, nan, 3.0]"


def a_row(job: str, **changes: Any) -> dict[str, Any]:
    row = {"job": job, "health": "critical", "num_open": 2, "state": "running", "step": 1_234_567, "loss": 2.3456}
    return {**row, "num_live": 64, "world": 64, "silent_seconds": 720.0, "rollback": "advise", **changes}


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (40, {"health", "step"}),
        (60, {"health", "step", "loss", "ranks"}),
        (80, {"health", "state", "step", "loss", "ranks", "heard"}),
        (120, {"health", "state", "step", "loss", "ranks", "heard", "rollback"}),
    ],
)
@pytest.mark.parametrize("is_top", [False, True], ids=["jobs", "top"])
def test_the_name_of_a_job_is_readable_at_any_width(width: int, shown: set[str], is_top: bool) -> None:
    rows = [a_row("llama-7b-pretraining-with-a-long-name"), a_row("vit", health="ok", num_open=0)]
    console = Console(width=width, height=30, record=True, file=io.StringIO())

    if is_top:
        view = View(DaemonSource(Client("http://127.0.0.1:9")))
        view.jobs = rows
        console.print(screen(view, console))
    else:
        console.print(jobs_table(rows, width))

    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    (head,) = (line for line in lines if "health" in line)
    assert set(head.split()) - {"job"} == shown - ({"step"} if is_top and width == 40 else set())
    (long,) = (line for line in lines if "critical" in line)
    assert "llama-7b-pretr" in long, "cut, with a sign that it is"
    assert ("…" in long) is (width < 120)
    assert any(line.strip(" ▸").startswith("vit ") for line in lines)


def test_short_names_leave_room_for_the_rest() -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(jobs_table([a_row("gpt", health="ok", num_open=0, world=8, num_live=8)], 60))
    assert "heard" in console.export_text()
