"""What enters the training process: `caboose.attach(model, optimizer)` and the monitor it returns.

Importing this package needs no torch; attaching does.
"""

from caboose.attaching import attach
from caboose.monitor import Monitor
from caboose.version import __version__

__all__ = ["Monitor", "__version__", "attach"]
