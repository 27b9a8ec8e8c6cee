"""What a common database is to get of a journal: a mark for each row, set with the row, gone once it was sent."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.store.backlog import Backlog
from caboose_daemon.store.salvage import salvage
from caboose_wire import Event
from support.scenario import JournaledCore, scenario

Make = Callable[..., JournaledCore]


@pytest.fixture
def core(journaled: Make) -> JournaledCore:
    return journaled(has_store=True)


@pytest.fixture
def backlog(core: JournaledCore) -> Iterator[Backlog]:
    with closing(core.journal.backlog()) as opened:
        yield opened


def spiked(core: JournaledCore) -> float:
    """A job with an incident and two notes, all committed; the time."""
    story = scenario(ranks=2, core=core).healthy(40).nan_loss(0, at=41, steps=3).declares("data_switch")
    core.commit(story.now)
    return story.now


def test_each_row_waits_once_however_often_it_was_written(core: JournaledCore, backlog: Backlog) -> None:
    now = spiked(core)
    job = next(iter(core.state.jobs.values()))
    waiting = backlog.oldest(100)
    incidents = [row.content for row in waiting if isinstance(row.content, Incident)]

    assert [incident.number for incident in incidents] == [incident.number for incident in job.incidents]
    assert incidents[0] == next(iter(job.incidents))
    assert {row.content.kind for row in waiting if isinstance(row.content, Event)} == {"data_switch"}
    assert {row.job for row in waiting} == {job.name}
    assert backlog.size == len(waiting)

    backlog.sent([row.mark for row in waiting])
    core.pipeline.review(job)
    core.commit(now)
    again = backlog.oldest(100)

    assert [row.content.id for row in again if isinstance(row.content, Incident)] == [f"{job.name}/1"]
    assert len(again) == 1


def test_a_row_that_changes_while_it_is_sent_is_sent_again(core: JournaledCore, backlog: Backlog) -> None:
    now = spiked(core)
    sending = backlog.oldest(100)
    core.pipeline.review(next(iter(core.state.jobs.values())))
    core.commit(now)

    backlog.sent([row.mark for row in sending])

    assert [type(row.content) for row in backlog.oldest(100)] == [Incident]


def test_a_killed_daemon_still_knows_what_to_send(core: JournaledCore) -> None:
    now = spiked(core)
    with closing(core.journal.backlog()) as before:
        journal, waiting = before.journal, before.oldest(100)

    again = core.restarted(now)

    with closing(again.journal.backlog()) as after:
        assert journal
        assert after.journal == journal
        assert after.oldest(100) == waiting
    again.close()


def test_another_database_gets_everything_and_the_same_one_nothing_twice(core: JournaledCore, backlog: Backlog) -> None:
    spiked(core)
    everything = [row.content for row in backlog.oldest(100)]
    assert any(isinstance(content, Incident) for content in everything)

    backlog.aim("first")
    backlog.sent([row.mark for row in backlog.oldest(100)])
    backlog.aim("first")
    assert backlog.size == 0

    backlog.aim("second")
    found = [row.content for row in backlog.oldest(100)]
    assert len(found) == len(everything)
    assert all(content in found for content in everything)


def test_without_a_database_nothing_is_marked_and_a_later_one_gets_everything(journaled: Make) -> None:
    with_store = journaled(has_store=True)
    now = spiked(with_store)
    with closing(with_store.journal.backlog()) as backlog:
        backlog.aim("first")
        backlog.sent([row.mark for row in backlog.oldest(100)])
    with_store.close()

    without = journaled()
    assert without.execute("SELECT name FROM sqlite_master WHERE name LIKE 'unsent%'").fetchall() == []
    without.commit(now)
    without.close()

    with closing(journaled(has_store=True).journal.backlog()) as backlog:
        assert backlog.size == 0
        backlog.aim("first")
        assert backlog.size > 0


def test_a_row_that_the_retention_deleted_is_no_longer_sent(core: JournaledCore, backlog: Backlog) -> None:
    spiked(core)
    core.execute("DELETE FROM incidents")
    core.execute("DELETE FROM episodes")

    assert all(row.content is None or isinstance(row.content, Event) for row in backlog.oldest(100))


def test_a_row_that_cannot_be_read_keeps_none_back(core: JournaledCore, backlog: Backlog) -> None:
    spiked(core)
    core.execute("UPDATE incidents SET body = x'00'")

    contents = [row.content for row in backlog.oldest(100)]

    assert None in contents
    assert any(isinstance(content, Event) for content in contents)


def test_a_journal_that_was_salvaged_goes_on_as_the_same(core: JournaledCore, tmp_path: Path, journaled: Make) -> None:
    spiked(core)
    with closing(core.journal.backlog()) as backlog:
        identity, num = backlog.journal, backlog.size
    core.close()
    damaged = core.journal.path.rename(tmp_path / "damaged.sqlite")

    fresh = journaled(has_store=True)
    assert salvage(damaged, fresh.journal.database)

    with closing(fresh.journal.backlog()) as backlog:
        assert backlog.journal == identity
        assert backlog.size == num
