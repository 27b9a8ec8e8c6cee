"""Thresholds change while everything runs: by SIGHUP and by POST, as a whole or not at all."""

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from caboose_daemon.config import Config, ConfigError, load
from caboose_daemon.jobs.thresholds import Thresholds
from caboose_daemon.rules.loss_spike import LossSpike, LossSpikeConfig
from support.http import http
from support.processes import DaemonProcess, caboose_command, clean_environment, running_daemon, wait_until
from support.ranks import SimulatedRank, a_report, simulated_ranks
from support.recorder import Core
from support.scenario import scenario


class Configured(DaemonProcess):
    """A daemon whose file can be written and read again."""

    file: Path

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def post(self, body: Any, **headers: str) -> httpx.Response:
        given = {"authorization": f"Bearer {self.token}", "content-type": "application/json", **headers}
        content = {"content": body} if isinstance(body, str) else {"json": body}
        return http.post(f"{self.url}api/v1/config", headers=given, timeout=10, **content)  # type: ignore[arg-type]

    def in_force(self, rule: str, key: str) -> tuple[Any, str]:
        threshold = self.get("/api/v1/config")["rules"][rule][key]
        return threshold["value"], threshold["from"]

    def says(self, text: str) -> bool:
        return bool(wait_until(lambda: text in self.log.read_text(), 10))


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Configured]:
    file = tmp_path / "caboose.toml"
    file.write_text("[rules.loss_spike]\nscales = 7\n")
    with running_daemon(tmp_path, env={"CABOOSE_CONFIG": str(file)}) as daemon:
        made = Configured(**vars(daemon))
        made.file = file
        yield made


def train(daemon: DaemonProcess, rank: SimulatedRank, losses: list[float], *, first: int = 1) -> None:
    """One rank trains; every step has been judged when this returns."""
    for step, loss in enumerate(losses, first):
        rank.send(a_report(step, loss=loss))
    last = first + len(losses) - 1
    assert wait_until(lambda: daemon.get("/api/v1/jobs/train")["step"] == last, 10)


def findings(daemon: DaemonProcess) -> list[Any]:
    found = daemon.get("/api/v1/jobs/train/findings")["findings"]
    return [item for item in found if item["rule"] == "loss_spike"]


# Reading


def test_what_is_in_force_is_shown_with_where_it_comes_from(configured: Configured) -> None:
    assert configured.in_force("loss_spike", "scales") == (7.0, "file")
    assert configured.in_force("loss_spike", "ratio") == (1.25, "default")
    assert configured.get("/api/v1/config")["file"] == str(configured.file)


# SIGHUP


@pytest.mark.slow
@pytest.mark.long
def test_a_hang_up_reads_the_files_thresholds_again(configured: Configured) -> None:
    configured.write("[rules.loss_spike]\nratio = 1.5\n")
    configured.hang_up()

    assert configured.says(
        "caboose.toml read again: rules.loss_spike.scales = 6.0 (was 7.0); rules.loss_spike.ratio = 1.5 (was 1.25)"
    )
    assert configured.in_force("loss_spike", "ratio") == (1.5, "file")
    assert configured.in_force("loss_spike", "scales") == (6.0, "default")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[rules.loss_spike]\nratios = 2", "rules.loss_spike.ratios = 2: unknown key; did you mean"),
        ("[rules.loss_spike", "not valid TOML"),
        (None, "No such file or directory"),
    ],
)
def test_a_bad_file_is_one_line_and_the_old_thresholds_stay(
    configured: Configured, text: str | None, line: str
) -> None:
    configured.file.unlink() if text is None else configured.write(text)
    configured.hang_up()

    assert configured.says("the thresholds are unchanged")
    (said,) = (row for row in configured.log.read_text().splitlines() if " ERROR " in row)
    assert line in said
    assert configured.in_force("loss_spike", "scales") == (7.0, "file")


@pytest.mark.slow
@pytest.mark.long
def test_what_needs_a_restart_is_one_warning_and_the_thresholds_count_all_the_same(configured: Configured) -> None:
    configured.write(
        "[journal]\nmax_steps = 5\nretention_days = 2\n[daemon]\ninsecure = true\n[rules.loss_spike]\nscales = 8\n"
    )
    configured.hang_up()

    assert configured.says("daemon.insecure, journal.max_steps, journal.retention_days changed; restart to apply")
    assert configured.in_force("loss_spike", "scales") == (8.0, "file")


@pytest.mark.slow
@pytest.mark.long
def test_a_flag_that_the_file_contradicts_is_no_change(configured: Configured) -> None:
    configured.write("[daemon]\nhttp = '127.0.0.1:1'\n")
    configured.hang_up()

    assert configured.says("read again")
    assert configured.get("/healthz")["status"] == "ok"
    assert "needs a restart" not in configured.log.read_text(), "--http was given as a flag, which goes first"


