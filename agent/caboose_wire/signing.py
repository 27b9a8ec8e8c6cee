"""Signs commands, so that only a holder of the job's secret can command its ranks.

Design
------
HMAC-SHA256 over the encoded command, with an empty signature field. Encoding a struct is deterministic, so both sides
sign the same bytes. The secret is a file that the daemon and the ranks can read (`CABOOSE_SECRET_FILE`); on one machine
it is made without configuration (see `private_files`).
"""

import hmac
from pathlib import Path

import msgspec

from caboose_wire.rollback import Command

MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 4096


def sign(command: Command, secret: bytes) -> Command:
    """The command with its signature."""
    return msgspec.structs.replace(command, mac=_mac(command, secret))


def is_signed(command: Command, secret: bytes) -> bool:
    """Whether the signature matches this secret."""
    return hmac.compare_digest(command.mac, _mac(command, secret))


def read_secret(path: str) -> bytes:
    """The secret in a file; ValueError if missing or of invalid length."""
    try:
        secret = Path(path).expanduser().read_bytes().strip()
    except OSError as error:
        raise ValueError(f"CABOOSE_SECRET_FILE={path!r}: {error.strerror or error}") from None
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise ValueError(
            f"CABOOSE_SECRET_FILE={path!r} has {len(secret)} bytes; use {MIN_SECRET_BYTES} to "
            f"{MAX_SECRET_BYTES}: make one with `openssl rand -hex 32 > {path}`"
        )
    return secret


def _mac(command: Command, secret: bytes) -> bytes:
    unsigned = msgspec.structs.replace(command, mac=b"")
    return hmac.digest(secret, msgspec.msgpack.encode(unsigned), "sha256")
