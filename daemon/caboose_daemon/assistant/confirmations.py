"""What a dry run allowed: each acting tool needs the confirmation that its own dry run gave for these arguments.

Design
------
A confirmation is random, is valid once, for one tool with one request, and for two minutes. So an assistant cannot act
without having read what would happen, and cannot be made to act by text that contains a confirmation.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from caboose_daemon.assistant.budget import compact
from caboose_daemon.assistant.reader import AskError

VALID_SECONDS = 120.0
MAX_WAITING = 64


@dataclass(frozen=True)
class _Allowed:
    request: str
    body: dict[str, Any]
    until: float


class Confirmations:
    """The dry runs that were not carried out yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: OrderedDict[str, _Allowed] = OrderedDict()

    def give(self, request: object, body: dict[str, Any]) -> str:
        """A confirmation for sending this body, if the same request comes with it."""
        while len(self._waiting) >= MAX_WAITING:
            self._waiting.popitem(last=False)
        code = secrets.token_hex(8)
        self._waiting[code] = _Allowed(compact(request), body, self._clock() + VALID_SECONDS)
        return code

    def take(self, code: str, request: object) -> dict[str, Any]:
        """The body that was confirmed; AskError if the confirmation is unknown, too old, or of another request."""
        allowed = self._waiting.pop(code, None)
        if allowed is None:
            raise AskError("this confirmation is unknown or was used: call without confirm for a new dry run")
        if self._clock() > allowed.until:
            raise AskError(f"this confirmation is older than {VALID_SECONDS:g} s: call without confirm for a new one")
        if allowed.request != compact(request):
            raise AskError("this confirmation is for other arguments: call without confirm for a new dry run")
        return allowed.body
