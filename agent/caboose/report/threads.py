"""Starts the agent's own threads with every signal blocked, so that signals reach the threads they would without it.

Design
------
The kernel gives a signal of the process to any thread that does not block it. A program may block one in all its
threads and wait for it (`signal.sigwait`); a thread of ours that did not block it would take it away. A thread inherits
what the thread that starts it blocks. Errors of the hardware are not blocked: `faulthandler` reports them.
"""

import signal
import threading

FAULTS = {signal.SIGSEGV, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
if hasattr(signal, "SIGBUS"):
    FAULTS |= {signal.SIGBUS}


def start(thread: threading.Thread) -> None:
    """Starts a thread that gets no signals."""
    if not hasattr(signal, "pthread_sigmask"):
        thread.start()
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
