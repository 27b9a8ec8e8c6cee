"""Recognises the format of a file and reads it.

Design
------
The content decides, since people rename files; the name is asked only where the content leaves it open. A file is read
once for its first 64 KiB and again by its reader, so it has to be one that can be read twice: pipes are refused.
"""

import csv
import zlib
from dataclasses import replace
from pathlib import Path

from caboose_daemon.offline.replay.logs.comma_separated import read_comma_separated
from caboose_daemon.offline.replay.logs.content import encoding, head
from caboose_daemon.offline.replay.logs.event_files import NAME, is_event_file, read_event_files
from caboose_daemon.offline.replay.logs.journal_file import MAGIC, read_journal
from caboose_daemon.offline.replay.logs.journal_file import NAME as JOURNAL
from caboose_daemon.offline.replay.logs.json_text import read_json
from caboose_daemon.offline.replay.logs.log import Log, LogError
from caboose_daemon.offline.replay.logs.mlflow_files import META, is_mlflow_run, read_mlflow_run
from caboose_daemon.offline.replay.logs.sidecar import settings_beside
from caboose_daemon.offline.replay.logs.table import Table, to_log
from caboose_daemon.offline.replay.logs.tracker_databases import MLFLOW_DB, tables_of
from caboose_daemon.offline.replay.logs.wandb_file import MAGIC as MAGIC_OF_WANDB
from caboose_daemon.offline.replay.logs.wandb_file import SUFFIX, read_wandb

IN_DIRECTORIES = ("trainer_state.json", "metrics.csv")
"""Logs that trainers write beside their checkpoints, looked for where a directory has no event files."""
FORMATS = "CSV, JSON, JSONL, trainer_state.json, TensorBoard event files, or a run of W&B, MLflow or Trackio"
OF_RUN = ":"
"""Between a tracker's file, which may have several runs, and the name of one."""


def read_log(path: Path) -> Log:
    """The log that a file, or the directory of a run, holds; LogError if it holds none, or several."""
    if "\0" in str(path):
        raise LogError(f"{path}: no file can have this name")
    try:
        file, tables = _tables(path)
        if len(tables) > 1:
            shown = ", ".join(f"{file}{OF_RUN}{name}" for name in list(tables)[:3])
            raise LogError(f"{path}: holds several runs; name one: {shown}{' ...' if len(tables) > 3 else ''}")
        return replace(to_log(next(iter(tables.values()))), settings=settings_beside(path))
    except OSError as error:  # also what gzip raises
        raise LogError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise LogError(f"{path}: damaged or unfinished gzip ({error}); unpack what is there with gzip -dc") from None
    except csv.Error as error:
        raise LogError(f"{path}: not CSV ({error}); expected {FORMATS}") from None


def read_logs(path: Path) -> list[Log]:
    """The log of a file; of a journal of Caboose's own, that of each job in it."""
    journal = path / JOURNAL if path.is_dir() and (path / JOURNAL).is_file() else path
    try:
        is_journal = journal.is_file() and _starts_as_journal(journal)
    except (OSError, ValueError):
        is_journal = False  # `read_log` raises what is wrong with it
    if is_journal and (tables := _of_tracker(journal)) is not None:
        return [replace(to_log(table), file=f"{journal}{OF_RUN}{name}") for name, table in tables.items()]
    return read_journal(journal) if is_journal else [read_log(path)]


def _tables(path: Path) -> tuple[Path, dict[str, Table]]:
    """The file, and its tables by the names of their runs; of `FILE:RUN`, that of the run."""
    file, _, run = str(path).rpartition(OF_RUN)
    if run and not path.exists() and _starts_as_journal(Path(file)):
        known = _of_tracker(Path(file)) or {}
        if run not in known:
            raise LogError(f"{file}: no run {run!r}; it has {', '.join(list(known)[:8]) or 'none'}")
        return Path(file), {run: known[run]}
    for name in (path, path / MLFLOW_DB):
        if name.is_file() and _starts_as_journal(name) and (found := _of_tracker(name)) is not None:
            return name, found
    return path, {"": _in_directory(path) if path.is_dir() else _in_file(path)}


def _of_tracker(path: Path) -> dict[str, Table] | None:
    found = tables_of(path)
    if found is not None and not found:
        raise LogError(f"{path}: a tracker's file without values yet; try again when a run has logged its first step")
    return found


def _starts_as_journal(path: Path) -> bool:
    """Whether it is a database of SQLite."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _in_directory(path: Path) -> Table:
    files = sorted(file for file in path.iterdir() if NAME in file.name and file.is_file())
    if files:
        return read_event_files(path, files)
    if is_mlflow_run(path):
        return read_mlflow_run(path)
    of_wandb = sorted(path.glob(f"*{SUFFIX}"))
    if len(of_wandb) == 1:
        return read_wandb(of_wandb[0])
    for name in IN_DIRECTORIES:
        if (path / name).is_file():
            return _in_file(path / name)
    below = sorted({str(file.parent) for file in path.rglob(f"*{NAME}*") if file.is_file()})
    below += sorted({str(file.parent) for file in path.rglob(f"*{SUFFIX}") if file.is_file()})
    below += sorted({str(file.parent) for file in path.rglob(META) if is_mlflow_run(file.parent)})
    if len(below) == 1:
        return _in_directory(Path(below[0]))
    if below:
        more = f" and {len(below) - 3} more" if len(below) > 3 else ""
        raise LogError(f"{path}: holds several runs; name one of {', '.join(below[:3])}{more}")
    raise LogError(f"{path}: a directory without event files, {' or '.join(IN_DIRECTORIES)}; name the log itself")


def _in_file(path: Path) -> Table:
    if path.exists() and not path.is_file():
        raise LogError(f"{path}: not a regular file; save the log to a file first")
    start = head(path)
    if not start:
        raise LogError(f"{path}: empty; try again when the run has logged its first step")
    if is_event_file(start):
        return read_event_files(path, [path])
    if start.startswith(MAGIC_OF_WANDB):
        return read_wandb(path)
    text = start.decode(encoding(start), errors="replace").lstrip("\ufeff \t\r\n")
    if not text:
        raise LogError(f"{path}: nothing but blank lines; try again when the run has logged its first step")
    if _is_binary(text):
        if NAME in path.name:
            return read_event_files(path, [path])
        raise LogError(f"{path}: neither text nor an event file; expected {FORMATS}")
    if text[0] in "{[":
        return read_json(path)
    return read_comma_separated(path)


def _is_binary(text: str) -> bool:
    start = text[:4096]
    num_strange = sum(char == "\ufffd" or (not char.isprintable() and not char.isspace()) for char in start)
    return "\0" in start or num_strange > len(start) / 10
