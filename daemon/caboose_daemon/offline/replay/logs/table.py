"""A file's rows under the file's own names, and how they become a `Log`.

Design
------
Every reader ends in a `Table`; what is common to all formats is here. The best-named column that holds numbers is taken
for each quantity. A cell that is no number is an error in a column the rules read, and makes any other column text,
which is left out, as are columns without a single number.

Loggers write what belongs to one step in several rows: training and validation, or one row a quantity. Neighbouring
rows of one step become one row unless they contradict each other: a loss, a validation loss or a gradient norm in
both, or anything else with two different values. Clocks may differ; the later one is kept. Rows that are not
neighbours are never joined: a step that comes back later belongs to a resumed run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.offline.replay.logs.cells import Cells
from caboose_daemon.offline.replay.logs.log import Column, Log, LogError
from caboose_daemon.offline.replay.logs.names import USED, candidates, is_clock, nearest, of_mirror

MAX_STEP = 2**53
"""Beyond it a float64 no longer distinguishes two steps."""
MAX_SHOWN = 12
"""Columns named in an error."""


@dataclass(slots=True)
class Table:
    """What a file holds."""

    file: str
    num_rows: int
    columns: dict[str, Cells]
    place: Callable[[int], str]
    """Where in the file a row is, for an error."""
    is_validation: NDArray[np.bool_] | None = None
    """Rows that a column of text, such as `split`, marks as validation: their loss is the validation loss."""


def to_log(table: Table) -> Log:
    """The table under the names the rules know, a row per step."""
    if not table.num_rows:
        raise LogError(f"{table.file}: no rows yet; try again when the run has logged its first step")
    if not table.columns:
        raise LogError(f"{table.file}: no columns; a log needs a step and a loss in every row")
    chosen = {wanted: _chosen(table, wanted) for wanted in USED}
    names = {wanted: name for wanted, name in chosen.items() if name is not None}
    if "loss" not in names:
        raise _missing(table, "loss")
    used = [table.columns[name].is_logged for name in names.values()]
    step = _step(table, np.logical_or.reduce(used))
    columns = {wanted: _column(table.columns[name]) for wanted, name in names.items()}
    if table.is_validation is not None and "val_loss" not in columns:
        loss = columns["loss"]
        in_training, in_validation = loss.is_logged & ~table.is_validation, loss.is_logged & table.is_validation
        if in_training.any() and in_validation.any():
            columns["loss"] = Column(loss.values, in_training)
            columns["val_loss"] = Column(loss.values, in_validation)
    taken = {step, *names.values()}
    for name, cells in table.columns.items():
        if name not in taken and name not in columns and cells.text is None and cells.is_logged.any():
            columns[of_mirror(name)] = _column(cells)
    has_step = table.columns[step].is_logged
    steps = table.columns[step].values[has_step].astype(np.int64)
    if not has_step.all():
        columns = {name: Column(c.values[has_step], c.is_logged[has_step]) for name, c in columns.items()}
    return Log(table.file, *merged(steps, columns))


def merged(steps: NDArray[np.int64], columns: Mapping[str, Column]) -> tuple[NDArray[np.int64], dict[str, Column]]:
    """Neighbouring rows of one step as one, where they do not contradict each other."""
    starts = np.ones(len(steps), np.bool_)
    starts[1:] = steps[1:] != steps[:-1]
    if starts.all():
        return steps, dict(columns)
    logged = _bits([column.is_logged for column in columns.values()])
    contrary = _bits([_contradicts(name, column) for name, column in columns.items()])
    held = 0
    for row, is_start in enumerate(starts.tolist()):
        if is_start or contrary[row] & held:
            starts[row] = True
            held = 0
        held |= logged[row]
    target = np.cumsum(starts) - 1
    result = {}
    for name, column in columns.items():
        rows = target[column.is_logged]
        values = np.full(target[-1] + 1, np.nan)
        values[rows] = column.values[column.is_logged]
        is_logged = np.zeros(len(values), np.bool_)
        is_logged[rows] = True
        result[name] = Column(values, is_logged)
    return steps[starts], result


def _contradicts(name: str, column: Column) -> NDArray[np.bool_]:
    """The rows that cannot join one in which the column is logged already."""
    if name in ("loss", "val_loss", "grad_norm"):
        return column.is_logged
    result = np.zeros(len(column.values), np.bool_)
    if not is_clock(name):
        rows = np.flatnonzero(column.is_logged)
        values = column.values[rows]
        result[rows[1:]] = (values[1:] != values[:-1]) & ~(np.isnan(values[1:]) & np.isnan(values[:-1]))
    return result


def _bits(flags: list[NDArray[np.bool_]]) -> list[int]:
    """For each row, the columns' flags as one whole number."""
    packed = np.packbits(np.stack(flags, axis=1), axis=1)
    return [int.from_bytes(row) for row in packed]


