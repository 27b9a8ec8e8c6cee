"""CSV: plain, Lightning's metrics.csv, W&B's exports; also with tabs or semicolons.

Design
------
Rows are taken in blocks and each block is turned into arrays before the next is read, so memory is that of the numbers.
Lines are not counted on the way; only an error looks for its line, in a second pass.

A run that is still being written ends in half a line: a last line with too few cells, or whose last cell is not a
number in a column of numbers, is left out. Anywhere else that is an error. A header that comes again, as when a
resumed run appends to its file, is passed over.
"""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.offline.replay.logs.cells import Cells, from_texts, joined, marked
from caboose_daemon.offline.replay.logs.content import encoding, head, opened
from caboose_daemon.offline.replay.logs.log import LogError
from caboose_daemon.offline.replay.logs.names import SPLITS, USED, candidates, is_known
from caboose_daemon.offline.replay.logs.table import Table

if TYPE_CHECKING:
    import _csv

CELLS_PER_BLOCK = 20_000
"""Small enough to stay in the processor's cache: a fifth faster than blocks twenty times as large."""
UNCLOSED = "a quote is opened and not closed on this line; correct the line"


def read_comma_separated(path: Path) -> Table:
    """The table a CSV file holds."""
    with _rows(path) as rows:
        header = next(rows, [])
        names = _names(path, header)
        parts: dict[str, list[Cells]] = {name: [] for name in names}
        split = next((name for name in names if name.lower() in SPLITS), None)
        marks: list[NDArray[np.bool_]] = []
        num_rows = 0
        while block := list(islice(rows, max(64, CELLS_PER_BLOCK // len(names)))):
            block = [row for row in block if row != header]
            if block and {len(names)} != set(map(len, block)):
                _drop_last_or_refuse(path, block, len(names), num_rows, is_last=next(rows, None) is None)
            num_rows += len(block)
            if block:
                _take(parts, names, block)
            if split is not None:
                at = names.index(split)
                marks.append(marked(range(len(block)), [row[at] for row in block], len(block)))
    columns = {name: joined(cells) for name, cells in parts.items() if cells}
    num_rows = _without_half_a_line(path, columns, names[-1], num_rows)
    is_validation = np.concatenate(marks)[:num_rows] if marks else None
    return Table(str(path), num_rows, columns, lambda row: f"line {_line(path, row)[0]}", is_validation)


def _take(parts: dict[str, list[Cells]], names: list[str], block: list[list[str]]) -> None:
    for name, texts in zip(names, zip(*block, strict=True), strict=True):
        if name not in parts:
            continue
        cells = from_texts(texts)
        parts[name].append(cells)
        if cells.text is not None and cells.text[0] < len(texts) - 1 and not is_known(name):
            del parts[name]  # text: nothing will be made of it


def _names(path: Path, header: list[str]) -> list[str]:
    """The header's names, every one once: a name that comes again gets a number, unless the rules would read it."""
    names: list[str] = []
    seen: dict[str, int] = {}
    for place, cell in enumerate(header, 1):
        name = (cell.lstrip("# ") if place == 1 else cell).strip() or f"column {place}"
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            if any(candidates(wanted, [name])[:1] for wanted in ("step", *USED)):
                raise LogError(f"{path}: line 1: two columns are named {name!r}; rename one of them")
            name = f"{name} ({seen[name]})"
            seen[name] = 1
        names.append(name)
    return names


def _drop_last_or_refuse(path: Path, block: list[list[str]], width: int, start: int, is_last: bool) -> None:
    for index, row in enumerate(block):
        if len(row) == width:
            continue
        line, num_lines = _line(path, start + index)
        if is_last and index == len(block) - 1 and len(row) < width and num_lines == 1:
            block.pop()
            return
        if num_lines > 1:
            raise LogError(f"{path}: line {line}: {UNCLOSED}")
        raise LogError(f"{path}: line {line}: {len(row)} cells where the header names {width}; correct the line")


def _without_half_a_line(path: Path, columns: dict[str, Cells], last_name: str, num_rows: int) -> int:
    """The number of rows that stay; only a line's last cell can be cut without being missed."""
    last = num_rows - 1
    cut = columns.get(last_name)
    if cut is None or cut.text is None or cut.text[0] != last or not cut.is_logged.any():
        return num_rows
    line, num_lines = _line(path, last)
    if num_lines > 1:
        raise LogError(f"{path}: line {line}: {UNCLOSED}")
    for name, cells in columns.items():
        text = cells.text if cells.text is not None and cells.text[0] < last else None
        columns[name] = Cells(cells.values[:last], cells.is_logged[:last], text)
    return last


@contextmanager
def _rows(path: Path) -> Iterator[Iterator[list[str]]]:
    with _reader(path) as reader:
        yield filter(None, reader)


@contextmanager
def _reader(path: Path) -> Iterator["_csv.Reader"]:
    start = head(path)
    written = encoding(start)
    line = start.decode(written, errors="replace").lstrip().partition("\n")[0]
    with io.TextIOWrapper(opened(path), encoding=written, errors="replace", newline="") as text:
        yield csv.reader(text, delimiter=max(",\t;", key=line.count))


def _line(path: Path, row: int) -> tuple[int, int]:
    """The line a row of data begins on, and how many lines it takes."""
    with _reader(path) as reader:
        header = next(filter(None, reader), None)
        index = -1
        before = reader.line_num
        for cells in reader:
            index += bool(cells) and cells != header
            if index == row:
                break
            before = reader.line_num
        return before + 1, reader.line_num - before
