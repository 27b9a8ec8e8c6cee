"""Checks the report socket with a real message, and the keys that an agent would use.

The daemon answers a `PlanRequest` for a job that does not exist, and it changes nothing.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zmq
import zmq.auth

from caboose_daemon.ops.doctor.check import DoctorCheck
from caboose_wire import Plan, PlanRequest, WireError, decode, encode
from caboose_wire.curve_keys import KEY_LENGTH
from caboose_wire.endpoints import split_endpoint, split_tcp

ANSWER_SECONDS = 2.0
NAME = "reports"
NEW_KEYS = "`caboose keys new DIR` prints both; start the daemon with --keys DIR"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that an agent needs for a daemon with --keys."""

    server: str
    agent: str


def check_keys(environment: Mapping[str, str], directory: str) -> tuple[DoctorCheck, Keys | None]:
    """The keys of an agent started here, or those in the daemon's directory."""
    server, agent = environment.get("CABOOSE_SERVER_KEY", ""), environment.get("CABOOSE_AGENT_KEY", "")
    try:
        ours = _from(Path(directory).expanduser()) if directory else None
    except (OSError, ValueError) as error:
        text = f"{directory}: {getattr(error, 'strerror', None) or error}"
        return DoctorCheck("keys", "cross", text, f"make keys with `caboose keys new {directory}`"), None
    if not server and not agent:
        text = f"in {directory}" if ours else "none set: reports from this machine only, not encrypted"
        return DoctorCheck("keys", "ok", text), ours
    for name, key in (("CABOOSE_SERVER_KEY", server), ("CABOOSE_AGENT_KEY", agent)):
        if len(key) != KEY_LENGTH:
            text = f"{name} has {len(key)} characters, a key has {KEY_LENGTH}" if key else f"{name} is not set"
            return DoctorCheck("keys", "cross", text, NEW_KEYS), None
    if ours is not None and ours.server != server:
        text = f"CABOOSE_SERVER_KEY is not the key of the daemon in {directory}"
        return DoctorCheck("keys", "cross", text, f"set it to the public-key in {directory}/daemon.key"), Keys(
            server, agent
        )
    return DoctorCheck("keys", "ok", "both set in the environment"), Keys(server, agent)


def _from(directory: Path) -> Keys:
    public, _ = zmq.auth.load_certificate(directory / "daemon.key")
    _, secret = zmq.auth.load_certificate(directory / "agents" / "agent.key_secret")
    if secret is None:
        raise ValueError("holds no secret key of an agent")
    return Keys(public.decode(), secret.decode())


def check_reports(endpoint: str, keys: Keys | None) -> DoctorCheck:
    """Sends a message to the report socket, as an agent would."""
    try:
        _connect(endpoint)
    except ValueError as error:
        return DoctorCheck(
            NAME, "cross", str(error), "set CABOOSE_ENDPOINT to what `caboose daemon` prints as `reports`"
        )
    except OSError as error:
        text = f"no connection to {endpoint}: {error.strerror or error}"
        return DoctorCheck(NAME, "cross", text, "set CABOOSE_ENDPOINT (or --endpoint) to what `caboose daemon` prints")
    try:
        is_heard = _is_answered(endpoint, keys)
    except (zmq.ZMQError, ValueError) as error:
        return DoctorCheck(NAME, "cross", f"the keys cannot be used: {error}", NEW_KEYS)
    if is_heard:
        return DoctorCheck(NAME, "ok", f"{endpoint} answers")
    wrong = "the keys are not the daemon's" if keys else "it needs keys, and none are set"
    fix = "set CABOOSE_SERVER_KEY and CABOOSE_AGENT_KEY as `caboose keys new` printed them"
    return DoctorCheck(NAME, "cross", f"{endpoint} does not answer: {wrong}, or it is not a daemon", fix)


def _connect(endpoint: str) -> None:
    """Raises OSError where nothing listens, ValueError where that is no endpoint."""
    scheme, rest = split_endpoint(endpoint)
    if scheme == "ipc":
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(rest)
        return
    host, port = split_tcp(endpoint)
    with socket.create_connection((host.strip("[]"), port), timeout=ANSWER_SECONDS):
        pass


def _is_answered(endpoint: str, keys: Keys | None) -> bool:
    context = zmq.Context()
    try:
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            if keys is not None:
                dealer.curve_serverkey = keys.server.encode()
                dealer.curve_secretkey = keys.agent.encode()
                dealer.curve_publickey = zmq.curve_public(keys.agent.encode())
            dealer.connect(endpoint)
            dealer.send_multipart(encode(PlanRequest(job="caboose-doctor")))
            if not dealer.poll(int(ANSWER_SECONDS * 1000)):
                return False
            return isinstance(decode(dealer.recv_multipart()), Plan)
    except WireError:
        return False
    finally:
        context.term()