def _column(cells: Cells) -> Column:
    return Column(cells.values, cells.is_logged)


def _chosen(table: Table, wanted: str) -> str | None:
    """The file's name for a quantity, if it has it."""
    found = candidates(wanted, table.columns)
    runs = sorted({name.rpartition(" - ")[0] for name in found if " - " in name})
    if len(runs) > 1:
        raise LogError(f"{table.file}: holds several runs ({_listed(runs)}); export one run at a time")
    texts = []
    for name in found:
        cells = table.columns[name]
        if cells.is_logged.any():
            if cells.text is not None:
                raise _not_a_number(table, name, cells.text)
            return name
        if cells.text is not None:
            texts.append((name, cells.text))
    if wanted == "loss" and texts:
        raise _not_a_number(table, *texts[0])
    if wanted == "loss" and found:
        raise LogError(f"{table.file}: column {found[0]!r} is empty in every row; nothing to replay")
    return None


def _step(table: Table, needed: NDArray[np.bool_]) -> str:
    """The column of steps: the first with a whole number wherever something was logged."""
    refused = None
    for name in candidates("step", table.columns):
        cells = table.columns[name]
        refusal = _refusal(table, name, cells, needed)
        if refusal is None:
            return name
        refused = refused or refusal
    raise refused or _missing(table, "step")


def _refusal(table: Table, name: str, cells: Cells, needed: NDArray[np.bool_]) -> LogError | None:
    if cells.text is not None:
        return _not_a_number(table, name, cells.text)
    lacking = np.flatnonzero(needed & ~cells.is_logged)
    if len(lacking):
        where = table.place(int(lacking[0]))
        return LogError(f"{table.file}: {where}: no {name!r}, though a value is logged; every row needs its step")
    with np.errstate(invalid="ignore"):
        is_whole = (np.abs(cells.values) <= MAX_STEP) & (cells.values == np.floor(cells.values))
    odd = np.flatnonzero(cells.is_logged & ~is_whole)
    if len(odd):
        where = table.place(int(odd[0]))
        value = cells.values[odd[0]]
        return LogError(f"{table.file}: {where}: {name} = {value:g}: a step is a whole number up to 2**53; correct it")
    return None


def _not_a_number(table: Table, name: str, text: tuple[int, str]) -> LogError:
    row, found = text
    shown = found if len(found) <= 40 else f"{found[:40]}..."
    where = table.place(row)
    return LogError(f"{table.file}: {where}: {_short(name)} = {shown!r}: not a number; correct or empty the cell")


def _missing(table: Table, wanted: str) -> LogError:
    found = list(table.columns)
    near = nearest(wanted, found[:1000])
    hint = f"rename {_short(near)} to {wanted} if that is it" if near else f"name the column {wanted}"
    if all(_is_number(name) for name in found):
        hint = "the first line must name the columns, such as step,loss"
    elif wanted == "step" and "epoch" in found:
        hint = "an epoch is no step: add a column named step"
    return LogError(f"{table.file}: no {wanted} column; found {_listed(found)}; {hint}")


def _listed(names: list[str]) -> str:
    shown = ", ".join(_short(name) for name in names[:MAX_SHOWN])
    more = len(names) - MAX_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _short(name: str) -> str:
    shown = name if name.isprintable() else repr(name)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
