"""`caboose jobs`, `ack`, `note`, `verify` and `history`: of a daemon that runs, and of the journal it leaves."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from caboose_daemon.cli import NAMES, caboose, options
from caboose_daemon.cli import command as named
from caboose_daemon.jobs.job import Job
from caboose_daemon.steps.columns import StepSummary
from caboose_wire import Event, Phases
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import SimulatedRank, a_report, simulated_ranks

CHANGE = 160
"""After this step the learning rate was lowered, and the loss with it."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(caboose, arguments)


def send(ranks: list[SimulatedRank], step: int, loss: float, lr: float = 3e-4) -> None:
    rng = np.random.default_rng(step)
    for rank in ranks:
        phases = Phases(total=0.1 + 0.002 * rng.normal(), data=0.001, forward=0.03, backward=0.05, optimizer=0.01)
        rank.send(a_report(step, loss=loss + 0.02 * rng.normal(), lr=(lr,), phases=phases))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A run whose fix helped, declared by every rank; and one that lost its loss."""
    with (
        running_daemon(tmp_path_factory.mktemp("watched")) as daemon,
        simulated_ranks(daemon.endpoint, 2, {"job": "mended"}) as mended,
        simulated_ranks(daemon.endpoint, 2, {"job": "broken"}) as broken,
    ):
        for step in range(1, 281):
            if step == CHANGE + 1:
                for rank in mended:
                    rank.send(Event(attempt=0, step=CHANGE, time=0.0, kind="fix", fields={"lr": 1e-4}))
            late = step > CHANGE
            send(mended, step, 2.0 + math.exp(-step / 100) - 0.5 * late, 1e-4 if late else 3e-4)
        for step in range(1, 41):
            send(broken, step, float("nan") if step > 30 else 2.0)
        ready = {"mended": 280, "broken": 40}
        assert wait_until(lambda: {row["job"]: row["step"] for row in daemon.get("/api/v1/jobs")["jobs"]} == ready, 20)
        assert wait_until(lambda: daemon.get("/api/v1/jobs/broken/incidents")["incidents"], 10)
        yield daemon


@pytest.fixture
def where(watched: DaemonProcess) -> tuple[str, ...]:
    return ("--daemon", watched.url)


@pytest.fixture
def writing(watched: DaemonProcess, where: tuple[str, ...]) -> tuple[str, ...]:
    return (*where, "--token-file", str(watched.data_dir / "token"))


def first_incident(daemon: DaemonProcess) -> dict[str, Any]:
    rows: list[dict[str, Any]] = daemon.get("/api/v1/jobs/broken/incidents")["incidents"]
    return next(row for row in rows if row["rule"] == "non_finite")


def test_jobs_are_listed_with_their_health(where: tuple[str, ...]) -> None:
    said = run("jobs", *where)

    assert said.exit_code == 0, said.output
    assert "✗ critical" in next(line for line in said.stdout.splitlines() if line.startswith("broken"))
    assert " 280 " in next(line for line in said.stdout.splitlines() if line.startswith("mended"))


def test_a_journal_tells_of_the_same_jobs_and_incidents_as_its_daemon(
    watched: DaemonProcess, where: tuple[str, ...]
) -> None:
    journal = ("--journal", str(watched.data_dir / "journal.sqlite"))

    ours, theirs = (json.loads(run("jobs", "--json", *place).stdout)["jobs"] for place in (journal, where))
    assert {(row["job"], row["step"], row["health"]) for row in ours} == {
        (row["job"], row["step"], row["health"]) for row in theirs
    }
    past, live = (json.loads(run("history", "--json", *place).stdout) for place in (journal, where))
    keys = ("id", "rule", "cause", "onset_step")
    assert [[row[key] for key in keys] for row in past["incidents"]] == [
        [row[key] for key in keys] for row in live["incidents"]
    ]
    judged = [json.loads(run("verify", "mended", "--json", *place).stdout) for place in (journal, where)]
    assert judged[0] == judged[1]


def test_a_fix_that_every_rank_declared_is_one_change_and_helped(where: tuple[str, ...]) -> None:
    said = run("verify", "mended", *where)

    assert said.exit_code == 0, said.output
    assert "fix after step 160 (lr=0.0001): it helped (loss level" in said.stdout
    assert "✓ better" in said.stdout
    again = run("verify", "mended", "--change", "2", *where)
    assert (again.exit_code, "no 2 declared changes" in again.stderr) == (2, True), again.output


def test_a_moment_without_a_change_is_no_help_and_a_young_one_cannot_be_judged(where: tuple[str, ...]) -> None:
    nothing = run("verify", "mended", "--at", "220", "--steps", "50", "--json", *where)
    young = run("verify", "mended", "--at", "270", *where)

    assert nothing.exit_code in (1, 3), nothing.output
    assert json.loads(nothing.stdout)["verdict"] in ("same", "unknown")
    assert young.exit_code == 3, young.output
    assert "undecided" in young.stdout
    assert "run it again in about" in young.stdout


def test_a_run_without_a_declared_change_says_how_to_declare_one(where: tuple[str, ...]) -> None:
    said = run("verify", "broken", *where)

    assert said.exit_code == 2
    assert 'caboose note broken "..."' in said.stderr


def test_a_note_is_in_the_runs_record_with_what_was_set(watched: DaemonProcess, writing: tuple[str, ...]) -> None:
    said = run("note", "broken", "shard 17 rewritten", "--set", "shard=17", "--set", "lr=1e-4", "--json", *writing)

    assert said.exit_code == 0, said.output
    event = json.loads(said.stdout)
    assert (event["kind"], event["step"], event["attempt"]) == ("note", 40, 1)
    fields = event["fields"]
    assert (fields["text"], fields["shard"], fields["lr"]) == ("shard 17 rewritten", 17, 1e-4)
    assert event in watched.get("/api/v1/jobs/broken")["events"]


def test_an_incident_is_acknowledged_and_withdrawn(watched: DaemonProcess, writing: tuple[str, ...]) -> None:
    name = first_incident(watched)["id"]

    taken = run("ack", name, "--reason", "bad shard", "--by", "ada", *writing)
    assert (taken.exit_code, taken.stdout) == (0, f"{name} (non_finite) acknowledged by ada: bad shard\n")
    assert first_incident(watched)["state"] == "acknowledged"
    back = run("ack", name, "--undo", "--json", *writing)
    assert (back.exit_code, json.loads(back.stdout)["state"]) == (0, "open")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ack", "broken/99", "--reason", "x"), 1, "no open incident broken/99"),
        (("ack", "broken", "--reason", "x"), 2, "JOB/NUMBER"),
        (("ack", "broken/1"), 2, "--reason"),
        (("ack", "nobody/1", "--reason", "x"), 2, "no job 'nobody'"),
        (("note", "nobody", "x"), 2, "no job 'nobody'"),
        (("note", "broken", " "), 2, "1 to 500 characters"),
        (("note", "broken", "x", "--set", "lr"), 2, "KEY=VALUE"),
        (("note", "broken", "x", "--kind", ""), 1, "kind must have 1 to 64"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    writing: tuple[str, ...], arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = run(*arguments, *writing)

    assert ended.exit_code == code, ended.output
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_wrong_token_is_said_with_the_file_that_has_the_right_one(where: tuple[str, ...], tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("not the daemon's own token\n")

    ended = run("note", "broken", "x", *where, "--token-file", str(wrong))

    assert ended.exit_code == 2
    assert "`token` in the daemon's data_dir" in ended.stderr


def test_history_shows_causes_and_what_was_done(watched: DaemonProcess, where: tuple[str, ...]) -> None:
    shown = run("history", *where)
    assert shown.exit_code == 0, shown.output
    for text in ("broken/", "non_finite", "%)", "of 2 jobs" if "mended/" in shown.stdout else "of 1 job"):
        assert text in shown.stdout, text

    cause = first_incident(watched)["diagnosis"]["causes"][0]["id"]
    by_cause = json.loads(run("history", "--cause", cause, "--rule", "non_finite", "--json", *where).stdout)
    assert [row["cause"]["id"] for row in by_cause["incidents"]] == [cause]
    assert json.loads(run("history", "--rule", "plateau", "--json", *where).stdout)["incidents"] == []
    assert json.loads(run("history", "--since", "1h", "--json", *where).stdout)["incidents"]
    assert run("history", "--since", "yesterday", *where).exit_code == 2
    assert run("history", "nobody", *where).exit_code == 2


@pytest.mark.parametrize("command", [("jobs",), ("history",), ("verify", "x"), ("top",)])
def test_nobody_at_the_daemon_is_one_line_of_any_command(command: tuple[str, ...]) -> None:
    ended = run(*command, "--daemon", "127.0.0.1:1")

    assert ended.exit_code == 2
    assert ended.stderr.startswith("caboose: no daemon answers at http://127.0.0.1:1")


def test_what_is_no_journal_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_text("nothing of the kind, but long enough to be looked at\n" * 20)

    for name in ("journal.sqlite", "missing.sqlite"):
        ended = run("history", "--journal", str(tmp_path / name))
        assert ended.exit_code == 2
        assert len(ended.stderr.splitlines()) == 1
        assert name in ended.stderr


def test_what_was_noted_while_an_incident_was_open_is_what_resolved_it(daemon: DaemonProcess) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": "healed"}) as ranks:
        for step in range(1, 46):
            send(ranks, step, float("nan") if step > 40 else 2.0)
        assert wait_until(lambda: daemon.get("/api/v1/jobs/healed/incidents")["incidents"], 10)
        token = ("--token-file", str(daemon.data_dir / "token"))
        assert run("note", "healed", "clamped the logarithm", "--daemon", daemon.url, *token).exit_code == 0
        for step in range(46, 160):
            send(ranks, step, 2.0)
        assert wait_until(lambda: not daemon.get("/api/v1/jobs/healed")["num_open"], 20)

        answer = json.loads(run("history", "healed", "--json", "--daemon", daemon.url).stdout)
        shown = run("history", "healed", "--daemon", daemon.url).stdout

    (row,) = answer["incidents"]
    assert row["resolved_by"] == ["note: clamped the logarithm"]
    assert "+ note: clamped the logarithm" in shown
    assert "1 after a declared change" in shown


def test_a_note_before_an_attempts_first_step_belongs_to_where_it_began() -> None:
    job = Job(name="gpt", created=0.0, num_attempts=1)
    assert job.latest_step == 0
    job.recent.append(StepSummary(1, 1000, 0.0, 2.0, None, None, None, None, None, None, None, 2))
    assert job.latest_step == 1000
    job.num_attempts = 2

    assert job.latest_step == 0, "and not 1000, which the new attempt has yet to reach"


# The steps that `verify` is made of


def test_steps_around_a_moment_come_one_by_one(watched: DaemonProcess) -> None:
    found = watched.get("/api/v1/jobs/mended/steps", attempt=1, step=160, before=5, after=3)

    assert [row["step"] for row in found["before"]] == [156, 157, 158, 159, 160]
    assert [row["step"] for row in found["after"]] == [161, 162, 163]
    assert (found["num_before"], found["num_after"]) == (160, 120)
    broken = watched.get("/api/v1/jobs/broken/steps", attempt=1, step=35, before=1, after=0)
    assert broken["before"][0]["loss"] == "NaN"


# The screen


def test_top_writes_a_line_for_each_job_and_for_what_is_wrong(where: tuple[str, ...]) -> None:
    lines = run("top", "-n", "1", *where).stdout.splitlines()
    assert any("mended running step 280" in line for line in lines)

    one = run("top", "broken", "-n", "2", "--every", "0.1", *where).stdout.splitlines()
    assert sum("broken running step 40 loss NaN critical" in line for line in one) == 1, "nothing new, nothing said"
    assert any("non_finite" in line for line in one)
    look = json.loads(run("top", "broken", "-n", "1", "--json", *where).stdout)
    assert (look["job"], look["detail"]["world"]) == ("broken", 2)


def test_top_of_a_job_that_is_not_there_names_those_that_are(where: tuple[str, ...]) -> None:
    ended = run("top", "nobody", "-n", "1", *where)

    assert ended.exit_code == 2
    assert "broken, mended" in ended.stderr


# The docs


@pytest.mark.parametrize("command", ["top", "jobs", "ack", "note", "verify", "history", "doctor"])
def test_every_flag_of_the_terminals_commands_is_in_its_page(command: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "terminal.md").read_text(encoding="utf-8")
    options = [parameter.opts[-1] for parameter in named(command).params if parameter.opts[0][0] == "-"]

    assert f"## caboose {command}\n" in text
    assert [option for option in options if option not in text] == []


def every_command() -> Iterator[tuple[str, ...]]:
    for name in NAMES:
        found = named(name)
        yield (name,)
        if isinstance(found, click.Group):
            yield from ((name, inner) for inner in found.commands)


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_the_help_of_every_command_names_its_exit_codes_and_ends_with_an_example(words: tuple[str, ...]) -> None:
    shown = run(*words, "--help").stdout

    end = shown.rstrip().rpartition("\n\n")[2].splitlines()
    assert end[0].strip() == "Example:"
    assert all(line.strip().startswith(("caboose ", "torchrun ")) for line in end[1:])
    is_group = words in (("config",), ("grafana",), ("keys",), ("stack",))
    assert ("Exit codes:" in shown) != is_group
    has_no_rows = words in (("config", "check"), ("config", "reference"), ("daemon",), ("demo",), ("mcp",), ("relay",))
    assert ("--json" in shown) != (is_group or has_no_rows), "what is printed can be read"


def test_every_exit_code_is_in_the_page() -> None:
    text = (Path(__file__).parents[3] / "docs" / "terminal.md").read_text(encoding="utf-8")
    codes = [value for name, value in vars(options).items() if name.startswith("EXIT_")]

    assert [code for code in codes if f"| {code} |" not in text] == []


def test_a_command_that_is_nearly_one_of_ours_gets_it_suggested() -> None:
    result = run("job")
    assert result.exit_code == 2
    assert "No such command 'job'. Did you mean 'jobs'?" in result.output
    assert "Did you mean" not in run("zzz").output
