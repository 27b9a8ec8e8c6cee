"""The configuration of Prometheus and Alertmanager, written for one stack.

JSON is YAML, so the standard library can write the files.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from caboose_daemon.ops.stack.inhibitions import INHIBITIONS

SCRAPE_SECONDS = 5.0


def prometheus(daemon_url: str, alertmanager: str, rules: Sequence[Path], *, seconds: float = SCRAPE_SECONDS) -> str:
    """Scrapes the daemon, evaluates the alerts, and sends them to Alertmanager."""
    every = f"{seconds:g}s" if seconds >= 1 else f"{1000 * seconds:.0f}ms"
    parts = urlsplit(daemon_url)
    return _yaml(
        {
            "global": {"scrape_interval": every, "evaluation_interval": every},
            "rule_files": [str(path) for path in rules],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
            "scrape_configs": [
                {"job_name": "caboose", "scheme": parts.scheme, "static_configs": [{"targets": [parts.netloc]}]}
            ],
        }
    )


def alertmanager(webhook: str | None, *, wait_seconds: float = 10.0) -> str:
    """One receiver for all alerts; one notification per cause."""
    receiver: dict[str, Any] = {"name": "default"}
    if webhook is not None:
        receiver["webhook_configs"] = [{"url": webhook, "send_resolved": True}]
    wait = f"{wait_seconds:g}s" if wait_seconds >= 1 else f"{1000 * wait_seconds:.0f}ms"
    return _yaml(
        {
            "route": {
                "receiver": "default",
                "group_by": ["alertname", "training_job"],
                "group_wait": wait,
                "group_interval": wait,
                "repeat_interval": "4h",
                "routes": [
                    {"matchers": ['alertname =~ "CabooseWatchdog|CabooseEndedUnresolved"'], "receiver": "nobody"}
                ],
            },
            "receivers": [receiver, {"name": "nobody"}],
            "inhibit_rules": [inhibition.config() for inhibition in INHIBITIONS],
        }
    )


def _yaml(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
