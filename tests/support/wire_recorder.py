"""Records, in one process, which wire fields it sets when it sends and which it reads of what it receives.

Every struct of the wire notes the attributes that are read of it from the agent's or the daemon's own code, and the
codec notes what is sent. The record is written as JSON twice a second and when the process ends.
"""

import atexit
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from caboose_wire import codec, messages, rollback

SAVE_SECONDS = 0.5
USERS = ("caboose.", "caboose_daemon.", "caboose_wire.signing", "caboose_wire.runs")
"""Modules that read messages for what is in them. (`runs` makes the reports that the daemon gets of a run.)"""


def structs() -> set[type[msgspec.Struct]]:
    """Every struct that crosses the wire, also inside of others."""
    values = (value for module in (messages, rollback) for value in vars(module).values())
    return {value for value in values if isinstance(value, type) and issubclass(value, msgspec.Struct)} - {
        msgspec.Struct
    }


class Recorder:
    """What this process has set and read, as `Message.field` or `arrays[name]`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._set: set[str] = set()
        self._read: set[str] = set()
        self._saved = 0.0

    def note_set(self, message: msgspec.Struct) -> None:
        for field in msgspec.structs.fields(message):
            value = getattr(message, field.name)
            if not _is_default(value, field):
                self._set.add(f"{type(message).__name__}.{field.name}")
            for each in _structs_in(value):
                self.note_set(each)
            if field.name == "arrays":
                self._set.update(f"arrays[{array}]" for array in value)

    def note_read(self, field: str) -> None:
        self._read.add(field)

    def save(self, *, is_last: bool = False) -> None:
        if is_last or time.monotonic() - self._saved > SAVE_SECONDS:
            self._saved = time.monotonic()
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps({"set": sorted(self._set), "read": sorted(self._read)}))
            partial.replace(self._path)


class _Arrays(dict[str, Any]):
    """A report's arrays, which note what is read of them."""

    recorder: Recorder

    def __getitem__(self, name: str) -> Any:
        self.recorder.note_read(f"arrays[{name}]")
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.recorder.note_read(f"arrays[{name}]")
        return super().get(name, default)


def install(directory: Path, role: str) -> None:
    """Begins to record into `<role>.<pid>.json`."""
    recorder = Recorder(directory / f"{role}.{os.getpid()}.json")
    _Arrays.recorder = recorder

    class Encoder:
        def __init__(self, real: Any) -> None:
            self._real = real

        def encode(self, message: msgspec.Struct) -> Any:
            header = self._real.encode(message)
            # The rows of a run are sent as they are: what is in them shows when they are read.
            sent = msgspec.msgpack.decode(header, type=messages.StepRun) if _is_run(message) else message
            recorder.note_set(sent)
            recorder.save()
            return header

    class Decoder:
        def __init__(self, real: Any) -> None:
            self._real = real

        def decode(self, header: bytes) -> Any:
            recorder.save()
            return _with_noting_arrays(self._real.decode(header))

    codec._encoder = Encoder(codec._encoder)  # type: ignore[assignment]
    codec._decoders.update({code: Decoder(real) for code, real in codec._decoders.items()})  # type: ignore[misc]
    for struct in structs():
        struct.__getattribute__ = _noting(struct, recorder)  # type: ignore[method-assign,assignment]
    atexit.register(recorder.save, is_last=True)


def _is_run(message: msgspec.Struct) -> bool:
    return isinstance(message, messages.StepRun)


def _with_noting_arrays(message: Any) -> Any:
    if hasattr(message, "arrays"):
        return msgspec.structs.replace(message, arrays=_Arrays(message.arrays))
    if hasattr(message, "reports"):
        return msgspec.structs.replace(message, reports=tuple(map(_with_noting_arrays, message.reports)))
    return message


def _noting(struct: type[msgspec.Struct], recorder: Recorder) -> Any:
    names = frozenset(struct.__struct_fields__)

    def read(self: Any, name: str) -> Any:
        if name in names and _is_own_code():
            recorder.note_read(f"{struct.__name__}.{name}")
        return object.__getattribute__(self, name)

    return read


def _is_own_code() -> bool:
    """Whether an attribute is read by what uses messages, and not by what encodes them or by this recorder."""
    module = sys._getframe(2).f_globals.get("__name__", "")
    return str(module).startswith(USERS)


def _is_default(value: Any, field: Any) -> bool:
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return default is not msgspec.NODEFAULT and type(value) is type(default) and repr(value) == repr(default)


def _structs_in(value: Any) -> Iterator[msgspec.Struct]:
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, msgspec.Struct):
            yield each
