"""Without code, ranks that the script starts itself are watched: with multiprocessing's `spawn`, and with `fork`.

Design
------
`torch.multiprocessing.spawn` and `Process` of the spawn context start python with a line of code that runs the script's
function. Before that line comes ours, which does what `python -m caboose` does before the script. A child that trains
nothing reports nothing. A forked child has what this process has, as long as it has not attached.

The process that starts such children may train nothing itself: then it does not log that.
"""

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from caboose.attachment import imports, no_code
from caboose.guard import Guard
from caboose.integrations import frameworks, scalars
from caboose.observe.patches import Patches

BEGIN = """\
try:
    from caboose.integrations.children import begin
except ImportError:  # its path is set later
    pass
else:
    begin(is_child=True)
"""

_patches = Patches()
"""They stay until the process ends."""


def begin(*, is_child: bool = False) -> Guard | None:
    """Watches what this process trains from now on, and what its children do; returns its guard. Never raises."""
    guard = no_code.begin(os.environ, is_child=is_child)
    if guard is not None:
        frameworks.begin(guard)
        scalars.begin(guard)
        imports.when_imported("multiprocessing.spawn", _watch_spawning)
    return guard


def _watch_spawning(module: ModuleType) -> None:
    _patches.put(module, "get_command_line", _watching)


def _watching(original: Callable[..., Sequence[str]]) -> Callable[..., list[str]]:
    def get_command_line(**given: Any) -> list[str]:
        command = list(original(**given))
        if "-c" in command[:-1]:
            place = command.index("-c") + 1
            command[place] = BEGIN + command[place]
            no_code.note_children()
        return command

    return get_command_line
