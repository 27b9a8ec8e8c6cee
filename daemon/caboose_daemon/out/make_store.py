"""The writer to PostgreSQL as configured. Its library is imported only then."""

from typing import TYPE_CHECKING

from caboose_daemon.config import StoreConfig
from caboose_daemon.jobs.state import State
from caboose_daemon.out.export.exports import ExportError
from caboose_daemon.store.journal import Journal

if TYPE_CHECKING:
    from caboose_daemon.out.postgres import PostgresWriter

EXTRA = "pip install 'caboose[postgres]'"


def make_store(config: StoreConfig, journal: Journal, state: State) -> "PostgresWriter | None":
    """None where nothing is configured; ExportError if it cannot work."""
    if not config.postgres:
        return None
    try:
        from caboose_daemon.out.postgres import PostgresWriter
        from caboose_daemon.store.postgres import StoreError
    except ImportError as error:
        raise ExportError(f"[store] postgres is set, but {error.name or 'libpq'} is not installed: {EXTRA}") from None
    backlog = journal.backlog()
    try:
        return PostgresWriter(config, backlog, state)
    except StoreError as error:
        backlog.close()
        raise ExportError(f"[store] {error}") from None
