"""`caboose grafana push` against a server that keeps things as Grafana does: idempotent, and brief when it fails."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caboose_daemon.cli import caboose
from caboose_daemon.ops.grafana_push import contains
from caboose_daemon.out.api.client import HINT
from caboose_daemon.out.grafana.connection import GrafanaConnection, check_url
from caboose_daemon.out.grafana.library import GrafanaError
from support.grafana import TOKEN, StandIn, standing_in
from support.processes import DaemonProcess, wait_until
from support.ranks import a_report, simulated_ranks
from support.scenario import NAN

Push = Callable[..., Result]


@pytest.fixture
def grafana() -> Iterator[StandIn]:
    with standing_in() as stand_in:
        yield stand_in


@pytest.fixture
def push(grafana: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Push:
    """Runs the command with two small dashboards and the right token."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CABOOSE_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "dashboards"
    folder.mkdir()
    for name in ("fleet", "run"):
        content = {"id": 3, "uid": f"caboose-{name}", "title": name.title(), "version": 9, "panels": [{"title": "A"}]}
        (folder / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "token").write_text(f"{TOKEN}\n")

    def run(*arguments: str, **env: str) -> Result:
        given = {
            "--url": grafana.url,
            "--token-file": "token",
            "--prometheus": "http://prometheus:9090",
            "--dashboards": "dashboards",
        }
        words = [word for flag, value in given.items() if flag not in arguments for word in (flag, value)]
        no_incidents = [] if "--daemon" in arguments or "CABOOSE_HTTP" in env else ["--no-incidents"]
        env = {"NO_PROXY": "127.0.0.1", **env}
        return CliRunner().invoke(caboose, ["grafana", "push", *words, *no_incidents, *arguments], env=env)

    return run


def the_line(ended: Result, code: int) -> str:
    """The one line of a command that failed."""
    assert ended.exit_code == code, ended.stderr
    (line,) = ended.stderr.splitlines()
    return line.removeprefix("caboose: ")


# What it does


def test_the_first_push_makes_everything_and_the_second_changes_nothing(push: Push, grafana: StandIn) -> None:
    first = push()

    assert (first.exit_code, first.stderr) == (0, "")
    assert [line.rsplit(None, 1)[1] for line in first.stdout.splitlines()[:-1]] == ["created"] * 4
    assert grafana.folders["caboose"]["title"] == "Caboose"
    assert grafana.sources["caboose-prometheus"]["url"] == "http://prometheus:9090"
    assert {uid: kept["meta"]["folderUid"] for uid, kept in grafana.dashboards.items()} == {
        "caboose-fleet": "caboose",
        "caboose-run": "caboose",
    }

    grafana.requests.clear()
    second = push()

    assert second.exit_code == 0
    assert second.stdout.startswith("Nothing to change: all 4 objects in ")
    assert grafana.requests
    assert grafana.writes == []


def test_a_dry_run_says_what_would_change_and_changes_nothing(push: Push, grafana: StandIn) -> None:
    ended = push("--dry-run")

    assert ended.exit_code == 0
    assert ended.stdout.count("would be created") == 4
    assert ended.stdout.splitlines()[-1].startswith("Would change 4 of 4 objects in ")
    assert grafana.writes == []


def test_only_what_differs_is_written(push: Push, grafana: StandIn, tmp_path: Path) -> None:
    push()
    grafana.dashboards["caboose-fleet"]["dashboard"]["panels"] = []  # somebody edited it by hand
    grafana.folders["caboose"]["title"] = "Old name"
    grafana.requests.clear()

    ended = push("--prometheus", "http://elsewhere:9090", "--json")

    told = json.loads(ended.stdout)
    assert {(item["kind"], item["name"]): item["action"] for item in told["changes"]} == {
        ("folder", "Caboose"): "update",
        ("data source", "Caboose Prometheus"): "update",
        ("dashboard", "Fleet"): "update",
        ("dashboard", "Run"): "keep",
    }
    assert [request.path for request in grafana.writes] == [
        "/api/folders/caboose",
        "/api/datasources/uid/caboose-prometheus",
        "/api/dashboards/db",
    ]
    assert grafana.sources["caboose-prometheus"]["url"] == "http://elsewhere:9090"
    assert grafana.dashboards["caboose-fleet"]["dashboard"]["panels"][0]["title"] == "A"


