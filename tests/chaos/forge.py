"""What only an attacker sends: garbage on both ports, forged messages to the daemon, forged commands to the ranks."""

import contextlib
import random
import socket
import time

import msgspec
import zmq

from caboose_wire import Ack, Bye, Command, Heartbeat, Hello, Holdings, Message, Refused, Terms, encode, sign
from caboose_wire.rollback import CommandKind
from support.ranks import a_hello, a_report
from support.zmtp import frame, raw_dealer

KINDS: tuple[CommandKind, ...] = ("rollback", "stop", "scale_lr", "checkpoint", "snapshot")


def garbage_on_wire(endpoint: str, draw: random.Random) -> None:
    """Bytes that are no ZMTP, no message of ours, or half of one."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with contextlib.suppress(OSError):
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(draw.randbytes(draw.randint(1, 20_000)))
        with raw_dealer(endpoint) as dealer:
            dealer.settimeout(1)
            bodies = [draw.randbytes(draw.choice((0, 1, 2, 60, 5000))) for _ in range(draw.randint(1, 12))]
            if draw.random() < 0.5:
                bodies[0] = bytes((1, draw.choice((1, 2, 3, 4, 5, 6, 7, 8, 65, 200))))
            for body in bodies:
                dealer.sendall(frame(body, has_more=draw.random() < 0.8))
            dealer.sendall(frame(b"", has_more=False))


def garbage_on_http(url: str, draw: random.Random) -> None:
    """Requests that are none, unfinished or too large."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    requests = (
        draw.randbytes(draw.randint(1, 5000)),
        b"GET /metrics HTTP/1.1\r\nhost: x\r\n" + b"a: " + b"b" * 100_000 + b"\r\n\r\n",
        b"POST /api/v1/jobs/chaos/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 999999\r\n\r\n{",
        b"POST /api/v1/config HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 4\r\n\r\n\xff\xfe{[",
        b"GET /api/v1/jobs/"
        + draw.randbytes(60).hex().encode()
        + b"/series?points=nan HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    )
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1) as connection:
        connection.settimeout(0.2)
        connection.sendall(draw.choice(requests))
        connection.recv(1000)


def forged_reports(endpoint: str, hellos: list[Hello], commands: list[Command], draw: random.Random) -> None:
    """Another process that claims to be a rank of the run, and says what would harm it.

    It knows all but the secret of the launch.
    """
    known = hellos[-1] if hellos else a_hello(job="chaos", rank=0, world=2)
    hello = msgspec.structs.replace(
        known,
        incarnation=draw.randbytes(8).hex(),
        pid=draw.randint(2, 9999),
        rank=draw.randint(0, 1),
        host="elsewhere",
        proof=draw.choice(("", draw.randbytes(16).hex())),
    )
    last = commands[-1] if commands else None
    group, number = (last.group, last.number) if last is not None else ("forged", 1)
    step = draw.randint(1, 500)
    claims: list[Message] = [
        hello,
        a_report(step, loss=float("nan"), time=time.time(), arrays={}),
        Ack(command=number, outcome=draw.choice(("done", "failed", "aborted")), detail="forged", step=step),
        Holdings(group=group, last_number=2**50, budget_left=0),
        Heartbeat(step=step),
        Bye(step=step, error="forged"),
    ]
    if draw.random() < 0.5:
        claims.pop(0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 200)
        dealer.connect(endpoint)
        for message in claims:
            dealer.send_multipart(encode(message))
            if draw.random() < 0.3:
                dealer.send_multipart([bytes((1, draw.randint(1, 70))), draw.randbytes(30)])


def forged_commands(commands: list[Command], step: int, draw: random.Random) -> list[list[bytes]]:
    """Messages that no rank may obey: unsigned, signed with another secret, changed, repeated, unreadable."""
    last = commands[-1] if commands else None
    group = last.group if last is not None else "forged"
    number = (last.number if last is not None else 0) + draw.randint(1, 3)
    forged = Command(
        number=number,
        kind=draw.choice(KINDS),
        group=group,
        world=2,
        boundary=step + draw.randint(3, 30),
        target=draw.randint(0, 20),
        lr_scale=draw.choice((0.5, 1.0)),
        expires=time.time() + 1000,
        reason="forged\x1b[2J",
    )
    messages = [
        encode(forged),
        encode(sign(forged, draw.randbytes(32))),
        encode(Terms(rollback="auto")),
        encode(Refused(reason="malformed", detail="forged\x1b[31m")),
        [bytes((1, 65)), draw.randbytes(40)],
        [draw.randbytes(2), b"", b""],
    ]
    if last is not None:
        messages.append(encode(last))
        messages.append(encode(msgspec.structs.replace(last, number=number, boundary=step + 10)))
    draw.shuffle(messages)
    return messages
