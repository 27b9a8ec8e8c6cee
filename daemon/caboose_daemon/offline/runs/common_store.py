"""The history that several daemons wrote into one PostgreSQL.

A job's name may be in use at several daemons: such jobs are named JOB@DAEMON here, and their incidents after them.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from caboose_daemon.config import StoreConfig
from caboose_daemon.offline.runs.run import Json, RunError
from caboose_daemon.out.make_store import EXTRA

if TYPE_CHECKING:
    from caboose_daemon.store.postgres import StoreReader

T = TypeVar("T")
DIGITS = 6
"""Of a journal's identity, where a daemon has had several with a job of one name."""


class CommonStore:
    """The database of `[store]`; RunError where it does not answer."""

    def __init__(self, config: StoreConfig) -> None:
        if not config.postgres:
            raise RunError("[store] postgres is not set in the configuration: there is no common database to read")
        self.name = "the database of [store]"
        self._reader: StoreReader = self._asked(lambda: _reader(config))
        rows = self._asked(self._reader.jobs)
        jobs = Counter(row["job"] for row in rows)
        places = Counter((row["job"], row["daemon"]) for row in rows)
        self._keys: dict[str, tuple[str, str]] = {}
        for row in rows:
            job, daemon = row["job"], row["daemon"]
            shown = job if jobs[job] == 1 else f"{job}@{daemon}"
            if places[job, daemon] > 1:
                shown = f"{shown}#{row['journal'][:DIGITS]}"
            self._keys[shown] = (row["journal"], job)

    def jobs(self) -> list[Json]:
        return [{"job": name} for name in self._keys]

    def incidents(self, job: str) -> list[Json]:
        rows = self._asked(lambda: self._reader.incidents(*self._key(job)))
        return [{**row, "id": f"{job}/{row['number']}"} for row in rows]

    def decisions(self, job: str) -> list[Json]:
        return self._asked(lambda: self._reader.decisions(*self._key(job)))

    def events(self, job: str) -> list[Json]:
        return self._asked(lambda: self._reader.notes(*self._key(job)))

    def close(self) -> None:
        self._reader.close()

    def _key(self, job: str) -> tuple[str, str]:
        if job not in self._keys:
            raise RunError(f"{self.name}: no job {job!r}")
        return self._keys[job]

    def _asked(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except RuntimeError as error:  # StoreError, which is known only where the extra is installed
            raise RunError(f"{self.name}: {error}") from None


def _reader(config: StoreConfig) -> "StoreReader":
    try:
        from caboose_daemon.store.postgres import StoreReader
    except ImportError as error:
        raise RunError(f"[store] postgres is set, but {error.name or 'libpq'} is not installed: {EXTRA}") from None
    return StoreReader(config.postgres, config.password_file)
