"""A stream tells a status whole once and then what changed, and whoever puts it together again has the whole truth."""

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from caboose_daemon.jobs.thresholds import Thresholds
from caboose_daemon.out.api.live import MAX_BACKLOG, Broker
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.rank_columns import FIELDS, LATELY_SECONDS, RankColumns, Row
from caboose_daemon.out.web.status import MAX_KEPT, StatusBoard
from caboose_daemon.out.web.stream import Stream
from caboose_daemon.steps.columns import RANK_COLUMNS
from caboose_daemon.store.history import HistoryReader
from caboose_wire import Bye, Event
from support.ranks import a_hello, a_report
from support.recorder import Core
from support.scenario import JournaledCore


def a_row(rank: int = 0, **changes: Any) -> Row:
    """What is reported about a healthy rank."""
    fields: dict[str, Any] = {
        "rank": rank,
        "host": f"node{rank // 8}",
        "pid": 100 + rank,
        "state": "live",
        "step": 7,
        "num_missed": 0,
        "num_dropped": 0,
        "agent_state": "training",
        "agent_failures": 0,
        "error": "",
        **{column.name: None for column in RANK_COLUMNS},
        "loss": 2.0,
        "step_seconds": 0.4,
        "heard": 100.0,
        **changes,
    }
    return tuple(fields[name] for name in FIELDS)


def columns(*of: Row, now: float = 100.0) -> RankColumns:
    return RankColumns(of, now)


