"""The daemon as a whole: builds the parts, starts them, signals readiness, and stops them again.

Design
------
Three threads. The loop's thread receives, judges and writes; the main thread serves HTTP and waits for signals; the
retention keeps the journal within its limits. Grafana and each mirror have their own thread (see `outbox`). `Daemon`
can be embedded: construct, `start`, use `endpoint` and `url`, `serve` until something calls `stop`. Ports may be 0.

SIGHUP rereads the authorised keys, and the thresholds from the file. A closing terminal also sends SIGHUP, to a daemon
running in it; that still ends the daemon. The two cases are distinguished by whether the terminal still exists.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
import zmq
from starlette.responses import Response

from caboose_daemon.app import keys
from caboose_daemon.app.clock import SteadyClock
from caboose_daemon.app.loop import Loop
from caboose_daemon.app.opening import open_journal
from caboose_daemon.app.report_connections import raise_descriptor_limit
from caboose_daemon.app.serving import ServeError, bind_http, tls_arguments
from caboose_daemon.app.shutdown import has_unscraped_incidents
from caboose_daemon.app.sinks import DaemonSink
from caboose_daemon.config import SAFE_INCIDENT_SECONDS, Config, ConfigError, changed_keys
from caboose_daemon.ingest.receiver import Receiver
from caboose_daemon.jobs.alert_wording import impacts
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.jobs.thresholds import Thresholds
from caboose_daemon.out.api import known_daemons
from caboose_daemon.out.api.known_daemons import KnownDaemon, start_time
from caboose_daemon.out.api.live import Broker
from caboose_daemon.out.export.exports import ExportError, make_exports
from caboose_daemon.out.make_store import make_store
from caboose_daemon.out.otlp.make import make_otlp
from caboose_daemon.out.outbox import CLOSE_SECONDS
from caboose_daemon.out.web.application import make_application
from caboose_daemon.out.web.connections import HEAD_SECONDS, NO_SNIFFING, Dropped, bounded
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.security import read_or_make_token, read_token
from caboose_daemon.out.web.writes import Prepared, Writes
from caboose_daemon.rollback.commander import Commander
from caboose_daemon.rollback.policy import Policy
from caboose_daemon.rollback.requests import Requests
from caboose_daemon.store.database import JournalError
from caboose_daemon.store.history import HistoryReader
from caboose_wire import read_secret
from caboose_wire.endpoints import is_loopback, split_http, split_tcp
from caboose_wire.private_files import NotPrivate, check_named, read_or_make, user_secret_path

logger = logging.getLogger("caboose.daemon")


class StartError(RuntimeError):
    """The daemon cannot start; the message is one line with the reason and the fix."""


class Daemon:
    """A whole daemon, embeddable; `reread` loads the configuration again."""

    def __init__(self, config: Config, reread: Callable[[], Config] | None = None) -> None:
        self._config = config
        self._reread = reread
        self._check_exposure()
        self._check_incident_seconds()
        if zmq.zmq_version_info() < (4, 3, 5):
            raise StartError(
                f"libzmq {zmq.zmq_version()} has known security holes; upgrade pyzmq (libzmq 4.3.5 or later)"
            )
        self._data_dir = self._open_data_dir()
        self._clock = SteadyClock()
        self.state = State(rule_configs=config.rules, started=self._clock())
        self._lock = self._lock_data_dir()
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        """Opens the journal and makes the parts around it; what fails later closes it again."""
        path = self._data_dir / "journal.sqlite"
        try:
            self._exports = make_exports(self._config, self.state, self._data_dir)
            self._otlp = make_otlp(self._config, self.state, self._clock)
            self._journal, self._inspected = open_journal(
                path,
                self._config.journal,
                self.state,
                self._pipeline(Sink()),
                self._clock(),
                has_store=bool(self._config.store.postgres),
            )
        except (ExportError, JournalError) as error:
            raise StartError(str(error)) from None
        try:
            self._store = make_store(self._config.store, self._journal, self.state)
            self._build(path)
        except ExportError as error:
            self._journal.close(self._clock())
            raise StartError(str(error)) from None
        except BaseException:
            self._journal.close(self._clock())
            raise

    def _pipeline(self, sink: Sink) -> Pipeline:
        config = self._config
        return Pipeline(
            self.state,
            sink,
            min_deadline=config.alignment.min_deadline_seconds,
            deadline_steps=config.alignment.deadline_steps,
            abandoned_seconds=config.daemon.abandoned_seconds,
        )

    def _build(self, journal_path: Path) -> None:
        """Makes the parts, around an open journal."""
        config, clock = self._config, self._clock
        self._broker = Broker()
        self._writes = Writes()
        sink = DaemonSink(self._journal, self._broker, self._exports, self._otlp)
        pipeline = self._pipeline(sink)
        self._thresholds = Thresholds(config, self.state, pipeline, clock)
        commander = Commander(sink, self._secret())
        policy = Policy(self.state, pipeline, sink, config.rollback, commander)
        receiver = Receiver(self.state, pipeline, policy)
        self._loop = Loop(
            self.state, receiver, pipeline, policy, sink, keys=self._keys(), clock=clock, writes=self._writes
        )
        self._history = HistoryReader(journal_path)
        self._context = Context(
            state=self.state,
            pipeline=pipeline,
            thresholds=self._thresholds,
            broker=self._broker,
            history=self._history,
            clock=clock,
            is_receiving=lambda: self._loop.failure is None,
            incident_seconds=config.metrics.incident_seconds,
            requests=Requests(self.state, commander),
            rollback=config.rollback,
            is_signed=commander.has_secret,
            writes=self._writes,
        )
        self._ending_since: float | None = None
        """Time of SIGTERM while lingering."""
        self._server: _Server | None = None
        self._http_socket: socket.socket | None = None
        self.endpoint = ""
        self.url = ""
        self._note: KnownDaemon | None = None

    def _check_incident_seconds(self) -> None:
        seconds = self._config.metrics.incident_seconds
        if seconds < SAFE_INCIDENT_SECONDS:
            logger.warning(
                "incident_seconds = %g under [metrics]: a short incident may end before Prometheus scrapes it, "
                "and no alert fires; use at least %g",
                seconds,
                SAFE_INCIDENT_SECONDS,
            )

    def _check_exposure(self) -> None:
        daemon = self._config.daemon
        if daemon.insecure:
            return
        if not is_loopback(split_tcp(daemon.listen)[0]) and not daemon.keys:
            raise StartError(
                f"--listen {daemon.listen} is reachable from other machines, and no keys are set: make them with "
                "`caboose keys new DIR` and pass --keys DIR (or --insecure on a network you trust)"
            )
        if not is_loopback(split_http(daemon.http)[0]) and not daemon.token_file:
            raise StartError(
                f"--http {daemon.http} is reachable from other machines, and no token is set: put one into a file "
                "and pass --token-file FILE (or --insecure on a network you trust)"
            )

    def _open_data_dir(self) -> Path:
        path = Path(self._config.daemon.data_dir).expanduser().resolve()
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StartError(f"--data-dir {path}: {error.strerror}") from None
        return path

    def _lock_data_dir(self) -> int:
        path = self._data_dir / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartError(f"{path}: {error.strerror}; choose another --data-dir") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise StartError(f"another daemon uses {self._data_dir}; stop it, or choose another --data-dir") from None
        return descriptor

    def _keys(self) -> keys.DaemonKeys | None:
        directory = self._config.daemon.keys
        if not directory:
            return None
        try:
            return keys.load(Path(directory).expanduser())
        except keys.KeysError as error:
            raise StartError(str(error)) from None

    def _secret(self) -> bytes | None:
        path = self._config.rollback.secret_file
        if not path:
            return self._user_secret()
        try:
            secret = read_secret(path)
            check_named(Path(path).expanduser())
        except ValueError as error:
            raise StartError(str(error)) from None
        return secret

    def _user_secret(self) -> bytes | None:
        is_auto = self._config.rollback.mode == "auto"
        if is_auto and not is_loopback(split_tcp(self._config.daemon.listen)[0]):
            logger.warning("rollback is auto without --secret-file: ranks on other machines accept only its signature")
        path = user_secret_path(os.environ)
        try:
            if path is not None:
                return read_or_make(path)
            why = "this user has no home directory"
        except NotPrivate as error:
            if is_auto:
                raise StartError(str(error)) from None
            why = str(error)
        except OSError as error:
            why = f"{path}: {error.strerror or error}"
        if is_auto:
            logger.warning("commands are not signed, and no rank will obey them: %s; set --secret-file", why)
        return None

    def start(self) -> None:
        """Binds both ports and starts receiving."""
        daemon = self._config.daemon
        raise_descriptor_limit()
        impacts()  # read while there are descriptors
        try:
            self.endpoint = self._loop.bind(daemon.listen)
        except zmq.ZMQError as error:
            raise StartError(f"--listen {daemon.listen}: {error.strerror}") from None
        host, port = split_http(daemon.http)
        dropped = Dropped(self.state.http_dropped)
        try:
            tls = tls_arguments(daemon.tls_cert, daemon.tls_key)
            self._http_socket = bind_http(host, port, dropped)
        except ServeError as error:
            raise StartError(str(error)) from None
        real_port = self._http_socket.getsockname()[1]
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
        scheme = "https" if daemon.tls_cert else "http"
        self.url = f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{real_port}/"
        self.state.url = f"{scheme}://{socket.gethostname()}:{real_port}/" if shown != host else self.url
        if daemon.external_url:
            self.state.url = f"{daemon.external_url.rstrip('/')}/"
        self.state.grafana_url = self._config.grafana.url
        pid, token = os.getpid(), str(self._token_file().resolve())
        self._note = KnownDaemon(self.url.rstrip("/"), token, self.endpoint, pid, start_time(pid))
        known_daemons.note(self._note)
        application = make_application(
            self._context,
            token=self._token(),
            host=host,
            allowed_hosts=daemon.allowed_hosts,
            read_token=self._read_token(),
        )
        self._server = _Server(
            uvicorn.Config(
                application,
                http=bounded(dropped),
                ws="none",
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_keep_alive=int(HEAD_SECONDS),
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=64 * 1024,
                headers=[NO_SNIFFING],
                **tls,
            )
        )
        self._exports.start()
        if self._otlp is not None:
            self._otlp.start()
        if self._store is not None:
            self._store.start(urlsplit(self.state.url).netloc)
        self._journal.retention.start(self._clock, is_checked=self._inspected.is_checked)
        self._loop.start()

    def _token_file(self) -> Path:
        given = self._config.daemon.token_file
        return Path(given).expanduser() if given else self._data_dir / "token"

    def _token(self) -> str:
        try:
            return read_or_make_token(self._token_file())
        except (OSError, ValueError) as error:
            raise StartError(f"token: {error}") from None

    def _read_token(self) -> str:
        given = self._config.daemon.read_token_file
        if not given:
            return ""
        try:
            return read_token(Path(given).expanduser())
        except (OSError, ValueError) as error:
            raise StartError(f"read token: {error}") from None

    def serve(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serves HTTP on this thread until `stop`, SIGTERM or SIGINT; then stops everything."""
        try:
            asyncio.run(self._serve(on_ready))
        finally:
            self.close()
        if self._loop.failure is not None:
            raise RuntimeError("the receiving loop failed") from self._loop.failure

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        assert self._server is not None, "start comes before serve"
        assert self._http_socket is not None, "start comes before serve"
        loop = asyncio.get_running_loop()
        self._broker.bind(loop)
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on the main thread
            loop.add_signal_handler(signal.SIGINT, self.stop)
            loop.add_signal_handler(signal.SIGTERM, self._terminate)
            loop.add_signal_handler(signal.SIGHUP, self._hang_up, os.isatty(0))
        serving = asyncio.create_task(self._server.serve(sockets=[self._http_socket]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.01)
        if not serving.done():
            on_ready()
        while not serving.done():
            if self._loop.failure is not None or self._has_lingered():
                self.stop()
            await asyncio.wait([serving], timeout=0.5)
        await serving

    def _terminate(self) -> None:
        seconds = self._config.daemon.linger_seconds
        if not seconds or self._ending_since is not None:
            self.stop()
            return
        self._ending_since = self._clock()
        logger.info("SIGTERM: staying up to %g s, until all incidents are scraped", seconds)

    def _has_lingered(self) -> bool:
        since, now = self._ending_since, self._clock()
        if since is None:
            return False
        if now - since >= self._config.daemon.linger_seconds:
            return True
        with self.state.lock:
            jobs = self.state.jobs.values()
            return not has_unscraped_incidents(jobs, now, since, self._config.metrics.incident_seconds)

    def _hang_up(self, had_terminal: bool) -> None:
        if had_terminal and not os.isatty(0):
            self.stop()
        else:
            self.reload()

    def reload(self) -> None:
        """Rereads keys and configuration: keys and thresholds apply at once, everything else at the next start."""
        self._loop.reload_keys()
        if self._reread is None:
            return
        try:
            config = self._reread()
        except ConfigError as error:
            logger.error("%s; the thresholds are unchanged", error)
            return

        def prepare() -> Prepared:
            try:
                _, change = self._thresholds.replacing_file(config)
            except ConfigError as error:
                logger.error("%s; the thresholds are unchanged", error)
                return Prepared(Response())
            return Prepared(Response(), change, is_journaled=False)

        self._writes.submit(prepare)
        changed = changed_keys(self._config, config)
        if changed:
            logger.warning("%s: %s changed; restart to apply", config.file or "configuration", ", ".join(changed))

    def stop(self) -> None:
        """Makes `serve` return; safe to call twice."""
        self._broker.close()
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        """Stops the loop and closes every file and socket."""
        self._loop.stop()
        if self._note is not None:
            known_daemons.forget(self._note)
        if self._http_socket is not None:
            self._http_socket.close()
        self._history.close()
        if self._store is not None:
            self._store.close()
        self._journal.close(self._clock())
        began = time.monotonic()
        self._exports.close()
        if self._otlp is not None:
            self._otlp.close(max(0.5, CLOSE_SECONDS - (time.monotonic() - began)))
        with contextlib.suppress(OSError):
            os.close(self._lock)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers; the daemon has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
