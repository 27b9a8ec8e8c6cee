"""The Hello: who this rank is, what its model looks like, what can be seen of it and what may be done to it."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from caboose.report.identity import Identity
from caboose.version import __version__
from caboose_wire import Hello
from caboose_wire.fields import Scalar
from caboose_wire.rollback import RollbackMode

if TYPE_CHECKING:
    from caboose.observe.observer import Observer


def introduce(
    identity: Identity,
    observer: "Observer",
    *,
    start_step: int,
    torch_version: str,
    config: Mapping[str, Scalar],
    rollback: RollbackMode,
) -> Hello:
    """How the rank introduces itself at attach."""
    return Hello(
        job=identity.job,
        rank=identity.rank,
        world=identity.world,
        host=identity.host[:256],
        pid=identity.pid,
        incarnation=identity.incarnation,
        launch=identity.launch,
        attempt=identity.attempt,
        agent_version=__version__,
        torch_version=torch_version,
        started=time.time(),
        start_step=start_step,
        layers=observer.table.layers,
        groups=observer.groups,
        modules=observer.modules,
        wrapper=observer.wrapper,
        visible=observer.visible,
        blind=observer.blind,
        config=dict(config),
        facts=observer.facts,
        rollback=rollback,
    )
