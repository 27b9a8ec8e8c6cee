"""What the daemon logs as an error, raised where an example did it."""

import logging


class Wrong(AssertionError):
    """Something that must hold did not."""


class LoggedErrors(logging.Handler):
    """Whatever the daemon logs as an error; where it caught an exception, that is raised."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._records: list[logging.LogRecord] = []
        self._logger = logging.getLogger("caboose.daemon")
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)

    def check(self) -> None:
        if self._records:
            record, self._records = self._records[0], []
            error = record.exc_info[1] if record.exc_info else None
            raise Wrong(record.getMessage()) from error

    def close(self) -> None:
        self._logger.removeHandler(self)
        super().close()
