"""Real stores of metrics for tests: Debian's Prometheus and VictoriaMetrics, on loopback.

They scrape every second, or get what Prometheus scraped by remote write.
"""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.http import http
from support.processes import end, wait_until

READY_SECONDS = 60.0
CONFIG = """\
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: caboose
    static_configs:
      - targets: ["{target}"]
"""
REMOTE_WRITE = """\
remote_write:
  - url: "{url}/api/v1/write"
    queue_config: {{batch_send_deadline: 1s}}
"""


@dataclass(frozen=True)
class Store:
    """Whatever answers Prometheus' HTTP API."""

    name: str
    url: str
    client: httpx.Client

    def get(self, path: str, **params: Any) -> Any:
        """The data of an answer; its complaint as an AssertionError."""
        answer = self.client.get(f"{self.url}/api/v1/{path}", params=params).json()
        assert answer.get("status") == "success", f"{self.name}: {answer.get('error', answer)}\n{params}"
        return answer["data"]

    def now(self, expression: str, time: float | None = None) -> list[dict[str, Any]]:
        """The series of an instant query."""
        found = self.get("query", query=expression, **({} if time is None else {"time": time}))
        # A scalar has no labels; it is shown as a series without any.
        return [{"metric": {}, "value": found["result"]}] if found["resultType"] == "scalar" else found["result"]

    def over(self, expression: str, start: float, stop: float, step: float) -> list[dict[str, Any]]:
        """The series of a range query."""
        found: list[dict[str, Any]] = self.get("query_range", query=expression, start=start, end=stop, step=step)[
            "result"
        ]
        return found

    def label_values(self, label: str, selector: str, start: float, stop: float) -> list[str]:
        """What Grafana's `label_values(selector, label)` asks for."""
        found: list[str] = self.get(f"label/{label}/values", **{"match[]": selector}, start=start, end=stop)
        return found


@contextlib.contextmanager
def running_prometheus(directory: Path, target: str, *, remote: str = "") -> Iterator[Store]:
    """Prometheus with a database of its own, scraping `target`, an address without a scheme; `remote` gets a copy."""
    written = REMOTE_WRITE.format(url=remote) if remote else ""
    with _running(
        "prometheus",
        directory,
        CONFIG.format(target=target) + written,
        lambda port, config: [
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        "/-/ready",
    ) as store:
        yield store


@contextlib.contextmanager
def running_victoria(directory: Path, target: str = "", *, port: int = 0) -> Iterator[Store]:
    """VictoriaMetrics in the same place; without a target it scrapes nothing, and is written to."""
    with _running(
        "victoria-metrics",
        directory,
        CONFIG.format(target=target) if target else "scrape_configs: []\n",
        lambda port, config: [
            f"-promscrape.config={config}",
            f"-storageDataPath={directory / 'data'}",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-search.latencyOffset=0s",  # answers with the newest samples, as Prometheus does
            "-search.disableCache",
            "-memory.allowedBytes=128MB",
            "-loggerLevel=ERROR",
        ],
        "/health",
        port,
    ) as store:
        yield store


@contextlib.contextmanager
def _running(
    name: str, directory: Path, configuration: str, arguments: Any, ready: str, given: int = 0
) -> Iterator[Store]:
    program = shutil.which(name)
    assert program, f"{name} is not installed; run: make tools"
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "scrape.yml"
    config.write_text(configuration)
    log = directory / f"{name}.log"
    for _ in range(3):  # a port that was free may be taken before it is used
        port = given or free_port()
        with log.open("ab") as output:
            process = subprocess.Popen([program, *arguments(port, config)], stdout=output, stderr=output, cwd=directory)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: process.poll() is not None or _answers(url + ready), READY_SECONDS, every=0.1)  # noqa: B023
            if process.poll() is None:
                with httpx.Client(timeout=60) as client:
                    yield Store(name, url, client)
                return
        finally:
            end(process, patience=20)
    raise AssertionError(f"{name} did not start:\n{log.read_text()[-2000:]}")


def _answers(url: str) -> bool:
    try:
        return http.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