class Reader:
    """Puts a status together again, as a page does."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.ranks: list[dict[str, Any]] = []
        self.num_whole = 0

    def take(self, text: str) -> None:
        told = json.loads(text)
        ranks = told.pop("ranks", {"columns": {}})
        if told.pop("is_whole", False):
            self.num_whole += 1
            self.facts = {}
        self.facts |= told
        if ranks.get("is_whole"):
            self.ranks = [{} for _ in ranks["columns"]["rank"]["to"]]
        for name, column in ranks["columns"].items():
            places = column.get("at", range(len(self.ranks)))
            for index, place in enumerate(places):
                self.ranks[place][name] = column["all"] if "all" in column else column["to"][index]


# Columns


def test_what_all_ranks_share_is_said_once() -> None:
    told = columns(a_row(0), a_row(1, loss=3.0)).whole()["columns"]

    assert told["step"] == {"all": 7}
    assert told["loss"] == {"to": (2.0, 3.0)}
    assert list(told) == list(FIELDS)


def test_only_what_changed_is_told_and_only_where_it_changed() -> None:
    before = [a_row(rank) for rank in range(5)]
    after = [*before[:3], a_row(3, num_missed=2), before[4]]

    assert columns(*after).since(columns(*before)) == {"columns": {"num_missed": {"at": [3], "to": [2]}}}
    assert columns(*before).since(columns(*before)) == {"columns": {}}


def test_a_column_that_changed_nearly_everywhere_is_told_without_places() -> None:
    before, after = ([a_row(rank, loss=level + rank) for rank in range(4)] for level in (2.0, 3.0))

    assert columns(*after).since(columns(*before)) == {"columns": {"loss": {"to": (3.0, 4.0, 5.0, 6.0)}}}


def test_numbers_have_the_digits_that_are_read_and_say_when_they_are_not_finite() -> None:
    told = columns(a_row(0, loss=2.00004), a_row(1, loss=math.nan), a_row(2, loss=None)).whole()["columns"]

    assert told["loss"]["to"] == (2.0, "NaN", None)


def test_a_rank_that_was_heard_lately_has_no_time_and_one_that_was_not_keeps_its() -> None:
    rows = a_row(0, heard=100.0), a_row(1, heard=104.9)
    first, later = columns(*rows, now=100.0 + LATELY_SECONDS), columns(*rows, now=109.0)

    assert first.whole()["columns"]["heard"] == {"to": (100, None)}
    assert later.since(first) == {"columns": {}}


def test_other_ranks_are_told_whole() -> None:
    change = columns(a_row(0), a_row(2)).since(columns(a_row(0), a_row(1)))

    assert change["is_whole"]
    assert change["columns"]["rank"] == {"to": (0, 2)}


def test_a_job_without_ranks_is_told_too() -> None:
    assert columns().whole()["columns"]["rank"] == {"to": ()}


# Statuses


class Watched:
    """A core with a board, at a time that the test sets."""

    def __init__(self, num_ranks: int = 3) -> None:
        self.core = Core()
        self.now = 1000.0
        self.board = StatusBoard(self.core.state, lambda: self.now, 3, lambda: self.now)
        for rank in range(num_ranks):
            self.say(rank, a_hello(rank=rank, world=num_ranks))

    def say(self, rank: int, message: Any) -> None:
        self.core.say(b"peer %d" % rank, message, self.now)

    @property
    def truth(self) -> list[tuple[Any, ...]]:
        attempt = self.core.state.jobs["train"].attempt
        assert attempt is not None
        members = sorted(attempt.members.items())
        return [(rank, m.state, m.step, m.numbers.loss, m.num_missed, m.error) for rank, m in members]


def test_changes_put_together_are_the_truth_whatever_happens() -> None:
    watched, reader, known = Watched(), Reader(), None
    for second in range(12):
        watched.now += 1.0
        for rank in range(3):
            if rank != second % 3:
                watched.say(rank, a_report(second + 1, loss=2.0 + rank / 8, seq=second + 1))
        if second == 4:
            watched.say(0, Event(attempt=0, step=4, time=1.0, kind="data_switch"))
        if second == 9:
            watched.say(2, Bye(step=9, error="killed"))
        known, text = watched.board.message("train", known)
        reader.take(text)
        told = [(r["rank"], r["state"], r["step"], r["loss"], r["num_missed"], r["error"]) for r in reader.ranks]
        assert told == watched.truth
    assert reader.num_whole == 1
    assert [event["kind"] for event in reader.facts["events"]] == ["data_switch"]
    assert reader.facts["state"] == "crashed"


def test_nothing_new_costs_next_to_nothing_however_many_ranks_there_are() -> None:
    watched = Watched(num_ranks=200)
    known, whole = watched.board.message("train", None)
    watched.now += 1.0
    _, change = watched.board.message("train", known)

    assert len(whole) > 4000
    assert len(change) < 120


def test_whoever_knows_the_last_but_one_gets_the_change_and_anyone_else_everything() -> None:
    watched = Watched()
    first, _ = watched.board.message("train", None)
    watched.now += 1.0
    second, change = watched.board.message("train", first)
    assert "is_whole" not in json.loads(change)
    assert watched.board.message("train", first) == (second, change), "a second page shares it"
    assert json.loads(watched.board.message("train", second)[1]) == {"now": watched.now, "job": "train"}

    watched.now += 1.0
    assert json.loads(watched.board.message("train", first)[1])["is_whole"]
    watched.now += 1.0
    assert json.loads(watched.board.message("train", None)[1])["is_whole"]


def test_a_job_that_nobody_knows_has_no_version_and_begins_whole_when_it_comes() -> None:
    watched = Watched()
    assert watched.board.message("later", None) == (None, "{}")

    watched.say(9, a_hello(job="later", rank=0, world=1, incarnation="incarnation-later"))
    known, text = watched.board.message("later", None)
    assert known is not None
    assert json.loads(text)["is_whole"]


def test_of_all_jobs_only_those_that_changed_are_told_and_those_that_are_gone() -> None:
    watched = Watched()
    watched.say(9, a_hello(job="other", rank=0, world=1, incarnation="incarnation-other"))
    known, text = watched.board.message(None, None)
    assert [job["job"] for job in json.loads(text)["jobs"]] == ["train", "other"]
    assert "silent_seconds" not in text, "it changes all the time"

    watched.now += 1.0
    watched.say(9, Bye(step=0, error=""))
    known, text = watched.board.message(None, known)
    told = json.loads(text)
    assert [(job["job"], job["state"]) for job in told["jobs"]] == [("other", "ended")]
    assert told["gone"] == []

    watched.now += 1.0
    del watched.core.state.jobs["other"]
    told = json.loads(watched.board.message(None, known)[1])
    assert (told["jobs"], told["gone"]) == ([], ["other"])


def test_the_list_says_what_is_wrong_and_how_fast_a_job_is() -> None:
    watched = Watched(num_ranks=1)
    watched.say(0, a_report(1))
    watched.say(0, a_report(2, loss=math.nan))
    watched.core.pass_time(watched.now + 1.0)
    (row,) = json.loads(watched.board.message(None, None)[1])["jobs"]

    assert (row["health"], row["num_open"], row["worst_rule"]) == ("warning", 1, "non_finite")
    assert (row["step_seconds"], row["rollback_mode"], row["heard"]) == (0.1, "off", None)


def test_what_is_kept_is_bounded() -> None:
    watched = Watched()
    for number in range(MAX_KEPT + 20):
        watched.core.state.jobs[f"job {number}"] = watched.core.state.jobs["train"]
        watched.board.message(f"job {number}", None)

    assert len(watched.board) == MAX_KEPT


# The stream itself


@pytest.fixture
def core_with_journal(tmp_path: Path) -> Iterator[JournaledCore]:
    core = JournaledCore(tmp_path / "journal.sqlite")
    yield core
    core.close()


def test_after_a_backlog_was_lost_everything_comes_again(core_with_journal: JournaledCore, tmp_path: Path) -> None:
    core, broker = core_with_journal, Broker()
    core.say(b"peer", a_hello(world=1))
    context = Context(
        state=core.state,
        pipeline=core.pipeline,
        thresholds=Thresholds(core.config, core.state, core.pipeline, lambda: 0.0),
        broker=broker,
        history=HistoryReader(tmp_path / "journal.sqlite"),
        clock=lambda: 0.0,
        is_receiving=lambda: True,
        requests=core.requests,
        rollback=core.config.rollback,
    )

    async def listen() -> list[str]:
        broker.bind(asyncio.get_running_loop())
        response = await Stream(context).open(Request({"type": "http", "query_string": b"job=train", "headers": []}))
        assert isinstance(response, StreamingResponse)
        messages = aiter(response.body_iterator)
        seen = [str(await anext(messages)) for _ in range(2)]
        broker.post([("train", "step", {"step": number}) for number in range(MAX_BACKLOG + 5)])
        while len(seen) == 2 or not seen[-1].startswith("event: status"):
            seen.append(str(await anext(messages)))
        broker.close()
        assert [str(message) async for message in messages] == []
        return seen

    seen = asyncio.run(listen())
    context.history.connection.close()
    assert "is_whole" in seen[1]
    assert seen[2].startswith("event: reload")
    assert "is_whole" in seen[-1]


@pytest.mark.parametrize(("kinds", "expected"), [(None, ["step", "event"]), ({"event"}, ["event"]), (set(), [])])
def test_a_listener_hears_only_of_what_it_asked_for(kinds: set[str] | None, expected: list[str]) -> None:
    async def heard() -> list[str]:
        broker = Broker()
        broker.bind(asyncio.get_running_loop())
        listener = broker.join(None, kinds)
        assert listener is not None
        broker.post([("train", "step", {}), ("train", "event", {})])
        await asyncio.sleep(0)
        items = [listener.queue.get_nowait() for _ in range(listener.queue.qsize())]
        return [item[0] for item in items if item is not None]

    assert asyncio.run(heard()) == expected
