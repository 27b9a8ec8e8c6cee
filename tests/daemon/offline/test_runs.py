"""A run is the same run, whether a daemon tells it or its journal is read."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.offline.runs.from_log import from_log
from caboose_daemon.offline.runs.of_job import run_of_job
from caboose_daemon.offline.runs.opening import journal_runs, open_runs, open_source
from caboose_daemon.offline.runs.run import RunError
from caboose_daemon.offline.runs.source import DaemonSource
from caboose_daemon.out.api.client import Client
from support.http import http
from support.processes import running_daemon, wait_until
from support.ranks import send_steps, simulated_ranks
from support.scenario import JournaledCore, scenario
from support.written_logs import falling, written

Make = Callable[..., JournaledCore]


@pytest.mark.slow
def test_a_daemon_and_its_journal_tell_the_same(tmp_path: Path) -> None:
    hello = {"job": "train", "config": {"hidden": 64}}
    with running_daemon(tmp_path / "daemon") as daemon, simulated_ranks(daemon.endpoint, 2, hello) as ranks:
        send_steps(ranks, 1, 29)
        send_steps(ranks, 30, 30, loss=float("nan"))
        weights = {"weight_norm": np.ones(len(ranks[0].hello.layers), dtype=np.float32)}
        send_steps(ranks, 31, 40, is_sampled=True, arrays=weights)
        wait_until(lambda: daemon.get("/api/v1/jobs/train")["step"] == 40, 20)
        told = run_of_job(DaemonSource(Client(daemon.url)), "train")
        (read,) = journal_runs(daemon.data_dir / "journal.sqlite", "train")
        status = http.get(f"{daemon.url.rstrip('/')}/api/v1/jobs/other/sample").status_code

    assert told.steps.tolist() == read.steps.tolist() == list(range(1, 41))
    np.testing.assert_array_equal(told.curves["loss"], read.curves["loss"])
    assert told.num_bad.sum() == read.num_bad.sum() == 1
    assert told.settings == read.settings
    assert told.settings["hidden"] == 64
    assert told.latest_sample is not None
    assert told.latest_sample == read.latest_sample
    assert json.dumps(told.incidents) == json.dumps(read.incidents)
    assert [values(incident) for incident in told.found] == [values(incident) for incident in read.found] != []
    assert status == 404


def values(incident: Incident) -> list[tuple[str, dict[str, float]]]:
    return [(member.rule, member.worst.values) for member in incident.episodes]


def test_a_restarted_daemon_still_knows_what_a_run_said_of_itself(journaled: Make) -> None:
    story = scenario(ranks=2, core=journaled(), config={"hidden": 64}, blind={"clipping": "a clipper of its own"})
    before = story.healthy(5).job

    again = story.core.restarted(story.now)  # type: ignore[attr-defined]  # a journaled core
    after = next(iter(again.state.jobs.values()))
    again.close()

    assert (after.config, after.blind, after.visible) == (before.config, before.blind, before.visible)
    assert (after.layers, after.groups) == (before.layers, before.groups)


def test_a_journal_from_before_settings_were_kept_is_read_without_them(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    scenario(ranks=1, core=core).healthy(5)
    core.execute("DROP TABLE descriptions")
    core.execute("DROP TABLE latest_samples")

    (run,) = journal_runs(tmp_path / "journal.sqlite")

    assert "hidden" not in run.settings
    assert any("settings" in text for text in run.cannot_see)


def test_a_journal_of_another_version_says_how_to_bring_it_up_to_date(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    scenario(ranks=1, core=core).healthy(5)
    core.execute("UPDATE meta SET value = '2' WHERE key = 'schema'")

    with pytest.raises(RunError, match="start a daemon of this version on it once"):
        list(journal_runs(tmp_path / "journal.sqlite"))


def test_a_journal_is_named_by_its_file_or_its_directory(journaled: Make, tmp_path: Path) -> None:
    scenario(ranks=1, core=journaled()).healthy(5)

    by_file, by_directory = (open_source(path, daemon) for path in (tmp_path / "journal.sqlite", tmp_path))

    assert [row["job"] for row in by_file.jobs()] == [row["job"] for row in by_directory.jobs()] != []
    with pytest.raises(RunError, match="no job 'other'; known: "):
        by_file.incidents("other")


def daemon() -> Client:
    return Client("127.0.0.1:9")


def test_a_file_that_only_looks_like_a_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    file.write_bytes(b"SQLite format 3\0" + bytes(100))

    with pytest.raises(RunError, match="not a Caboose journal"):
        list(open_runs(str(file), daemon))


def test_settings_lie_beside_a_log_in_the_ways_trainers_leave_them(tmp_path: Path) -> None:
    log = Path(written(tmp_path, "metrics", falling(50, 1.0)))
    (tmp_path / "hparams.yaml").write_text("hidden: 64\nlr: 0.001\nname: 'wide'\nnested:\n  deep: 1\nflag: true\n")
    (tmp_path / "config.json").write_text('{"model": {"layers": 12}, "hidden": 128}')

    run = from_log(log)

    assert run.settings == {"hidden": 128, "lr": 0.001, "name": "wide", "flag": True, "model.layers": 12}
    assert run.name == tmp_path.name, "a name that every run has names none"


def test_a_settings_file_that_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    log = Path(written(tmp_path, "run", falling(50, 1.0)))
    (tmp_path / "config.json").write_text("{not json")
    (tmp_path / "hparams.yaml").write_bytes(b"\xff\xfe\x00")

    assert from_log(log).settings == {}
