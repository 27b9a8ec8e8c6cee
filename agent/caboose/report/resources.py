"""Whether this process can afford a connection: file descriptors, threads and address space.

Design
------
libzmq calls `abort` when it cannot create an epoll instance or start a thread, which ends the training process. So
everything it will need is taken here for a moment, the descriptors, the threads and the memory at once, and given back
before libzmq is touched. Measured with libzmq 4.3.5: 6 descriptors and 2 threads for the context and the first socket,
2 descriptors for its monitor, 2 for the pipe beside it, 1 for the connection, a few for a name lookup. Once the first
socket exists, libzmq treats a lack of descriptors as a failed connection and tries again later. `NUM_DESCRIPTORS`
leaves a margin, because other threads of the run may open files between this check and libzmq.

One check takes less than a millisecond. It is made at attach, on the sender's thread before a connection is opened, and
every `RETRY_SECONDS` after it has failed; never once per step.
"""

import contextlib
import errno
import mmap
import os
import select
import sys
import threading

from caboose.report import threads

NUM_DESCRIPTORS = 20
NUM_THREADS = 2
"""libzmq's; the sender's own comes on top where it does not run yet."""
NUM_BYTES = 32 * 2**20
"""Address space beside the threads' stacks; only a limit on it (`ulimit -v`) can make this scarce."""
RETRY_SECONDS = 30.0
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.ENOBUFS})


def shortage(num_threads: int = NUM_THREADS) -> str:
    """What is missing for a connection and the way out, or nothing."""
    with contextlib.ExitStack() as taken:
        try:
            _take_descriptors(taken)
        except OSError as error:
            return f"it needs {NUM_DESCRIPTORS} free file descriptors ({error.strerror}): raise `ulimit -n`"
        try:
            _take_threads(taken, num_threads)
        except (RuntimeError, MemoryError) as error:
            return f"it needs {num_threads} more threads ({error}): raise `ulimit -u`, or `ulimit -v` if it is set"
        try:
            taken.enter_context(mmap.mmap(-1, NUM_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        except (OSError, MemoryError) as error:
            return f"it needs {NUM_BYTES >> 20} MiB of memory ({error}): raise `ulimit -v`"
    return ""


def is_shortage(error: BaseException) -> bool:
    """Whether something failed because descriptors, threads or memory ran out."""
    if isinstance(error, OSError):
        return error.errno in _SCARCE
    if isinstance(error, ImportError | ValueError):  # the dynamic loader, or an error that quotes another
        return os.strerror(errno.EMFILE) in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "new thread" in str(error))


def _take_descriptors(taken: contextlib.ExitStack) -> None:
    for _ in range(NUM_DESCRIPTORS // 2):
        for descriptor in os.pipe():
            taken.callback(os.close, descriptor)
    if sys.platform == "linux":  # each user has a limit of watches, too
        watched = select.epoll()
        taken.callback(watched.close)
        watched.register(descriptor)


def _take_threads(taken: contextlib.ExitStack, num: int) -> None:
    done = threading.Event()
    started: list[threading.Thread] = []

    def give_back() -> None:
        done.set()
        for thread in started:
            thread.join()

    taken.callback(give_back)
    for _ in range(num):
        thread = threading.Thread(target=done.wait, name="caboose-probe", daemon=True)
        threads.start(thread)
        started.append(thread)
