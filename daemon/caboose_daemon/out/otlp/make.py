"""The OTLP push as configured. Its libraries are imported only then."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from caboose_daemon.config import Config
from caboose_daemon.jobs.state import State
from caboose_daemon.out.export.exports import ExportError

if TYPE_CHECKING:
    from caboose_daemon.out.otlp.push import Otlp

EXTRA = "pip install 'caboose[otel]'"


def make_otlp(config: Config, state: State, clock: Callable[[], float]) -> "Otlp | None":
    """None where nothing is configured; ExportError if it cannot work."""
    if not config.otlp.endpoint:
        return None
    try:
        from caboose_daemon.out.otlp.push import Otlp

        return Otlp(config, state, clock)
    except ImportError as error:
        raise ExportError(f"[otlp] endpoint is set, but {error.name} is not installed: {EXTRA}") from None
    except ValueError as error:
        raise ExportError(f"[otlp] {error}") from None
