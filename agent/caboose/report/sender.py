"""The thread that owns the connection: encodes and sends what the training thread queued, receives, and heartbeats.

Design
------
The training thread only appends to a deque; it never touches the socket, a lock or an event. This thread wakes every
`POLL_SECONDS`, so several steps are sent at once (waking up costs more than a report, and each wake takes the
interpreter from the training thread) and an idle one costs almost nothing. Where steps are short, or may be again
after a pause, it wakes every `SHORT_POLL_SECONDS`, and several reports travel in one message (`batching`); a loss
that is not finite or far out of range, an event, and the report of a step that took longer than its pause, wake it at
once. While the daemon has an incident of this run open it wakes every `ALERT_SECONDS`: what the daemon decides
depends on the newest step, and its command has to arrive before the boundary that it names.

Bounds: the deque holds at most `max_queued` reports, and `MAX_QUEUED_ROWS` of the small rows of thin steps; when it
is full the oldest is dropped and counted. The connection holds few, so that drops are decided here, and the last
messages at `close` get a fraction of a second. A daemon that floods it is left alone for `REFUSED_SECONDS` (see
`connection`).

Thin steps are not queued one by one: their run is, once, and grows until it is over. What would wake the thread at a
report (`loss_limit`, a long pause) interrupts the run, whose next step then is a report.

A daemon that does not know this rank (it was restarted) asks for a Hello; ours is encoded once and sent again on
request. A refusal by the daemon is logged once, and tried again a minute later. Terms and commands are passed to
`on_message`, which must not block.

libzmq is touched only when this process has the descriptors, threads and memory for it (see `resources`). If it has
not, and after any error, the thread waits and tries again; the newest reports are kept meanwhile.
"""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import zmq

from caboose.report import resources, threads
from caboose.report.batching import Outbox, Outgoing, Queue
from caboose.report.connection import Connection, CurveKeys, Flooded, Waker
from caboose.report.daemon_log import daemon_log
from caboose.report.run_summary import RunTotals
from caboose.report.thin_run import MAX_ROWS, ThinRun
from caboose_wire import (
    Bye,
    Command,
    Heartbeat,
    Hello,
    HelloRequest,
    Message,
    Refused,
    Terms,
    Verdict,
    Welcome,
    WireError,
    decode,
    encode,
)

logger = logging.getLogger("caboose")

POLL_SECONDS = 0.5
SHORT_POLL_SECONDS = 0.09
"""While steps are short: a report is sent within 100 ms."""
ALERT_SECONDS = 0.05
"""While an incident is open."""
IDLE_SECONDS = 2.0
"""Without a report of a short step for so long, short steps are over for now."""
FAR_OUT = 10.0
"""A loss of more than this many times the largest since the turn before last is sent at once."""
HEARTBEAT_SECONDS = 2.0
REFUSED_SECONDS = 60.0
FLUSH_SECONDS = 0.4
MAX_HEARD = 1000
"""Messages of the daemon that one turn takes in; a daemon has no use for more, and the rest is discarded."""
MAX_WAITING = 5_000
"""Messages of the daemon that one turn reads; a daemon that sends more is a flood."""
MAX_QUEUED = 1000
MAX_QUEUED_ROWS = 10_000
"""About 3 MB: with steps of 2 ms, what 20 s without a daemon come to."""
UNANSWERED_SECONDS = 5.0
"""Time without a connection after which the user is warned."""


class Thin(Protocol):
    """What makes the rows of thin steps, and is interrupted where they would have to wake the sender."""

    loss_limit: float
    is_interrupted: bool


