"""Loads `grafana-client`, or says how to install it.

Design
------
It is an extra of its own, `caboose[grafana]`, and never a part of `caboose[daemon]`: its HTTP library, niquests, brings
urllib3-future, which is installed over the files of urllib3. Uninstalling it leaves an environment without urllib3, and
so without requests. Whoever pushes to a Grafana can do that from an environment without a training job in it.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

INSTALL = "pip install 'caboose[grafana]', in an environment of its own: it replaces the files of urllib3"


class GrafanaError(RuntimeError):
    """Grafana failed or refused, or cannot be asked; the message is one line with the way out."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class GrafanaLibrary:
    """What is used of it and of its HTTP library."""

    make_api: Any
    error: type[Exception]
    timeout: type[Exception]
    http: ModuleType
    """`niquests.exceptions`."""


def load_library() -> GrafanaLibrary:
    """The installed library; GrafanaError if there is none."""
    try:
        from grafana_client.api import GrafanaApi
        from grafana_client.client import GrafanaException, GrafanaTimeoutError
        from niquests import exceptions
    except ModuleNotFoundError as error:
        raise GrafanaError(f"{error.name} is missing: {INSTALL}") from None
    return GrafanaLibrary(GrafanaApi, GrafanaException, GrafanaTimeoutError, exceptions)
