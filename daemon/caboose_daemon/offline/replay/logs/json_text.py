"""JSON: Hugging Face's trainer_state.json, lists of rows, columns side by side, and one object a line.

Design
------
msgspec reads what is strict JSON; Python's own reader, several times slower, only what is not, which is mostly the bare
NaN and Infinity that Python writes. A value that is null, or not there, is a gap; "NaN" in quotes is a number. An
object within a row is taken apart: {"train": {"loss": 1}} is train/loss. The last line of a file of lines may be half
written and is then left out.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from caboose_daemon.offline.replay.logs.cells import from_objects, marked
from caboose_daemon.offline.replay.logs.content import MAX_DOCUMENT_BYTES, MAX_JSON_BYTES, as_utf8, opened
from caboose_daemon.offline.replay.logs.log import LogError
from caboose_daemon.offline.replay.logs.names import SPLITS
from caboose_daemon.offline.replay.logs.table import Table

KEYS_OF_ROWS = ("log_history", "rows", "history", "logs", "log", "data")
"""Where an object keeps its list of rows; the first is the Trainer's, the second W&B's."""
MAX_DEPTH = 4
"""Objects within objects that are taken apart; deeper ones are not a log of numbers."""

Found: TypeAlias = dict[str, tuple[list[int], list[object]]]
"""For each column, the rows in which it holds something, and what."""

_decode = msgspec.json.Decoder().decode


def read_json(path: Path) -> Table:
    """The table a JSON file holds, of one document or of one object a line."""
    with opened(path, max_line=MAX_JSON_BYTES, max_bytes=MAX_JSON_BYTES) as file:
        data = as_utf8(file.read())
    first, _, rest = data.strip().partition(b"\n")
    if rest and isinstance(_parsed_or_error(first), dict):
        return _lines(path, data)
    if len(data) > MAX_DOCUMENT_BYTES:
        limit = f"{MAX_DOCUMENT_BYTES >> 20} MiB"
        raise LogError(f"{path}: more than {limit} in one JSON document; write one object a line, or CSV")
    found = _parsed_or_error(data)
    if isinstance(found, ValueError):
        raise LogError(f"{path}: not whole JSON ({found}); if the file is still being written, try again")
    return _document(path, found)


def _parsed_or_error(data: bytes) -> Any:
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    except RecursionError:
        return ValueError("nested too deeply")
    try:
        return json.loads(data)
    except ValueError as error:
        return error
    except RecursionError:
        return ValueError("nested too deeply")


def _lines(path: Path, data: bytes) -> Table:
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line and not line.isspace()]
    return table_of_rows(path, _rows(path, lines), lambda row: f"line {lines[row][0]}")


def _rows(path: Path, lines: list[tuple[int, bytes]]) -> Iterator[dict[str, Any]]:
    """One after the other: all at once would take ten times the file."""
    for index, (number, line) in enumerate(lines):
        row = _parsed_or_error(line)
        if isinstance(row, ValueError):
            if index == len(lines) - 1:
                return
            raise LogError(f"{path}: line {number}: not JSON ({row}); correct or remove the line")
        if not isinstance(row, dict):
            raise LogError(f"{path}: line {number}: not an object; every line must be one, with a step")
        yield row


def _document(path: Path, found: Any) -> Table:
    if isinstance(found, list):
        return table_of_rows(path, _checked(path, "", found), lambda row: f"row {row + 1}")
    if isinstance(found, dict):
        for key in KEYS_OF_ROWS:
            rows = found.get(key)
            if isinstance(rows, list) and (not rows or isinstance(rows[0], dict)):
                return table_of_rows(path, _checked(path, f"{key} ", rows), lambda row: f"{key} row {row + 1}")  # noqa: B023 - returned at once
        lists = {name: _listed(cells) for name, cells in found.items() if isinstance(cells, list | dict)}
        if lists and len(lists) == len(found):
            return _side_by_side(path, lists)
        return table_of_rows(path, [found], lambda row: "row 1")
    raise LogError(f"{path}: JSON, but neither rows nor columns; expected objects with a step and a loss each")


def _checked(path: Path, where: str, rows: list[Any]) -> list[dict[str, Any]]:
    for index, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise LogError(f"{path}: {where}row {index}: not an object; every row must be one, with a step")
    return rows


def _listed(cells: list[Any] | dict[str, Any]) -> list[Any]:
    """A column's cells; pandas writes them as an object, under the row's number."""
    return list(cells.values()) if isinstance(cells, dict) else cells


def _side_by_side(path: Path, lists: Mapping[str, list[Any]]) -> Table:
    lengths = {name: len(cells) for name, cells in lists.items()}
    num_rows = max(lengths.values())
    for name, length in lengths.items():
        if length != num_rows:
            raise LogError(f"{path}: column {name!r} has {length} values, others {num_rows}; fill its gaps with null")
    columns = {}
    for name, cells in lists.items():
        rows = [row for row, cell in enumerate(cells) if cell is not None]
        columns[name] = from_objects(rows, [cells[row] for row in rows], num_rows)
    return Table(str(path), num_rows, columns, lambda row: f"row {row + 1}")


def table_of_rows(path: Path, rows: Iterable[Mapping[str, Any]], place: Callable[[int], str]) -> Table:
    """The table of rows that are objects; `place` names a row in an error."""
    cells: Found = {}
    num_rows = 0
    for row in rows:
        _add(cells, num_rows, row, "", MAX_DEPTH)
        num_rows += 1
    columns = {name: from_objects(*found, num_rows) for name, found in cells.items()}
    split = next((cells[name] for name in SPLITS if name in cells), None)
    return Table(str(path), num_rows, columns, place, marked(*split, num_rows) if split is not None else None)


def _add(cells: Found, index: int, row: Mapping[str, Any], prefix: str, depth: int) -> None:
    for key, value in row.items():
        if value is None:
            continue
        name = prefix + key
        if type(value) is dict:
            if depth:
                _add(cells, index, value, f"{name}/", depth - 1)
            continue
        found = cells.get(name)
        if found is None:
            found = cells[name] = ([], [])
        elif found[0][-1] == index:
            continue  # {"a/b": 1, "a": {"b": 2}}: the first is kept
        found[0].append(index)
        found[1].append(value)
