"""A connection to a Grafana: its address, its token, and a one-line message for every error.

Design
------
`grafana-client` makes the calls. It does not support sub-paths without a slash, leaks its HTTP library's exceptions and
follows redirects, which turn a write into a read; so every call goes through `call`, which raises `GrafanaError` only.
The token comes from a file or the environment: every user of the machine can read a command line.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from caboose_daemon.out.grafana.library import GrafanaError, load_library
from caboose_daemon.out.outbox import one_line

R = TypeVar("R")
TIMEOUT_SECONDS = 5.0
TOKEN_VARIABLE = "CABOOSE_GRAFANA_TOKEN"  # noqa: S105 - the name of a variable


def read_token(file: str) -> str:
    """The token in this file, or in the environment if no file is named."""
    if file:
        try:
            token = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise GrafanaError(f"Grafana's token: {file}: {getattr(error, 'strerror', None) or error}") from None
        where = file
    else:
        token, where = os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    if not token:
        how = f"put a service account's token into a file and name it (token_file), or set {TOKEN_VARIABLE}"
        raise GrafanaError(f"Grafana's token: {file} is empty" if file else f"no token for Grafana: {how}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise GrafanaError(f"Grafana's token: {where} does not hold a token")
    return token


class GrafanaConnection:
    """A Grafana at an address, with a token."""

    def __init__(self, url: str, token: str, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self.url = check_url(url)
        parts = urlsplit(self.url)
        host = str(parts.hostname)
        self._timeout = timeout
        self._library = load_library()
        self.api = self._library.make_api(
            token,
            protocol=parts.scheme,
            host=f"[{host}]" if ":" in host else host,
            port=parts.port,
            url_path_prefix=f"{parts.path.strip('/')}/".lstrip("/"),
            timeout=timeout,
        )
        self.api.client.s.max_redirects = 0

    def check_version(self) -> str:
        """Checks that Grafana answers and accepts the token; returns its version."""
        try:
            build = self.call("reading its version", self.api.health.check)
        except AttributeError:  # the library raises it for an answer that is no JSON object
            build = None
        if not isinstance(build, dict) or "version" not in build:
            raise GrafanaError(f"{self.url} answers, but not as Grafana does; is the address right, sub-path and all?")
        return str(build["version"])

    def call(self, doing: str, request: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """The answer to a request; GrafanaError without one."""
        library = self._library
        try:
            return request(*arguments, **named)
        except library.timeout:
            raise GrafanaError(f"Grafana at {self.url} did not answer within {self._timeout:g} s, {doing}") from None
        except library.error as error:
            raise GrafanaError(self._explained(doing, error), _status_of(error)) from None
        except library.http.TooManyRedirects:
            raise GrafanaError(f"Grafana at {self.url} redirects elsewhere; give the address it redirects to") from None
        except (library.http.ConnectionError, OSError) as error:
            raise GrafanaError(f"Grafana at {self.url} cannot be reached: {_reason(error)}") from None
        except (library.http.RequestException, ValueError) as error:
            raise GrafanaError(f"{self.url} answers, but not as Grafana does: {one_line(error)}") from None

    def find(self, doing: str, request: Callable[..., R], *arguments: Any) -> R | None:
        """As `call`; None if Grafana answers 404."""
        try:
            return self.call(doing, request, *arguments)
        except GrafanaError as error:
            if error.status == 404:
                return None
            raise

    def close(self) -> None:
        """Closes its sockets."""
        self.api.client.s.close()

    def _explained(self, doing: str, error: Exception) -> str:
        status, message = _status_of(error), _message_of(error)
        where = f"Grafana at {self.url}"
        if status == 401:
            return f"{where} refuses the token (401): create a service account, and put its token into the file"
        if status == 403:
            role = "Admin" if "data source" in doing else "Editor"
            return f"{where} does not allow {doing} (403): the token's service account needs the role {role}{message}"
        if status == 404:
            return f"{where} has no such address (404, {doing}): is the URL right, sub-path and all?"
        if status >= 500:
            return f"{where} failed ({status}, {doing}); see its log, or try again{message}"
        return f"{where} refused ({status}, {doing}){message}"


def check_url(url: str) -> str:
    """The address without a trailing slash; GrafanaError if it is invalid."""
    parts = urlsplit(url)
    try:
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fine = False
    if not is_fine or parts.query or parts.fragment:
        raise GrafanaError(f"{url!r} is not of the form http://host:port/path")
    if parts.username is not None or parts.password is not None:
        raise GrafanaError("Grafana's URL holds a user or a password; leave them out, and use a token")
    return url.rstrip("/")


def _status_of(error: Exception) -> int:
    return int(getattr(error, "status_code", 0) or 0)


def _message_of(error: Exception) -> str:
    answer = getattr(error, "response", None)
    text = answer.get("message", "") if isinstance(answer, dict) else ""
    return f": {' '.join(str(text).split())[:200]}" if text else ""


def _reason(error: BaseException) -> str:
    """The operating system's error at the root of an exception chain."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return one_line(error)