def test_a_dashboard_in_another_folder_comes_back(push: Push, grafana: StandIn) -> None:
    push()
    grafana.dashboards["caboose-run"]["meta"]["folderUid"] = "elsewhere"

    assert "Run" in push().stdout
    assert grafana.dashboards["caboose-run"]["meta"]["folderUid"] == "caboose"


def test_without_an_address_a_prometheus_that_grafana_knows_is_left_alone(push: Push, grafana: StandIn) -> None:
    grafana.sources["theirs"] = {"uid": "theirs", "name": "Mimir", "type": "prometheus", "url": "http://mimir"}

    ended = push("--prometheus", "", "--json")

    assert {"kind": "data source", "name": "Mimir", "action": "keep"} in json.loads(ended.stdout)["changes"]
    assert list(grafana.sources) == ["theirs"]


def test_without_any_prometheus_it_asks_where_there_is_one(push: Push, grafana: StandIn) -> None:
    line = the_line(push("--prometheus", ""), 1)

    assert line.endswith("has no Prometheus data source; give its address: --prometheus URL")
    assert grafana.writes == []


def test_incidents_of_the_daemon_become_annotations(push: Push, grafana: StandIn, daemon: DaemonProcess) -> None:
    with simulated_ranks(daemon.endpoint, 1) as (rank,):
        for step in range(1, 8):
            rank.send(a_report(step, loss=2.0 if step < 4 else NAN))
        incidents = wait_until(lambda: incidents_of(daemon), 20)
        first = push("--daemon", daemon.url)

    assert incidents
    assert first.exit_code == 0, first.stderr
    (annotation,) = grafana.annotations.values()
    assert {"caboose", "training_job:train", "rule:non_finite", "incident:train/1"} <= set(annotation["tags"])
    assert annotation["time"] == round(incidents[0]["opened_time"] * 1000)
    assert "non_finite in train" in annotation["text"]


def incidents_of(daemon: DaemonProcess) -> list[Any]:
    jobs = [row["job"] for row in daemon.get("/api/v1/jobs")["jobs"]]
    return [incident for job in jobs for incident in daemon.get(f"/api/v1/jobs/{job}/incidents")["incidents"]]


def test_a_daemon_that_is_not_there_is_a_word_or_an_error_if_it_was_asked_for(push: Push) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"

        line = the_line(push("--daemon", nobody), 1)
        unasked = push(CABOOSE_HTTP=nobody)

    assert line == f"no daemon answers at http://{nobody}: Connection refused{HINT}"
    assert unasked.exit_code == 0
    assert unasked.stderr == f"caboose: {line}; no incidents pushed\n"


def test_a_grafana_under_a_sub_path_is_found(push: Push) -> None:
    with standing_in(prefix="/grafana") as behind:
        ended = push("--url", f"{behind.url}/")

        assert ended.exit_code == 0, ended.stderr
        assert "caboose-run" in behind.dashboards


# The token and the address


def test_the_token_may_stand_in_the_environment_and_in_the_file(push: Push, grafana: StandIn, tmp_path: Path) -> None:
    by_variable = push("--token-file", "", CABOOSE_GRAFANA_TOKEN=TOKEN)
    (tmp_path / "caboose.toml").write_text(f"[grafana]\nurl = '{grafana.url}'\ntoken_file = 'token'\n")
    by_file = push("--token-file", "", "--url", "")

    assert (by_variable.exit_code, by_file.exit_code) == (0, 0), by_variable.stderr + by_file.stderr


def test_there_is_no_flag_for_the_token_itself(push: Push) -> None:
    told = push("--help").stdout

    assert "--token-file" in told
    assert "--token " not in told


NO_TOKEN = (
    "no token for Grafana: put a service account's token into a file and name it (token_file), "
    "or set CABOOSE_GRAFANA_TOKEN"
)


def test_what_cannot_be_right_is_one_line_and_2(push: Push, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "prose").write_text("the token is secret\n")

    assert the_line(push("--token-file", ""), 2) == NO_TOKEN
    assert the_line(push("--token-file", "nowhere"), 2) == "Grafana's token: nowhere: No such file or directory"
    assert the_line(push("--token-file", "empty"), 2) == "Grafana's token: empty is empty"
    assert the_line(push("--token-file", "prose"), 2) == "Grafana's token: prose does not hold a token"
    assert the_line(push("--url", "grafana:3000"), 2) == "'grafana:3000' is not of the form http://host:port/path"
    assert the_line(push("--url", ""), 2).startswith("where is Grafana? Give --url URL")


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:x", "http://a?b=c", "http://a#b", "http://a:99999"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(GrafanaError, match="is not of the form"):
        check_url(url)