@pytest.mark.slow
@pytest.mark.long
def test_a_file_that_came_later_is_found(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        (tmp_path / "caboose.toml").write_text("[rules.loss_spike]\nratio = 3\n")
        daemon.process.send_signal(signal.SIGHUP)

        def ratio() -> Any:
            return daemon.get("/api/v1/config")["rules"]["loss_spike"]["ratio"]

        assert wait_until(lambda: ratio() == {"value": 3.0, "from": "file"}, 10)


@pytest.mark.slow
@pytest.mark.long
def test_a_closed_terminal_still_ends_the_daemon_that_runs_in_it(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    ready = tmp_path / "ready.json"
    command = caboose_command("daemon", "--listen", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0")
    process = subprocess.Popen(
        [*command, "--ready-file", str(ready)],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env=clean_environment(),
    )
    os.close(theirs)
    try:
        assert wait_until(ready.exists, 20)
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(10)


# POST


def test_a_posted_change_counts_at_once_and_says_how_long(configured: Configured) -> None:
    answer = configured.post({"rules": {"loss_spike": {"ratio": 2}}})

    assert answer.status_code == 200
    assert answer.json()["changed"] == ["rules.loss_spike.ratio = 2.0 (was 1.25)"]
    assert answer.json()["rules"]["loss_spike"]["ratio"] == {"value": 2.0, "from": "posted"}
    assert answer.json()["rules"]["loss_spike"]["scales"] == {"value": 7.0, "from": "file"}
    assert "until the daemon restarts" in answer.json()["note"]
    assert configured.says("posted, until the daemon restarts: rules.loss_spike.ratio = 2.0 (was 1.25)")


@pytest.mark.slow
@pytest.mark.long
def test_what_was_posted_stays_over_the_file_until_it_is_taken_back(configured: Configured) -> None:
    configured.post({"rules": {"loss_spike": {"scales": 9, "ratio": 2}}})
    configured.write("[rules.loss_spike]\nscales = 8\npersist_steps = 5\n")
    configured.hang_up()
    assert configured.says("read again")

    assert configured.in_force("loss_spike", "scales") == (9.0, "posted")
    assert configured.in_force("loss_spike", "persist_steps") == (5, "file")

    assert configured.post({"rules": {"loss_spike": {"scales": None}}}).status_code == 200
    assert configured.in_force("loss_spike", "scales") == (8.0, "file")
    assert configured.in_force("loss_spike", "ratio") == (2.0, "posted")


BAD_BODIES = {
    "empty": ("", "expected"),
    "no JSON": ("ratio=2", "expected"),
    "no object": ("[]", 'expected {"rules"'),
    "no rules": ("{}", 'expected {"rules"'),
    "another section": ('{"daemon": {"insecure": true}}', "anything else needs a restart"),
    "rules and more": ('{"rules": {}, "journal": {}}', "anything else needs a restart"),
    "rules that are a list": ('{"rules": []}', "posted: rules = []: expected a section"),
    "rule that is a value": (
        '{"rules": {"loss_spike": false}}',
        "posted: rules.loss_spike = False: expected a section",
    ),
    "unknown rule": ('{"rules": {"loss_spikes": {}}}', "unknown key; did you mean rules.loss_spike?"),
    "unknown key": ('{"rules": {"loss_spike": {"ratios": 2}}}', "did you mean rules.loss_spike.ratio?"),
    "unknown key taken back": ('{"rules": {"loss_spike": {"ratios": null}}}', "did you mean rules.loss_spike.ratio?"),
    "text for a number": ('{"rules": {"loss_spike": {"ratio": "2"}}}', "expected a number, got a string"),
    "zero": ('{"rules": {"loss_spike": {"ratio": 0}}}', "posted: rules.loss_spike.ratio = 0.0: must be above 0"),
    "unknown severity": ('{"rules": {"loss_spike": {"severity": "fatal"}}}', "use one of 'info'"),
    "list for a severity": ('{"rules": {"loss_spike": {"severity": ["info"]}}}', "use one of 'info'"),
    "number beyond floats": ('{"rules": {"loss_spike": {"ratio": 1' + "0" * 400 + "}}}", ""),
    "NaN": ('{"rules": {"loss_spike": {"ratio": NaN}}}', "expected"),
    "deeply nested": ('{"rules": ' + "[" * 20_000 + "]" * 20_000 + "}", "expected"),
    "long text": ('{"rules": {"loss_spike": {"ratio": "' + "x" * 50_000 + '"}}}', "posted: rules.loss_spike.ratio"),
}


@pytest.mark.slow
@pytest.mark.long
def test_a_bad_body_is_one_line_and_changes_nothing(configured: Configured) -> None:
    before = configured.get("/api/v1/config")
    for label, (body, line) in BAD_BODIES.items():
        answer = configured.post(body)

        assert answer.status_code == 400, label
        error = answer.json()["error"]
        assert line in error, label
        assert "\n" not in error, label
        assert len(error) <= 500, label
    assert configured.get("/api/v1/config") == before
    assert "Traceback" not in configured.log.read_text()


def test_a_change_with_one_bad_value_changes_nothing_at_all(configured: Configured) -> None:
    answer = configured.post({"rules": {"non_finite": {"calm_steps": 9}, "loss_spike": {"ratio": -1}}})

    assert answer.status_code == 400
    assert configured.in_force("non_finite", "calm_steps") == (3, "default")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"authorization": "Bearer wrong"}, 401), ({"content-type": "text/plain"}, 415), ({"host": "evil.example"}, 421)],
)
def test_who_may_not_write_may_not_change_thresholds(
    configured: Configured, headers: dict[str, str], status: int
) -> None:
    assert configured.post({"rules": {"loss_spike": {"ratio": 9}}}, **headers).status_code == status
    assert configured.in_force("loss_spike", "ratio") == (1.25, "default")


