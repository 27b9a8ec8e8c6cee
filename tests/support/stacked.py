"""A whole stack with short waits: a real daemon, Prometheus and Alertmanager, and a pager."""

import contextlib
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caboose_daemon import assets
from caboose_daemon.ops.stack import stack as stacks
from caboose_daemon.out.api.client import Client
from support.pager import Pager

SCRAPE_SECONDS = 0.5
LONG = "8s"
"""`for` of the alert on ended runs: longer than a page takes to be sent."""


@contextlib.contextmanager
def running_stack(
    directory: Path, pager: Pager, *, config: str = "", quick_tickets: bool = False
) -> Iterator[stacks.Stack]:
    """All parts with short intervals. The rules are the shipped ones, with shorter waits."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "caboose.toml").write_text(f"[metrics]\nincident_seconds = 5.0\n{config}")
    made = stacks.up(
        directory,
        daemon=None,
        rules=shortened(directory, quick_tickets=quick_tickets),
        webhook=pager.url,
        scrape_seconds=SCRAPE_SECONDS,
        wait_seconds=1.0,
    )
    try:
        yield made
    finally:
        stacks.down(directory)


def shortened(directory: Path, *, quick_tickets: bool) -> list[Path]:
    """Copies of the shipped rules in which everything that takes minutes takes seconds."""
    rules = []
    for path in assets.alerts():
        text = path.read_text(encoding="utf-8")
        if path.name == "training.yml":
            text = text.replace("[5m]", "[5s]").replace("keep_firing_for: 5m", "keep_firing_for: 5s")
            before, ended, after = text.partition("alert: CabooseEndedUnresolved")
            text = before + ended + re.sub(r"for: \d+m", f"for: {LONG}", after)
            if quick_tickets:
                text = re.sub(r"\bfor: \d+m", "for: 1s", before) + ended + after.replace("for: 15m", f"for: {LONG}")
        copy = directory / path.name
        copy.write_text(text, encoding="utf-8")
        rules.append(copy)
    return rules


def ask(stack: stacks.Stack, query: str) -> list[dict[str, Any]]:
    """The series of an instant query."""
    prometheus = Client(stack.part("prometheus").url, timeout=10.0)
    answer = prometheus.get(f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def acknowledge(stack: stacks.Stack, incident: str) -> None:
    """As `caboose ack` does."""
    job, _, number = incident.rpartition("/")
    token = (stack.directory / "data" / "token").read_text(encoding="utf-8").strip()
    status, answer = Client(stack.daemon_url).post(
        f"/api/v1/jobs/{job}/incidents/{number}/ack", {"reason": "seen", "by": "ada"}, token
    )
    assert status == 200, answer
