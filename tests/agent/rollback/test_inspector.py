"""The thread that checks snapshots ends with the run: no thread may be killed inside a task when the process exits."""

import threading

from caboose.rollback.inspector import Inspector


def test_closing_waits_for_the_task_at_hand_and_drops_the_others() -> None:
    inspector, has_begun, ended = Inspector(), threading.Event(), []

    def long() -> None:
        has_begun.set()
        threading.Event().wait(0.8)  # as a large snapshot takes
        ended.append("long")

    inspector.put(long)
    for _ in range(5):
        inspector.put(lambda: ended.append("never"))
    assert has_begun.wait(5)
    inspector.close()

    assert ended == ["long"]
    assert "caboose-snapshots" not in {thread.name for thread in threading.enumerate()}
