"""A daemon core whose results go to mirrors, as in a daemon that has some."""

from collections.abc import Callable

from caboose_daemon.out.export.exports import Exports
from support.recorder import Core
from support.scenario import Both


class MirroredCore(Core):
    """A core whose results also go to exports, as in a daemon."""

    def __init__(self, exports: Exports) -> None:
        super().__init__()
        self.join(Both(self.sink, Quiet(exports)))


class Quiet:
    """Exports as a sink: what they do not care for is nothing."""

    def __init__(self, exports: Exports) -> None:
        self._exports = exports

    def __getattr__(self, name: str) -> Callable[..., None]:
        return getattr(self._exports, name, lambda *arguments: None)