def test_an_address_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(GrafanaError) as caught:
        check_url("http://admin:hunter2@grafana:3000")

    assert "hunter2" not in str(caught.value)


# What fails


FAILURES: dict[str, tuple[str, int, Any, str]] = {
    # label: (requests, status, body, what the line says after the address)
    "401": (
        "GET /api/folders",
        401,
        {"message": "Invalid API key"},
        " refuses the token (401): create a service account",
    ),
    "403 on dashboards": (
        "POST /api/dashboards",
        403,
        {"message": "Access denied"},
        " does not allow writing dashboard 'Fleet' (403): the token's service account needs the role Editor: Access",
    ),
    "403 on data sources": (
        "POST /api/datasources",
        403,
        {},
        " does not allow changing data sources (403): the token's service account needs the role Admin",
    ),
    "404": (
        "GET /api/frontend/settings",
        404,
        {},
        " has no such address (404, reading its version): is the URL right, sub-path",
    ),
    "412": ("POST /api/dashboards", 412, {"message": "changed"}, " refused (412, writing dashboard 'Fleet'): changed"),
    "500": (
        "POST /api/folders",
        500,
        {"message": "db locked"},
        " failed (500, creating folders); see its log, or try",
    ),
    "502 of a proxy": (
        "GET /api/frontend/settings",
        502,
        "<html>Bad Gateway",
        " failed (502, reading its version); see its log",
    ),
}


@pytest.mark.parametrize(("requests", "status", "body", "line"), FAILURES.values(), ids=list(FAILURES))
def test_a_failure_is_one_line_and_1(
    requests: str, status: int, body: Any, line: str, push: Push, grafana: StandIn
) -> None:
    grafana.fails(requests, status, body)

    assert the_line(push(), 1).startswith(f"Grafana at {grafana.url}{line}")


def test_a_wrong_token_is_refused(push: Push, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("glsa_of_somebody_else")

    assert "refuses the token (401)" in the_line(push(), 1)


def test_what_was_done_before_it_failed_is_said(push: Push, grafana: StandIn) -> None:
    grafana.fails("POST /api/dashboards", 500)

    ended = push()

    assert ended.exit_code == 1
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["folder", "data"]


def test_nobody_there_is_one_line(push: Push) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

        assert the_line(push("--url", url), 1) == f"Grafana at {url} cannot be reached: Connection refused"


def test_a_name_that_is_no_host_is_one_line(push: Push) -> None:
    line = the_line(push("--url", "http://grafana.invalid:3000"), 1)

    assert line.startswith("Grafana at http://grafana.invalid:3000 cannot be reached: ")


def test_a_page_that_is_no_grafana_is_one_line(push: Push, grafana: StandIn) -> None:
    grafana.fails("GET /api/frontend/settings", 200, "<html>Welcome")

    assert "answers, but not as Grafana does" in the_line(push(), 1)


def test_a_redirect_is_not_followed_with_the_token(push: Push, grafana: StandIn) -> None:
    grafana.fails("GET /api/frontend/settings", 302)

    assert the_line(push(), 1) == f"Grafana at {grafana.url} redirects elsewhere; give the address it redirects to"
    assert [request.path for request in grafana.requests] == ["/api/frontend/settings"]


def test_one_that_does_not_answer_is_given_up(grafana: StandIn) -> None:
    grafana.fails("GET /api/frontend/settings", 200, until=threading.Event())
    connection = GrafanaConnection(grafana.url, TOKEN, timeout=0.2)

    with pytest.raises(GrafanaError, match=r"did not answer within 0\.2 s, reading its version"):
        connection.check_version()
    connection.close()


# What counts as the same


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        pytest.param({"a": 1, "id": 7}, {"a": 1}, True, id="Grafana adds"),
        pytest.param({"a": 1}, {"a": 1, "b": None}, True, id="nothing is as good as not there"),
        pytest.param({"a": 1, "b": 2}, {"a": 1, "b": None}, False, id="something is not"),
        pytest.param({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True, id="inside a list"),
        pytest.param({"a": [1, 2]}, {"a": [1]}, False, id="a panel too many"),
        pytest.param({"a": "1"}, {"a": 1}, False, id="another type"),
        pytest.param(None, {"a": 1}, False, id="not there"),
    ],
)
def test_ours_within_theirs(theirs: Any, ours: Any, expected: bool) -> None:
    assert contains(theirs, ours) is expected
