"""What was tried before is kept in the journal, and found again: for the same cause first, what helped first."""

from collections.abc import Callable
from pathlib import Path

from caboose_daemon.offline.runs.past import between_incidents, remember
from caboose_daemon.offline.runs.source import JournalSource
from caboose_daemon.offline.trying.knowledge import similar, tried, when_to_stop
from caboose_wire import Event
from support.scenario import JournaledCore, scenario

Make = Callable[..., JournaledCore]


def test_kept_verdicts_and_changes_between_incidents_are_in_a_past_journal(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    story = scenario(ranks=1, core=core, job="llama").healthy(10)

    def says(kind: str, **fields: str) -> None:
        story.says(0, Event(attempt=0, step=story.step, time=story.now, kind=kind, fields=fields))

    says("note", text="new shard")
    story.healthy(5)
    says("trial", change="lr=0.5x", verdict="helped", why="loss -10 %", rule="non_finite", cause="lr_too_high")
    story.nan_loss(0, at=30, steps=3)
    says("fix", text="lowered the rate")
    story.healthy(5)
    core.commit(story.now)

    source = JournalSource(tmp_path / "journal.sqlite")
    (row,) = tried(source, ["llama"])
    assert (row["job"], row["change"], row["verdict"], row["cause"]) == ("llama", "lr=0.5x", "helped", "lr_too_high")
    changes = between_incidents(source, ["llama"], remember(source, ["llama"]))
    assert [change["change"] for change in changes] == ["note: new shard"]


def test_the_same_cause_comes_before_the_same_rule_and_what_helped_before_what_did_not() -> None:
    def row(name: str, rule: str, cause: str, verdict: str) -> dict[str, str]:
        return {"change": name, "rule": rule, "cause": cause, "verdict": verdict}

    rows = [
        row("a", "loss_spike", "other", "helped"),
        row("b", "plateau", "lr_too_high", "hurt"),
        row("c", "divergence", "lr_too_high", "helped"),
        row("d", "plateau", "other", "helped"),
    ]
    found = similar(rows, rule="loss_spike", cause="lr_too_high")
    assert [one["change"] for one in found] == ["c", "b", "a"]


def test_after_three_changes_without_success_a_fourth_is_advised_against() -> None:
    tried_ones = [{"verdict": "same"}, {"verdict": "hurt"}]
    assert when_to_stop(tried_ones) == ""
    assert "3 changes tried and none helped" in when_to_stop([*tried_ones, {"verdict": "unknown"}])
    assert when_to_stop([*tried_ones, {"verdict": "helped"}]) == ""
