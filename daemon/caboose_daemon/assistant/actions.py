"""The tools that act, all in two calls: a dry run that gives a confirmation, then the same call with it.

Design
------
A rollback, a learning rate change and a checkpoint are dry runs of the daemon itself: it checks what it would check,
and sends nothing. The second call goes through the same checks, the ranks' budget and their cool-down, with the
daemon's own token. The confirmed rollback names the snapshot that the dry run found, so that what happens is what was
shown. The daemon has no dry run of a note or an acknowledgement: here it shows what would be recorded.
"""

from collections.abc import Callable
from typing import Any

from typing_extensions import TypedDict

from caboose_daemon.assistant.confirmations import VALID_SECONDS, Confirmations
from caboose_daemon.assistant.reader import AskError, DaemonError, Json, Reader
from caboose_daemon.assistant.rollback_answers import Decision, decision
from caboose_daemon.assistant.untrusted import FromJob, clean, from_job
from caboose_daemon.out.api.client import Client, ClientError, job_path

MAX_TEXT = 500
KINDS = ("note", "fix")
"""Not the kinds that rules know (data_switch, ...): those change what is expected of the run, and silence rules."""


class Action(TypedDict):
    """What would be done, or was done. `confirm` carries it out, if it is passed with the same arguments in time."""

    is_done: bool
    what: FromJob
    decision: Decision | None
    confirm: str | None
    valid_seconds: float | None
    next: str


class Actions:
    """Sends requests with the daemon's token, each after its dry run."""

    def __init__(self, client: Client, token: str, by: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._reader = Reader(client)
        self._token = token
        self._by = clean(f"assistant of {by}", 64)
        self._confirmations = Confirmations(clock)

    def note(self, job: str, text: str, kind: str, confirm: str) -> Action:
        if not 1 <= len(text.strip()) <= MAX_TEXT or kind not in KINDS:
            raise AskError(f"a note has 1 to {MAX_TEXT} characters, and its kind is one of {', '.join(KINDS)}")
        self._reader.of_job(job)
        body = {"kind": kind, "fields": {"text": clean(text, MAX_TEXT), "by": self._by}}
        return self._recorded(["note", job, text, kind], job, "/events", body, confirm)

    def acknowledge(self, job: str, number: int, reason: str, confirm: str) -> Action:
        if not 1 <= len(reason.strip()) <= MAX_TEXT:
            raise AskError(f"a reason has 1 to {MAX_TEXT} characters: the next reader needs to know why")
        found = self._reader.incident(job, number)
        if not (found["is_open"] or found["state"] == "unresolved"):
            raise AskError(f"incident {number} is {found['state']}: there is nothing to acknowledge")
        body = {"reason": clean(reason, MAX_TEXT), "by": self._by}
        return self._recorded(["ack", job, number, reason], job, f"/incidents/{number}/ack", body, confirm)

    def scale_lr(self, job: str, scale: float, confirm: str) -> Action:
        return self._commanded(job, "/commands", {"kind": "scale_lr", "lr_scale": scale}, confirm)

    def checkpoint(self, job: str, confirm: str) -> Action:
        return self._commanded(job, "/commands", {"kind": "checkpoint"}, confirm)

    def rollback(self, job: str, to: int | None, skip: int, scale: float, confirm: str) -> Action:
        return self._commanded(job, "/rollback", {"to": to, "skip": skip, "lr_scale": scale}, confirm)

    def _recorded(self, request: list[Any], job: str, tail: str, body: Json, confirm: str) -> Action:
        """A note or an acknowledgement."""
        what = ", ".join(f"{name}: {value}" for name, value in {**body, **body.get("fields", {})}.items())
        if not confirm:
            return _shown(what, None, self._confirmations.give(request, body))
        self._post(job, tail, self._confirmations.take(confirm, request))
        return _done(what, None)

    def _commanded(self, job: str, tail: str, body: Json, confirm: str) -> Action:
        """A command to the ranks."""
        request = [job, tail, body]
        if confirm:
            allowed = self._confirmations.take(confirm, request)
            sent = self._post(job, tail, {**allowed, "by": self._by, "dry_run": False})
            return _done(sent["summary"], decision(sent))
        planned = self._post(job, tail, {**body, "by": self._by, "dry_run": True})
        exact = {**body, "to": planned["target"]} if tail == "/rollback" else body
        return _shown(planned["summary"], decision(planned), self._confirmations.give(request, exact))

    def _post(self, job: str, tail: str, body: Json) -> Json:
        try:
            status, answer = self._client.post(job_path(job, tail), body, self._token)
        except ClientError as error:
            raise DaemonError(clean(error, MAX_TEXT)) from None
        if status >= 400:
            raise DaemonError(clean(f"refused: {answer.get('error', status)}", MAX_TEXT))
        done: Json = answer
        return done


def _shown(what: str, planned: Decision | None, confirm: str) -> Action:
    return {
        "is_done": False,
        "what": from_job(what, MAX_TEXT),
        "decision": planned,
        "confirm": confirm,
        "valid_seconds": VALID_SECONDS,
        "next": "Nothing was done. Show this to the user; once they agree, call again with confirm.",
    }


def _done(what: str, sent: Decision | None) -> Action:
    later = "The ranks decide at the boundary step; the tool rollbacks has the outcome." if sent is not None else ""
    return {
        "is_done": True,
        "what": from_job(what, MAX_TEXT),
        "decision": sent,
        "confirm": None,
        "valid_seconds": None,
        "next": later,
    }
