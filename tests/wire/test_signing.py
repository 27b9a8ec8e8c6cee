"""A command is obeyed only with the signature of the job's secret."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from caboose_wire import Command, decode, encode, is_signed, read_secret, sign

SECRET = b"a secret of more than sixteen bytes"
COMMAND = Command(number=3, kind="rollback", group="0123456789abcdef", world=8, boundary=120, target=100)


def test_a_signed_command_is_known_after_it_has_travelled() -> None:
    assert is_signed(decode(encode(sign(COMMAND, SECRET))), SECRET)  # type: ignore[arg-type]  # it is a Command


@pytest.mark.parametrize(
    "change", [{"target": 50}, {"boundary": 121}, {"number": 4}, {"kind": "stop"}, {"lr_scale": 2.0}, {"mac": b""}]
)
def test_a_changed_command_is_not(change: dict[str, Any]) -> None:
    assert not is_signed(msgspec.structs.replace(sign(COMMAND, SECRET), **change), SECRET)


def test_nor_is_one_of_another_secret() -> None:
    assert not is_signed(sign(COMMAND, b"another secret of enough bytes"), SECRET)


def test_a_secret_is_read_without_the_line_end(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    assert read_secret(str(tmp_path / "secret")) == SECRET


def test_a_secret_that_is_not_there_or_too_short_is_named(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(ValueError, match=r"CABOOSE_SECRET_FILE=.*missing.*No such file"):
        read_secret(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match=r"has 3 bytes.*openssl rand"):
        read_secret(str(tmp_path / "short"))
