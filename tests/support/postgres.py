"""A real PostgreSQL for tests: Debian's server, on a free loopback port, as a user that may run it."""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import psycopg

from support.processes import end, wait_until

USER = "caboose"
SETTINGS = ("fsync=off", "unix_socket_directories=", "max_connections=20", "shared_buffers=16MB", "timezone=UTC")


@cache
def why_not() -> str:
    """Why there can be no server here; empty if there can."""
    if _program("initdb") is None:
        return "postgresql is not installed (Debian: postgresql)"
    if os.getuid() == 0 and _unprivileged() is None:
        return "postgres does not run as root, and there is no user postgres"
    return ""


def _program(name: str) -> str | None:
    """Debian keeps the server's programs apart from the path, by version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def _unprivileged() -> pwd.struct_passwd | None:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return None


class PostgresServer:
    """A server that can be stopped and started again on its data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._as: dict[str, Any] = {}
        user = _unprivileged() if os.getuid() == 0 else None
        if user is not None:
            os.chown(directory, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.password = secrets.token_hex(8)
        self.password_file = directory / "password"
        self.password_file.write_text(f"{self.password}\n")
        self.password_file.chmod(0o644)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"postgresql://{USER}@127.0.0.1:{self._port}/postgres"
        self._data = directory / "data"
        self._log = directory / "postgres.log"
        self._process: subprocess.Popen[bytes] | None = None
        command = [str(_program("initdb")), "-D", str(self._data), "-U", USER, "--auth=scram-sha-256", "-N"]
        command += ["--pwfile", str(self.password_file), "--locale=C.UTF-8", "--encoding=UTF8"]
        subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=directory, **self._as)

    def start(self) -> None:
        settings = [f"-c{one}" for one in (f"port={self._port}", "listen_addresses=127.0.0.1", *SETTINGS)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(_program("postgres")), "-D", str(self._data), *settings],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,
                **self._as,
            )
        assert wait_until(self._answers, 30, every=0.1), self._log.read_text()[-2000:]

    def stop(self) -> None:
        """Closes every connection, as when its machine reboots."""
        if self._process is not None and self._process.poll() is None:
            self.signal_all(signal.SIGCONT)
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20)
            end(self._process)

    def signal_all(self, number: int) -> None:
        """To the server and the processes of its connections."""
        assert self._process is not None, "started before"
        server = psutil.Process(self._process.pid)
        for process in (server, *server.children(recursive=True)):  # each in a session of its own
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def connect(self) -> "psycopg.Connection[Any]":
        return psycopg.connect(self.url, password=self.password, autocommit=True, connect_timeout=5)

    def rows(self, query: Any) -> list[tuple[Any, ...]]:
        """The answer to a query."""
        with self.connect() as connection:
            return connection.execute(query).fetchall()

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.Error:
            return False
        return True


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A started server; gone with its data when the block ends."""
    with tempfile.TemporaryDirectory(prefix="caboose-postgres-") as directory:  # a path that its user may enter
        server = PostgresServer(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()