# What it does to jobs


def test_a_rule_of_a_running_job_judges_by_the_new_thresholds(configured: Configured) -> None:
    with simulated_ranks(configured.endpoint, 1) as (rank,):
        train(configured, rank, [2.0] * 40 + [2.4] + [2.0] * 4)
        assert findings(configured) == [], "1.2 times the level is below the ratio of 1.25"

        configured.post({"rules": {"loss_spike": {"ratio": 1.1}}})
        train(configured, rank, [2.4], first=46)

        (found,) = findings(configured)
        assert (found["onset_step"], found["is_open"]) == (46, True)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_switching_a_rule_off_ends_what_it_had_found_and_a_restart_switches_it_on(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 1) as (rank,):
        made = Configured(**vars(daemon))
        train(made, rank, [2.0] * 40 + [9.0] * 2)
        assert [item["is_open"] for item in findings(made)] == [True]

        assert made.post({"rules": {"loss_spike": {"enabled": False}}}).status_code == 200
        train(made, rank, [9.0] * 3, first=43)

        (found,) = findings(made)
        assert (found["is_open"], found["last"]["summary"]) == (False, "the rule was switched off")
        assert daemon.stop() == 0

    with running_daemon(tmp_path) as daemon:
        assert daemon.get("/api/v1/config")["rules"]["loss_spike"]["enabled"] == {"value": True, "from": "default"}
        (found,) = daemon.get("/api/v1/jobs/train/findings")["findings"]
        assert found["is_open"] is False, "the journal has its end"


def thresholds(core: Core) -> Thresholds:
    return Thresholds(Config(), core.state, core.pipeline, lambda: 2000.0)


def test_new_attempts_and_new_jobs_are_judged_by_what_was_posted() -> None:
    core = Core()
    thresholds(core).post({"rules": {"loss_spike": {"enabled": False}}})

    story = scenario(core=core).loss_spike(at=41, height=9.0, steps=9)

    assert story.is_silent


def test_what_a_rule_has_learned_stays() -> None:
    story = scenario().healthy(40)
    thresholds(story.core).post({"rules": {"loss_spike": {"ratio": 2.0}}})

    assert story.losses(3.0).is_silent
    assert story.losses(5.0).only("loss_spike").first.step == 42


def test_a_file_that_does_not_go_with_what_was_posted_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_ratio_above_scales(config: LossSpikeConfig) -> None:
        if config.ratio > config.scales:
            raise ValueError(f"ratio = {config.ratio!r}: must not be above scales")

    monkeypatch.setattr(LossSpikeConfig, "__post_init__", no_ratio_above_scales)
    core = Core()
    force = thresholds(core)
    force.post({"rules": {"loss_spike": {"ratio": 5}}})
    before = dict(force.in_force)
    file = tmp_path / "caboose.toml"
    file.write_text("[rules.loss_spike]\nscales = 4\n")

    with pytest.raises(ConfigError, match=r"caboose\.toml with what was posted: rules\.loss_spike\.ratio = 5\.0"):
        force.replace_file(load(file))

    assert dict(force.in_force) == before
    assert force.origins("loss_spike")["scales"] == "default"


def test_a_number_that_a_rule_cannot_be_made_with_is_refused_before_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(rule: LossSpike, config: LossSpikeConfig) -> None:
        if config.warmup_steps > 1e9:
            raise OverflowError("too large a window")

    monkeypatch.setattr(LossSpike, "__init__", made)

    with pytest.raises(ConfigError, match=r"posted: rules\.loss_spike: invalid for this rule: too large a"):
        thresholds(Core()).post({"rules": {"loss_spike": {"warmup_steps": 10**12}}})
