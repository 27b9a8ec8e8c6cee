"""Nobody gets in: what may be reached from other machines needs keys and a token, and keys are checked."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from caboose_daemon.app.app import Daemon, StartError
from caboose_daemon.app.keys import make
from caboose_daemon.config import Config, DaemonConfig
from caboose_wire import encode
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import a_hello
from support.seeds import first_of

Refused = Callable[..., str]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


# Addresses off this machine


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://10.1.2.3:0"])
def test_reports_from_other_machines_need_keys(listen: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="is reachable from other machines, and no keys are set"):
        Daemon(Config(daemon=DaemonConfig(listen=listen, data_dir=str(tmp_path))))


@pytest.mark.parametrize("http", ["0.0.0.0:0", "[::]:0", "10.1.2.3:0", "node1:0"])
def test_http_for_other_machines_needs_a_token(http: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="is reachable from other machines, and no token is set"):
        Daemon(Config(daemon=DaemonConfig(http=http, data_dir=str(tmp_path))))


def test_with_keys_and_a_token_other_machines_may_come(tmp_path: Path) -> None:
    make(tmp_path / "keys")
    (tmp_path / "token").write_text("0123456789abcdef")
    config = DaemonConfig(
        listen="tcp://0.0.0.0:0",
        http="0.0.0.0:0",
        keys=str(tmp_path / "keys"),
        token_file=str(tmp_path / "token"),
        data_dir=str(tmp_path / "data"),
    )

    Daemon(Config(daemon=config)).close()


@pytest.mark.long
@pytest.mark.slow
def test_the_command_line_refuses_with_one_line_that_says_what_to_do(refused_start: Refused) -> None:
    assert refused_start("--listen", "tcp://0.0.0.0:0") == (
        "--listen tcp://0.0.0.0:0 is reachable from other machines, and no keys are set: make them with "
        "`caboose keys new DIR` and pass --keys DIR (or --insecure on a network you trust)"
    )
    assert refused_start("--http", "0.0.0.0:0") == (
        "--http 0.0.0.0:0 is reachable from other machines, and no token is set: put one into a file "
        "and pass --token-file FILE (or --insecure on a network you trust)"
    )


LOUD = "caboose: --insecure: anyone who can reach these ports can report, read, and impersonate a rank"


def test_insecure_is_allowed_but_loud(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--insecure", listen="tcp://0.0.0.0:0", http="0.0.0.0:0") as daemon:
        assert LOUD in daemon.log.read_text()


@pytest.mark.slow
@pytest.mark.long
def test_insecure_in_the_file_is_just_as_loud(tmp_path: Path) -> None:
    (tmp_path / "caboose.toml").write_text("[daemon]\ninsecure = true\n")
    with running_daemon(tmp_path) as daemon:
        assert LOUD in daemon.log.read_text()


@pytest.mark.slow
@pytest.mark.long
def test_a_daemon_on_this_machine_is_quiet_about_it(daemon: DaemonProcess) -> None:
    assert "insecure" not in daemon.log.read_text()


# Keys


def test_keys_new_prints_what_agents_need_and_keeps_the_secrets(run_caboose: Run, tmp_path: Path) -> None:
    ended = run_caboose("keys", "new", "keys")

    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert [line.partition("=")[0] for line in lines] == ["export CABOOSE_SERVER_KEY", "export CABOOSE_AGENT_KEY"]
    assert all(len(line.partition("=")[2].strip("'")) == 40 for line in lines)
    for secret in (tmp_path / "keys").rglob("*.key_secret"):
        assert secret.stat().st_mode & 0o077 == 0


def test_keys_are_not_written_over(run_caboose: Run, tmp_path: Path) -> None:
    make(tmp_path / "keys")
    before = (tmp_path / "keys" / "daemon.key_secret").read_bytes()

    ended = run_caboose("keys", "new", "keys")

    assert ended.returncode == 2
    assert ended.stderr == "caboose: keys already contains keys; remove them first, or choose another directory\n"
    assert (tmp_path / "keys" / "daemon.key_secret").read_bytes() == before


@pytest.mark.slow
@pytest.mark.long
def test_keys_that_are_not_there_are_one_line(refused_start: Refused) -> None:
    line = refused_start("--keys", "nowhere")

    assert line.startswith("nowhere/daemon.key_secret: ")
    assert line.endswith("; make keys with `caboose keys new nowhere`")


Knock = Callable[..., None]


@pytest.fixture
def knock() -> Iterator[Knock]:
    """Sends a Hello, under a job name of its own, from a DEALER that may have keys."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []

    def knock(endpoint: str, job: str, *, server_public: bytes = b"", secret: bytes = b"") -> None:
        socket = context.socket(zmq.DEALER)
        sockets.append(socket)
        if secret:
            socket.curve_serverkey = server_public
            socket.curve_secretkey = secret
            socket.curve_publickey = zmq.curve_public(secret)
        socket.connect(endpoint)
        socket.send_multipart(encode(a_hello(job=job, incarnation=f"incarnation-{job}")))

    yield knock
    for socket in sockets:
        socket.close(linger=0)
    context.term()


