"""Requests a resume plan from the daemon, over a short-lived socket. Needs no torch."""

import time

import zmq

from caboose.report import resources
from caboose.report.daemon_log import printable
from caboose.report.sender import CurveKeys
from caboose_wire import Plan, PlanRequest, Refused, WireError, decode, encode
from caboose_wire.codec import MAX_HEADER_BYTES


class NoAnswer(Exception):
    """Why there is no plan from the daemon."""


def ask(endpoint: str, curve: CurveKeys | None, request: PlanRequest, timeout_seconds: float) -> Plan:
    """The daemon's answer; NoAnswer if it is absent, too slow, or refuses, or this process cannot ask."""
    short = resources.shortage()
    if short:
        raise NoAnswer(f"the daemon at {endpoint} cannot be asked: {short}")
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        # Queued only once connected, so that a missing daemon differs from a slow one.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_HEADER_BYTES)
        if endpoint.startswith("tcp://["):
            socket.setsockopt(zmq.IPV6, 1)
        if curve is not None:
            socket.curve_serverkey = curve.server_public
            socket.curve_secretkey = curve.secret
            socket.curve_publickey = curve.public
        socket.connect(endpoint)
        deadline = time.monotonic() + timeout_seconds
        if not socket.poll(_left_ms(deadline), zmq.POLLOUT):
            raise NoAnswer(f"no daemon at {endpoint} within {timeout_seconds:g} s")
        socket.send_multipart(encode(request))
        while socket.poll(_left_ms(deadline)):
            try:
                message = decode(socket.recv_multipart())
            except WireError as error:
                raise NoAnswer(f"the daemon at {endpoint} sent something unreadable: {error.reason}") from None
            if isinstance(message, Plan) and message.job == request.job:
                return message
            if isinstance(message, Refused):
                why = printable(f"refused ({message.reason}): {message.detail}")
                raise NoAnswer(f"the daemon at {endpoint} {why}")
        raise NoAnswer(f"the daemon at {endpoint} gave no plan within {timeout_seconds:g} s")
    finally:
        socket.close()
        context.term()


def _left_ms(deadline: float) -> int:
    return max(0, int(1000 * (deadline - time.monotonic())))
