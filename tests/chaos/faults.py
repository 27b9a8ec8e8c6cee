"""The faults: each is a context manager, active within its block. `FAULTS` has them in the order of the schedule."""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from chaos import clock, forge
from chaos.daemon import address_space, limited, num_descriptors
from chaos.stage import Stage

Fault = Callable[[Stage], AbstractContextManager[None]]


# The daemon


@contextlib.contextmanager
def daemon_killed(stage: Stage) -> Iterator[None]:
    stage.daemon.kill()
    yield
    stage.daemon.start()


@contextlib.contextmanager
def daemon_restarted(stage: Stage) -> Iterator[None]:
    stage.daemon.end()
    stage.daemon.start()
    yield


@contextlib.contextmanager
def daemon_stopped(stage: Stage) -> Iterator[None]:
    with stage.daemon.stopped():
        yield


@contextlib.contextmanager
def daemon_descriptors(stage: Stage) -> Iterator[None]:
    """It can open nothing, while the ranks connect anew."""
    with stage.daemon.limited(resource.RLIMIT_NOFILE, num_descriptors(stage.daemon.pid) + stage.draw.randint(0, 2)):
        stage.proxy.cut(is_reset=False)
        stage.proxy.mend()
        yield


@contextlib.contextmanager
def daemon_memory(stage: Stage) -> Iterator[None]:
    """It gets no more address space, while somebody makes it allocate."""
    soft = address_space(stage.daemon.pid) + stage.draw.randint(0, 4) * 2**20
    endpoint = stage.daemon.process.endpoint
    with (
        stage.daemon.limited(resource.RLIMIT_AS, soft),
        stage.repeated(lambda: forge.garbage_on_wire(endpoint, stage.draw)),
    ):
        yield


@contextlib.contextmanager
def daemon_disk(stage: Stage) -> Iterator[None]:
    """Its disk is full; where none can be mounted, no file may grow."""
    data = stage.daemon.process.data_dir
    if not stage.daemon.is_mounted:
        sizes = [path.stat().st_size for path in data.iterdir()]
        with stage.daemon.limited(resource.RLIMIT_FSIZE, max(sizes, default=0)):
            yield
        return
    filling = data / "filling"
    with filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filling.unlink()


@contextlib.contextmanager
def daemon_clock(stage: Stage) -> Iterator[None]:
    """Its clock jumps, and it is restarted with the wrong one."""
    stage.daemon.move_clock(stage.draw.choice((-86_400.0, -3600.0, -40.0, 40.0, 3600.0, 86_400.0)))
    stage.daemon.kill()
    stage.daemon.start()
    yield
    stage.daemon.move_clock(0.0)


# The ranks


@contextlib.contextmanager
def rank_killed(stage: Stage) -> Iterator[None]:
    """torchrun restarts the ranks; the fault is over when they train again."""
    restart = stage.kill_rank()
    yield
    stage.wait_until(lambda: stage.ranks.step(restart) >= 5, 30)


@contextlib.contextmanager
def rank_stopped(stage: Stage) -> Iterator[None]:
    pid = stage.victim.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def rank_descriptors(stage: Stage) -> Iterator[None]:
    """It can open nothing, while its connection is lost."""
    pid = stage.victim.pid
    with limited(pid, resource.RLIMIT_NOFILE, num_descriptors(pid) + stage.draw.randint(0, 3)):
        stage.proxy.cut(is_reset=True)
        stage.proxy.mend()
        yield


@contextlib.contextmanager
def rank_threads(stage: Stage) -> Iterator[None]:
    """It can start no thread, while its connection is lost; in `advise` also when it attached."""
    stage.starved.touch()
    stage.proxy.cut(is_reset=True)
    stage.proxy.mend()
    yield
    stage.starved.unlink()


@contextlib.contextmanager
def rank_clock(stage: Stage) -> Iterator[None]:
    """The clock of all ranks jumps."""
    clock.move(stage.rank_clock, stage.draw.choice((-86_400.0, -3600.0, -40.0, 3.0, 20.0)))
    yield
    clock.move(stage.rank_clock, 0.0)


# The network


@contextlib.contextmanager
def network_cut(stage: Stage) -> Iterator[None]:
    stage.proxy.cut(is_reset=stage.draw.random() < 0.5)
    yield
    stage.proxy.mend()


@contextlib.contextmanager
def network_stalled(stage: Stage) -> Iterator[None]:
    stage.proxy.stall()
    yield
    stage.proxy.flow()


@contextlib.contextmanager
def network_lossy(stage: Stage) -> Iterator[None]:
    stage.proxy.loss = 0.3
    yield
    stage.proxy.loss = 0.0


# Hostile peers


@contextlib.contextmanager
def garbage_wire(stage: Stage) -> Iterator[None]:
    endpoint = stage.daemon.process.endpoint
    with stage.repeated(lambda: forge.garbage_on_wire(endpoint, stage.draw)):
        yield


@contextlib.contextmanager
def garbage_http(stage: Stage) -> Iterator[None]:
    url = stage.daemon.process.url
    with stage.repeated(lambda: forge.garbage_on_http(url, stage.draw)):
        yield


@contextlib.contextmanager
def forged_reports(stage: Stage) -> Iterator[None]:
    endpoint = stage.daemon.process.endpoint

    def send() -> None:
        forge.forged_reports(endpoint, stage.proxy.hellos(), stage.proxy.commands(), stage.draw)

    with stage.repeated(send):
        yield


@contextlib.contextmanager
def forged_commands(stage: Stage) -> Iterator[None]:
    """Whoever is between daemon and ranks adds commands of his own, and at the end bytes that are no message."""

    def send() -> None:
        for frames in forge.forged_commands(stage.proxy.commands(), stage.ranks.most(), stage.draw):
            stage.proxy.insert(frames)

    with stage.repeated(send):
        yield
    if stage.draw.random() < 0.5:
        stage.proxy.insert_raw(stage.draw.randbytes(300))


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        daemon_killed,
        daemon_stopped,
        daemon_restarted,
        daemon_descriptors,
        daemon_memory,
        daemon_disk,
        daemon_clock,
        rank_killed,
        rank_stopped,
        rank_descriptors,
        rank_threads,
        rank_clock,
        network_cut,
        network_stalled,
        network_lossy,
        garbage_wire,
        garbage_http,
        forged_reports,
        forged_commands,
    )
}
