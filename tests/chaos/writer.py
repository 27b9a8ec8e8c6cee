"""Writes over HTTP all the time, and remembers what was acknowledged; also reads the daemon's own error counts."""

import re
import threading
import time

import httpx

from chaos.daemon import Supervised
from support.http import http

TIMEOUT = 2.0
PAUSE_SECONDS = 0.15
ERRORS = re.compile(r'^caboose_internal_errors_total\{stage="(\w+)"\} ([\d.e+]+)$', re.MULTILINE)


class Writer:
    """A client of the daemon on a thread of its own; the daemon may be gone at any time."""

    def __init__(self, daemon: Supervised, job: str) -> None:
        self._daemon = daemon
        self._path = f"api/v1/jobs/{job}/"
        self.marks: list[str] = []
        """Events that the daemon answered with 2xx."""
        self.decisions: list[int] = []
        """Numbers of the rollbacks that the daemon accepted."""
        self.num_refused = 0
        self.errors: dict[str, float] = {}
        """Internal errors by stage, the most that was ever shown."""
        self._number = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(PAUSE_SECONDS):
            self._declare()
            self.read_errors()

    def _declare(self) -> None:
        self._number += 1
        mark = f"chaos-{self._number}"
        answer = self.post("events", {"kind": mark, "fields": {"at": time.monotonic()}})
        if answer is not None and answer.is_success:
            self.marks.append(mark)
        else:
            self.num_refused += 1

    def ask_for_rollback(self, skip: int, lr_scale: float) -> str:
        """Requests a rollback; returns an empty string if it was accepted, else why not."""
        answer = self.post("rollback", {"skip": skip, "lr_scale": lr_scale, "by": "chaos"})
        if answer is None:
            return "no answer"
        if answer.status_code != 202:
            return answer.text[:300]
        self.decisions.append(answer.json()["number"])
        return ""

    def post(self, path: str, body: object) -> httpx.Response | None:
        """The answer to a write; None if there is none."""
        daemon = self._daemon.known
        if daemon is None:
            return None
        try:
            headers = {"authorization": f"Bearer {daemon.token}"}
            return http.post(daemon.url + self._path + path, json=body, headers=headers, timeout=TIMEOUT)
        except (httpx.HTTPError, OSError):
            return None

    def read_errors(self) -> None:
        daemon = self._daemon.known
        if daemon is None:
            return
        try:
            text = http.get(f"{daemon.url}metrics", timeout=TIMEOUT).text
        except (httpx.HTTPError, OSError):
            return
        for stage, count in ERRORS.findall(text):
            if float(count):
                self.errors[stage] = max(self.errors.get(stage, 0.0), float(count))

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(3 * TIMEOUT)