class Sender:
    """Owns the connection and the queue in front of it."""

    def __init__(
        self,
        endpoint: str,
        hello: Hello,
        heartbeat: Callable[[], Heartbeat],
        *,
        curve: CurveKeys | None = None,
        max_queued: int = MAX_QUEUED,
        on_message: Callable[[Command | Terms | Verdict], None] | None = None,
        with_heartbeat: Callable[[bool], Message | None] | None = None,
        on_unanswered: Callable[[], None] | None = None,
        totals: RunTotals | None = None,
    ) -> None:
        """`with_heartbeat` may return a message to follow a heartbeat; it is given whether a Hello was sent since."""
        self._on_message = on_message
        self._with_heartbeat = with_heartbeat
        self._on_unanswered = on_unanswered
        self._warns_after = time.monotonic() + UNANSWERED_SECONDS
        self._is_fresh = True
        self._endpoint = endpoint
        self._hello_frames = encode(hello)
        self._heartbeat = heartbeat
        self._curve = curve
        self._max_queued = max_queued
        self._queue: Queue = deque()
        self._outbox = Outbox(self._queue, self._log_once, totals)
        self._poll_seconds = SHORT_POLL_SECONDS
        self._last_report = self._last_short = time.monotonic()
        self._poll_was_short = True
        """Whether steps were short when the last report came."""
        self._is_dozing = False
        """Whether the next report is to wake it."""
        self._is_woken = False
        """Set by the training thread; until it is reset, nothing wakes it again."""
        self._woken_at: float | None = None
        self._is_alert = False
        self._num_connects = 0
        self.loss_limit = sys.float_info.max
        """A loss beyond it, as a magnitude, is sent at once."""
        self._thin: Thin | None = None
        self._last_run: ThinRun | None = None
        self._num_rows = 0
        """Rows of the runs before the last, less those that were dropped."""
        self._largest = [0.0, 0.0]
        """Largest loss, as a magnitude, of the turn before and of this one."""
        self._is_hello_due = True
        self._next_hello: Callable[[], Hello] | None = None
        self._quiet_until = 0.0
        self._next_heartbeat = 0.0
        self._bye: Bye | None = None
        self._closing = threading.Event()
        self._waker = Waker()
        self._logged: set[str] = set()
        self._num_dropped = 0
        self.cpu_seconds = 0.0
        """CPU time of the sender's thread so far; part of the agent's cost."""
        self._thread = threading.Thread(target=self._run, name="caboose-sender", daemon=True)

    def start(self) -> None:
        """Starts to connect; returns at once, whether or not there is a daemon."""
        threads.start(self._thread)

    @property
    def num_dropped(self) -> int:
        """Reports that were dropped so far."""
        return self._num_dropped + self._outbox.num_failed

    @property
    def num_queued(self) -> int:
        """Reports and other messages that are not sent yet."""
        return self._outbox.num_left + sum(
            [item.num_left if isinstance(item, ThinRun) else 1 for item in [*self._queue]]
        )

    def put(self, item: Outgoing | ThinRun) -> None:
        """Queues a message. Called on the training thread: never blocks, drops the oldest when full."""
        queue = self._queue
        if len(queue) >= self._max_queued:
            self._drop_oldest()
        queue.append(item)
        if self._is_dozing:
            self._is_dozing = False
            self._waker.nudge()

    def put_run(self, run: ThinRun, thin: Thin) -> None:
        """Queues a run with its first row, or just before; the run that was put before it is over."""
        if self._last_run is not None:
            self._num_rows += len(self._last_run.rows)
        self._last_run = run
        while self._num_rows - self._outbox.num_rows > MAX_QUEUED_ROWS - MAX_ROWS and self._drop_oldest():
            pass
        self._thin = thin
        thin.loss_limit = self.loss_limit
        self.put(run)

    def let_go(self) -> None:
        """No more thin steps come; what makes them reaches the model."""
        self._thin = None

    def _drop_oldest(self) -> bool:
        """Makes room; returns whether there was anything to drop."""
        try:
            dropped = self._queue.popleft()
        except IndexError:  # the sender emptied it in between
            return False
        if isinstance(dropped, ThinRun):
            self._num_dropped += len(dropped.rows)
            self._num_rows -= len(dropped.rows)
            return True
        self._num_dropped += 1
        hello = getattr(dropped, "hello", None)
        if hello is not None:  # out of order then, but never lost
            self.introduce_again(lambda: hello)
        return True

    def note_loss(self, loss: float | None) -> None:
        """The loss of the report that was put last, where it is on the host: trouble is not to wait."""
        if loss is not None and not abs(loss) <= self.loss_limit:  # also if it is NaN
            self.hurry()

    def hurry(self) -> None:
        """What is queued is sent at once. Called on the training thread: never waits for a lock."""
        if not self._is_woken:
            self._is_woken = True
            self._waker.nudge()

    def set_alert(self, is_alert: bool) -> None:
        """Whether an incident is open: reports and commands are not to wait. Called on the sender's thread."""
        if is_alert and not self._is_alert:
            self._next_heartbeat = 0.0  # with the snapshots taken since the last one
        self._is_alert = is_alert

    def introduce_again(self, hello: Callable[[], Hello]) -> None:
        """Sends a new Hello before anything else; it is built on the sender's thread."""
        self._next_hello = hello

    def close(self, bye: Bye, timeout: float = 0.9) -> None:
        """Sends the Bye, gives queued messages a moment, and ends the thread."""
        self._bye = bye
        self._closing.set()
        self._waker.wake()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def totals(self) -> RunTotals:
        """What the steps of this run add up to; once the thread has ended, all that are left are counted too."""
        if self._closing.is_set() and not self._thread.is_alive():
            self._outbox.count_rest()
        return self._outbox.totals

    def abandon(self) -> None:
        """For a forked child, which has neither the thread nor the socket."""
        self._queue.clear()
        self._closing.set()

    def _run(self) -> None:
        while True:
            problem = resources.shortage()
            if not problem:
                try:
                    self._serve()
                except Exception as error:  # noqa: BLE001 - a dead sender must not become a traceback in someone's job
                    problem = repr(error)
            if problem:
                self._log_once(f"nothing is reported for now, {problem}. It is tried again")
            if self._closing.wait(resources.RETRY_SECONDS if problem else 0.0):
                return

    def _serve(self) -> None:
        """Reports until the run closes."""
        with zmq.Context() as context:
            while True:
                self._is_hello_due = True
                try:
                    with Connection(context, self._endpoint, self._curve, self._waker) as connection:
                        self._report(connection)
                    if self._closing.is_set():
                        return
                except Flooded as flood:
                    if not flood.is_slow:
                        self._log_once(f"the connection is closed for {REFUSED_SECONDS:g} s: {flood}", daemon_log.log)
                    if self._closing.wait(0.0 if flood.is_slow else REFUSED_SECONDS):
                        return

    def _report(self, connection: Connection) -> None:
        """Until the run closes, or the connection is lost for good."""
        while not self._closing.is_set():
            connection.wait(ALERT_SECONDS if self._is_alert else min(self._poll_seconds, POLL_SECONDS))
            if not self._closing.is_set():
                if connection.is_lost:
                    return
                self._turn(connection)
                self._pace(time.monotonic())
                self.cpu_seconds = time.thread_time()
        self._check_answered(connection, is_due=True)
        deadline = time.monotonic() + FLUSH_SECONDS
        while not self._flush(connection) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._listen(connection)  # the verdict that came since the last turn is the one to show
        if self._bye is not None:
            connection.send(encode(self._bye))

    def _turn(self, connection: Connection) -> None:
        if connection.num_connects != self._num_connects:
            self._num_connects = connection.num_connects
            self._outbox.allow()  # another daemon may answer now
            self._is_alert = False
        self._listen(connection)
        now = time.monotonic()
        self._check_answered(connection, is_due=now >= self._warns_after)
        if now < self._quiet_until:
            return
        if self._flush(connection) and now >= self._next_heartbeat and connection.send(encode(self._heartbeat())):
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            self._send_with_heartbeat(connection)

    def _pace(self, now: float) -> None:
        """After a turn: how long it sleeps, and what wakes it."""
        outbox = self._outbox
        if self._is_woken and self._woken_at is None:
            self._woken_at = now
        elif self._woken_at is not None and now - self._woken_at >= POLL_SECONDS:
            self._woken_at, self._is_woken = None, False
        if outbox.num_short:
            self._largest = [self._largest[1], outbox.largest_loss]
            self.loss_limit = FAR_OUT * max(self._largest) or sys.float_info.max
            if (thin := self._thin) is not None:
                thin.loss_limit = self.loss_limit
            outbox.largest_loss = 0.0
        if outbox.num_short or outbox.num_long:
            is_back = now - self._last_report > IDLE_SECONDS
            if outbox.num_short or (is_back and self._poll_was_short):  # a step with a pause in it is long
                self._last_short = now
            self._poll_was_short = now - self._last_short <= IDLE_SECONDS
            self._poll_seconds = SHORT_POLL_SECONDS if self._poll_was_short else POLL_SECONDS
            # One report a turn: the steps are longer than the pause, and waking for each costs no more turns.
            self._is_dozing = not self._poll_was_short and now - self._last_report >= POLL_SECONDS
            outbox.num_short = outbox.num_long = 0
            self._last_report = now
        elif self._poll_seconds < POLL_SECONDS and now - self._last_report > IDLE_SECONDS:
            self._poll_seconds = POLL_SECONDS
            self._is_dozing = True
            if (thin := self._thin) is not None:
                thin.is_interrupted = True  # the next step is a report, which wakes it

    def _check_answered(self, connection: Connection, *, is_due: bool) -> None:
        """Once: warns if nothing answers at the endpoint."""
        if self._on_unanswered is not None and (is_due or connection.is_connected):
            warn, self._on_unanswered = self._on_unanswered, None
            if not connection.is_connected:
                warn()

    def _send_with_heartbeat(self, connection: Connection) -> None:
        message = self._with_heartbeat(self._is_fresh) if self._with_heartbeat is not None else None
        if message is not None and connection.send(encode(message)):
            self._is_fresh = False

    def _flush(self, connection: Connection) -> bool:
        """Sends what is ready; False while the daemon does not accept it."""
        builder, self._next_hello = self._next_hello, None
        if builder is not None:
            self._hello_frames = encode(builder())
            self._is_hello_due = True
        if self._is_hello_due:
            if not connection.send(self._hello_frames):
                return False
            self._is_hello_due = False
            self._is_fresh = True
            self._outbox.allow()  # single reports, until the daemon announces it again
        while (frames := self._outbox.frames(self._num_dropped)) is not None:
            if not connection.send(frames):
                return False
            if self._outbox.sent() is not None:
                self._hello_frames, self._is_fresh = frames, True
                self._outbox.allow()
        return True

    def _listen(self, connection: Connection) -> None:
        """Reads all that has come: libzmq would keep what is left without a limit."""
        for number in range(MAX_WAITING):
            try:
                frames = connection.receive()
                if frames is None:
                    return
                if number < MAX_HEARD:
                    self._hear(decode(frames))
            except WireError as error:
                self._log_once(f"the daemon sent an unreadable message: {error.reason}", daemon_log.log)
        raise Flooded(f"{MAX_WAITING} messages at once")

    def _hear(self, message: Message) -> None:
        if isinstance(message, HelloRequest):
            self._is_hello_due = True
            self._outbox.allow()
        elif isinstance(message, Welcome):
            self._outbox.allow(message.max_reports, message.max_run)
        elif isinstance(message, Command | Terms | Verdict):
            if self._on_message is not None:
                self._on_message(message)
        elif isinstance(message, Refused):
            self._log_once(f"the daemon refuses this rank ({message.reason}): {message.detail}", daemon_log.log)
            if message.reason == "type":  # an older daemon than the one that announced batches
                self._outbox.allow()
            if message.reason in ("version", "duplicate_job", "identity", "capacity"):
                self._quiet_until = time.monotonic() + REFUSED_SECONDS
                self._is_hello_due = True

    def _log_once(self, text: str, log: Callable[..., None] = logger.log) -> None:
        if text not in self._logged and len(self._logged) < 100:
            self._logged.add(text)
            log(logging.WARNING, "caboose: %s", text)
