"""Requests a resume plan from the daemon, over a short-lived socket. Needs no torch."""

import time

import zmq

from caboose.report import resources
from caboose.report.connection import Connection, CurveKeys, Flooded
from caboose.report.daemon_log import printable
from caboose_wire import Plan, PlanRequest, Refused, WireError, decode, encode

POLL_SECONDS = 0.02


class NoAnswer(Exception):
    """Why there is no plan from the daemon."""


def ask(endpoint: str, curve: CurveKeys | None, request: PlanRequest, timeout_seconds: float) -> Plan:
    """The daemon's answer; NoAnswer if it is absent, too slow, or refuses, or this process cannot ask."""
    short = resources.shortage()
    if short:
        raise NoAnswer(f"the daemon at {endpoint} cannot be asked: {short}")
    deadline = time.monotonic() + timeout_seconds
    with zmq.Context() as context, Connection(context, endpoint, curve) as connection:
        try:
            while not connection.send(encode(request)):  # accepted only once connected: a missing daemon, or a slow one
                if time.monotonic() > deadline:
                    raise NoAnswer(f"no daemon at {endpoint} within {timeout_seconds:g} s")
                connection.wait(POLL_SECONDS)
            while time.monotonic() < deadline:
                answer = _answer(connection, endpoint, request)
                if answer is not None:
                    return answer
                connection.wait(POLL_SECONDS)
        except Flooded as error:
            raise NoAnswer(f"the daemon at {endpoint} gave no plan: {error}") from None
    raise NoAnswer(f"the daemon at {endpoint} gave no plan within {timeout_seconds:g} s")


def _answer(connection: Connection, endpoint: str, request: PlanRequest) -> Plan | None:
    try:
        frames = connection.receive()
        message = None if frames is None else decode(frames)
    except WireError as error:
        raise NoAnswer(f"the daemon at {endpoint} sent something unreadable: {error.reason}") from None
    if isinstance(message, Refused):
        why = printable(f"refused ({message.reason}): {message.detail}")
        raise NoAnswer(f"the daemon at {endpoint} {why}")
    return message if isinstance(message, Plan) and message.job == request.job else None