def test_only_an_agent_with_the_right_keys_is_heard(tmp_path: Path, knock: Knock) -> None:
    daemon_public, agent_secret = (key.encode() for key in make(tmp_path / "keys"))
    stranger_public, stranger_secret = zmq.curve_keypair()
    with running_daemon(tmp_path / "daemon", "--keys", str(tmp_path / "keys")) as daemon:
        knock(daemon.endpoint, "without")
        knock(daemon.endpoint, "unknown", server_public=daemon_public, secret=stranger_secret)
        knock(daemon.endpoint, "deceived", server_public=stranger_public, secret=agent_secret)
        knock(daemon.endpoint, "right", server_public=daemon_public, secret=agent_secret)
        assert wait_until(lambda: daemon.get("/api/v1/jobs")["jobs"], 10)
        knock(daemon.endpoint, "later", server_public=daemon_public, secret=agent_secret)
        assert wait_until(lambda: len(daemon.get("/api/v1/jobs")["jobs"]) >= 2, 10)

        assert {job["job"] for job in daemon.get("/api/v1/jobs")["jobs"]} == {"right", "later"}
        assert 'caboose_messages_received_total{type="Hello"} 2.0' in daemon.text("/metrics")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_a_name_is_authorised_listed_and_revoked(run_caboose: Run, tmp_path: Path) -> None:
    run_caboose("keys", "new", "keys")
    made = run_caboose("keys", "authorize", "keys", "alice")
    assert [line.partition("=")[0] for line in made.stdout.splitlines()] == [
        "export CABOOSE_SERVER_KEY",
        "export CABOOSE_AGENT_KEY",
    ]
    assert sorted(path.name for path in (tmp_path / "keys" / "agents").glob("alice*")) == ["alice.key"], "not kept"
    names = [row["name"] for row in json.loads(run_caboose("keys", "list", "keys", "--json").stdout)["keys"]]
    assert names == ["agent", "alice"]
    assert run_caboose("keys", "revoke", "keys", "alice").returncode == 0
    assert "alice" not in run_caboose("keys", "list", "keys").stdout


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "reason"),
    first_of(
        [
            (("authorize", "keys", "agent"), "agent is authorised already"),
            (("authorize", "keys", "../daemon"), "no name for a key"),
            (("authorize", "nowhere", "alice"), "make keys with `caboose keys new nowhere`"),
            (("revoke", "keys", "alice"), "alice is not authorised in keys; authorised: agent"),
            (("list", "nowhere"), "make keys with `caboose keys new nowhere`"),
        ]
    ),
)
def test_keys_that_cannot_be_are_one_line(run_caboose: Run, arguments: tuple[str, ...], reason: str) -> None:
    run_caboose("keys", "new", "keys")
    ended = run_caboose("keys", *arguments)
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
