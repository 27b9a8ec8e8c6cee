"""Who may read and write over HTTP: tokens, their files, and TLS."""

import base64
import contextlib
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from caboose_daemon.app.app import Daemon, StartError
from caboose_daemon.out.api.client import Client, ClientError
from caboose_daemon.out.web import connections
from support.http import http
from support.processes import running_daemon
from support.served import served

Run = Callable[..., "subprocess.CompletedProcess[str]"]
READ, WRITE = "read-token-0123456789", "write-token-0123456789"


def basic(password: str, user: str = "anyone") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def secret_file(path: Path, content: str, mode: int = 0o600) -> Path:
    path.write_text(content)
    path.chmod(mode)
    return path


def write(daemon: Daemon, authorization: str | None) -> int:
    headers = {"content-type": "application/json"} | ({"authorization": authorization} if authorization else {})
    url = f"{daemon.url}api/v1/config"
    return http.post(url, content='{"rules": {}}', headers=headers, timeout=10).status_code


def read(daemon: Daemon, path: str, authorization: str | None = None) -> int:
    headers = {"authorization": authorization} if authorization else {}
    return http.get(f"{daemon.url}{path}", headers=headers, timeout=10).status_code


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a token for reads and one for writes."""
    directory = tmp_path_factory.mktemp("guarded")
    read_file, write_file = secret_file(directory / "read", READ), secret_file(directory / "write", WRITE)
    with served(directory / "data", read_token_file=str(read_file), token_file=str(write_file)) as daemon:
        yield daemon


# Writes


@pytest.mark.parametrize("authorization", [f"Bearer {WRITE}", f"bearer {WRITE}", f"Bearer  {WRITE}"])
def test_a_write_needs_the_token_as_bearer(guarded: Daemon, authorization: str) -> None:
    assert write(guarded, authorization) == 200


@pytest.mark.parametrize(
    "authorization",
    [
        *(None, WRITE, f"Bearer{WRITE}", f"Token {WRITE}", f"Bearer {READ}", "Bearer", basic(WRITE)),
        f"Bearer Bearer {WRITE}",
    ],
)
def test_in_any_other_form_it_is_refused(guarded: Daemon, authorization: str | None) -> None:
    assert write(guarded, authorization) == 401


# Reads


PATHS = ("", "metrics", "api/v1/jobs", "api/v1/daemon", "static/icon.svg", "runbooks/CabooseLossSpike", "nothing")


@pytest.mark.parametrize("path", PATHS)
def test_with_a_read_token_reading_needs_it(guarded: Daemon, path: str) -> None:
    expected = 404 if path == "nothing" else 200
    for authorization in (f"Bearer {READ}", f"Bearer {WRITE}", basic(READ), basic(WRITE, ""), basic(READ, "a b")):
        assert read(guarded, path, authorization) == expected
    for wrong in (None, READ, "Bearer wrong", basic("wrong"), basic(""), "Basic ???", "Basic " + "A" * 7, "Digest x"):
        assert read(guarded, path, wrong) == 401


def test_the_refusal_makes_a_browser_ask(guarded: Daemon) -> None:
    answer = http.get(guarded.url)

    assert answer.headers["www-authenticate"] == 'Basic realm="caboose", charset="UTF-8"'


def test_a_stream_needs_the_read_token_too(guarded: Daemon) -> None:
    with http.stream("GET", f"{guarded.url}api/v1/stream", headers={"authorization": basic(READ)}) as answer:
        assert answer.status_code == 200
    assert read(guarded, "api/v1/stream") == 401


@pytest.mark.parametrize("path", ["healthz", "readyz"])
def test_probes_need_no_token(guarded: Daemon, path: str) -> None:
    assert read(guarded, path) == 200


def test_commands_read_with_the_token_of_the_configuration(guarded: Daemon) -> None:
    with pytest.raises(ClientError, match="reading needs the read token"):
        Client(guarded.url).get("/api/v1/jobs")
    assert Client(guarded.url, token=READ).get("/api/v1/jobs") == {"jobs": []}
    assert Client(guarded.url, token=READ).is_ok("/metrics")
    assert Client(guarded.url, token=READ).post("/api/v1/config", {"rules": {}}, WRITE)[0] == 200


@pytest.mark.slow
def test_the_command_line_takes_the_read_token_from_its_variable(tmp_path: Path, run_caboose: Run) -> None:
    file = secret_file(tmp_path / "read", READ)
    with running_daemon(tmp_path / "d", "--read-token-file", str(file)) as daemon:
        without = run_caboose("jobs", "--daemon", daemon.url)
        assert (without.returncode, "reading needs the read token" in without.stderr) == (2, True)
        assert run_caboose("jobs", "--daemon", daemon.url, CABOOSE_READ_TOKEN_FILE=str(file)).returncode == 0


# Files


def test_what_the_daemon_makes_is_for_its_owner_only(tmp_path: Path) -> None:
    with served(tmp_path / "a" / "data") as daemon:
        assert http.get(f"{daemon.url}api/v1/jobs", timeout=10).status_code == 200
        data = tmp_path / "a" / "data"
        modes = {path.name: path.stat().st_mode & 0o777 for path in data.iterdir()}
        assert {"journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "lock", "token"} <= modes.keys()
        assert set(modes.values()) == {0o600}
        assert data.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("setting", ["token_file", "read_token_file"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602])
def test_a_token_that_others_can_read_or_change_is_refused(setting: str, mode: int, tmp_path: Path) -> None:
    file = secret_file(tmp_path / "my token", WRITE, mode)
    fix = f"by other users (mode {mode:03o}): run `chmod 600 '{file}'`"
    assert fix in refusal(tmp_path / "data", **{setting: str(file)})


def refusal(data: Path, **settings: str) -> str:
    with pytest.raises(StartError) as refused, served(data, **settings):
        pass
    return str(refused.value)


def test_a_read_token_that_is_not_there_or_too_short_is_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "data", read_token_file="nowhere").startswith("read token: ")
    short = secret_file(tmp_path / "short", "short")
    assert "too short" in refusal(tmp_path / "data", read_token_file=str(short))


# TLS


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("tls")
    key, cert = directory / "key.pem", directory / "cert.pem"
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
    )
    key.chmod(0o600)
    return cert, key


def test_with_a_certificate_everything_is_served_over_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with served(tmp_path, tls_cert=str(cert), tls_key=str(key)) as daemon:
        assert daemon.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{daemon.url}healthz", verify=context, timeout=10).json()["status"] == "ok"
        with pytest.raises(httpx.HTTPError):
            http.get(daemon.url.replace("https", "http") + "healthz", timeout=10)


def test_a_client_that_never_finishes_its_handshake_counts_as_a_connection(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    cert, key = certificate
    with served(tmp_path, tls_cert=str(cert), tls_key=str(key)) as daemon, contextlib.ExitStack() as stack:
        port = int(daemon.url.rstrip("/").rpartition(":")[2])
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(5)]
        assert opened[-1].recv(1) == b""


def test_certificates_that_cannot_be_used_are_one_line(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    missing = refusal(tmp_path / "data", tls_cert=cert, tls_key="nowhere.pem")
    assert missing == "--tls-key nowhere.pem: No such file or directory"
    (tmp_path / "text").write_text("no certificate")
    line = refusal(tmp_path / "data", tls_cert=str(tmp_path / "text"), tls_key=key)
    assert line.startswith(f"--tls-cert {tmp_path / 'text'}, --tls-key {key}: ")
    assert line.endswith("; give a PEM chain and its PEM key without a passphrase")


def test_a_key_of_another_certificate_or_with_a_passphrase_is_one_line(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = map(str, certificate)
    locked = str(tmp_path / "locked.pem")
    openssl("ec", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked)
    other = str(tmp_path / "other.pem")
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", other)
    for path in (locked, other):
        line = refusal(tmp_path / "data", tls_cert=cert, tls_key=path)
        assert line.startswith(f"--tls-cert {cert}, --tls-key {path}: ")
        assert "\n" not in line
