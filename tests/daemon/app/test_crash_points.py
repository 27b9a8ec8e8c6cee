"""A daemon that is killed at any commit starts again, with all that it had shown, and does nothing twice.

Two ways. A copy of the journal before and after every commit of one run is opened: it is what a SIGKILL at that moment
would have left. And a real daemon kills itself at a commit, is started again, and the run goes on.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.store.rows import ROWS
from caboose_wire import Command
from support.crash_story import LISTS, Died, Story, a_story
from support.jobs.mortal import FILES
from support.journals import started_on
from support.processes import DaemonProcess, running_daemon, wait_until
from support.witness import Witness, kept, key_of

pytestmark = pytest.mark.slow

MORTAL = (sys.executable, "-m", "support.jobs.mortal")
ARGUMENTS = ("--rollback", "auto")
MORE_STEPS = 20


def found_in(data: Path) -> dict[Any, Any]:
    """All that a daemon has after a start on this journal, which must be in order."""
    with started_on(data, is_strict=True) as daemon:
        state = daemon.state
        assert (state.journal_quarantined, state.journal_set_aside, state.journal_damage) == (0, "", "")
        return kept(state.jobs["train"]) if "train" in state.jobs else {}


def check_pages(data: Path) -> None:
    with contextlib.closing(sqlite3.connect(data / "journal.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


# Every commit of one run


@dataclass
class Told:
    """A story that went to its end, and the copies that were made meanwhile."""

    directory: Path
    points: list[dict[str, Any]]
    witness: Witness
    commands: list[tuple[float, Command]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    directory = tmp_path_factory.mktemp("copies")
    environment = {"CRASH_COPIES": str(directory / "copies")}
    with running_daemon(directory / "daemon", *ARGUMENTS, env=environment, command=MORTAL) as daemon:
        with a_story(daemon) as story:
            story.tell()
        daemon.kill()
    lines = (directory / "copies" / "points.jsonl").read_text().splitlines()
    yield Told(directory / "copies", [json.loads(line) for line in lines], story.witness, story.ranks.received)
    shutil.rmtree(directory)


def test_the_story_commits_everything_that_a_journal_keeps(told: Told) -> None:
    tables = {table for point in told.points for table in point["tables"]}
    assert tables >= ROWS.keys()
    assert Counter(point["moment"] for point in told.points)["before"] > 20
    assert {row["state"] for row in told.witness.latest("decision")} == {"committed"}


def test_after_a_kill_at_any_commit_all_that_was_shown_is_there(told: Told) -> None:
    for point in told.points:
        data = told.directory / str(point["number"])
        found = found_in(data)
        check_pages(data)
        assert told.witness.missing(found, point["time"], is_whole=True) == [], point
        numbers = {row["command"] for key, row in found.items() if key[0] == "decision"}
        sent = {command.number for arrived, command in told.commands if arrived < point["time"]}
        assert sent <= numbers, f"{point}: a command was sent whose decision is not in the journal"


# A real kill


def real_kill(directory: Path, crash_at: str) -> bool:
    """Whether the daemon got to its end; whatever became of it, it is started again and must have lost nothing."""
    environment = {"CRASH_AT": crash_at}
    with running_daemon(directory, *ARGUMENTS, env=environment, command=MORTAL) as daemon, a_story(daemon) as story:
        is_over = False
        with contextlib.suppress(Died):
            story.tell()
            is_over = True
            daemon.kill()
        assert daemon.process.wait(10) == -9, daemon.log.read_text()
        story.close()
        check_left(story, directory)
        listen = daemon.endpoint
        with running_daemon(directory, *ARGUMENTS, listen=listen) as again:
            story.daemon = again
            check_goes_on(story, again)
        check_pages(again.data_dir)
    return is_over


def check_left(story: Story, directory: Path) -> None:
    """What the dead daemon left has all that it had shown."""
    copy = directory / "copy"
    copy.mkdir()
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(directory / "data" / name, copy / name)
    found = found_in(copy)
    assert story.witness.missing(found, float("inf"), is_whole=False) == []
    story.witness = Witness()
    for key, row in found.items():
        story.witness.see(key[0], row)


def check_goes_on(story: Story, again: DaemonProcess) -> None:
    """It shows all that was left, the run goes on, and nothing is done twice."""
    about = again.get("/api/v1/daemon")
    assert (about["journal"]["num_quarantined"], about["journal"]["set_aside"]) == (0, ""), about["journal"]
    ranks = story.ranks
    if ranks.ident is None:
        ranks.start()
    ranks.limit = max(ranks.step, ranks.limit) + MORE_STEPS
    assert wait_until(lambda: again.step("train") >= ranks.limit, 20), again.log.read_text()
    shown = {
        key_of(kind, row): row
        for path, (name, kind) in LISTS.items()
        for row in again.get(f"/api/v1/jobs/train/{path}")[name]
    }
    lost = [text for text in story.witness.missing(shown, float("inf"), is_whole=False) if "lost" in text]
    assert [text for text in lost if not text.startswith(("('step'", "('event'", "('attempt'"))] == []
    decisions = [row for key, row in shown.items() if key[0] == "decision"]
    made = Counter((row["kind"], row["trigger"] or row["by"]) for row in decisions if row["state"] != "refused")
    told = [(row["kind"], row["trigger"], row["state"], row["step"], row["outcome"]) for row in decisions]
    assert set(made.values()) <= {1}, f"decided twice: {told}"
    for rank in ranks.ranks:
        numbers = [command.number for number, command in ranks.of_rank if number == rank.hello.rank]
        assert numbers == sorted(set(numbers)), f"rank {rank.hello.rank} got a command twice: {numbers}"
        assert set(numbers) <= {row["command"] for row in decisions}
    assert len(ranks.acted) == len({command.number for _, command in ranks.acted})


SAMPLE = ("after:decisions:1", "before:decisions:1", "after:incidents:2", "after:attempts:2")
"""A command by hand, an acknowledgement, the attempt after a rollback."""


@pytest.mark.parametrize("crash_at", SAMPLE)
def test_a_daemon_that_kills_itself_at_a_commit_loses_nothing_and_repeats_nothing(
    tmp_path: Path, crash_at: str
) -> None:
    assert not real_kill(tmp_path, crash_at), "the story has no such commit"


NUM_PARTS = 8
DONE = Path(os.environ["CRASH_POINTS_DONE"]) if "CRASH_POINTS_DONE" in os.environ else None
"""Where parts that passed are kept, so that a run that was interrupted goes on; removed when all have passed."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_daemon_may_kill_itself_at_every_commit_in_turn(tmp_path: Path, moment: str, part: int) -> None:
    """But the first one, which makes the tables: it is among the copies."""
    done = DONE / f"{moment}-{part}" if DONE else None
    if done and done.exists():
        pytest.skip(f"it passed before: {done.read_text()}")
    number, kills = 2 + part, 0
    while not real_kill(tmp_path / str(number), f"{moment}:{number}"):
        shutil.rmtree(tmp_path / str(number))
        number, kills = number + NUM_PARTS, kills + 1
    if done:
        done.parent.mkdir(parents=True, exist_ok=True)
        done.write_text(f"{kills} kills")
