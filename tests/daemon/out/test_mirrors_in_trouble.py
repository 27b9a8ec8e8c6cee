"""A mirror that is slow, large or broken delays nobody, and what it could not take is counted."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.jobs.state import ExportCounts
from caboose_daemon.out.export.exports import Exports
from caboose_daemon.out.export.items import EDGES, Curves, histograms
from caboose_daemon.out.export.mirror import MAX_BOOKS, MAX_OPEN, Mirror
from caboose_daemon.out.export.runs import MirrorRun
from caboose_daemon.out.export.tensorboard import EventFile
from caboose_daemon.out.outbox import ExportOutbox
from support.mirrored import MirroredCore
from support.processes import wait_until
from support.scenario import scenario

PATIENCE = 30.0
SHARES = [0.0] * 10 + [0.5, 0.25] + [0.0] * 20 + [0.25, 0.5]
"""A histogram row: half in [2^-14, 2^-13), a quarter in the next, a quarter zeros, half negative."""


class Pen:
    """A writer that waits for its ink, or breaks."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.has_ink = threading.Event()
        self.is_waiting = threading.Event()
        self.num_closed = 0
        self.is_broken = False
        self.num_histograms = 0

    def scalars(self, step: int, time: float, values: Any) -> None:
        self.is_waiting.set()
        self.has_ink.wait(PATIENCE)
        if self.is_broken:
            raise OSError(28, "No space left on device")
        self.steps.append(step)

    def histograms(self, step: int, time: float, counts: Any) -> None:
        self.num_histograms += 1

    def text(self, step: int, time: float, name: str, text: str) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.num_closed += 1


@pytest.fixture
def pen() -> Iterator[Pen]:
    made = Pen()
    yield made
    made.has_ink.set()


def penned(pen: Pen, tmp_path: Path, capacity: int = 2000) -> tuple[Exports, ExportCounts]:
    tally = ExportCounts()
    mirror = Mirror("pen", tmp_path, lambda directory, run: pen, tally)
    return Exports(mirrors=[ExportOutbox(mirror, tally, capacity=capacity)], curves=Curves(1, 0.0)), tally


def test_a_mirror_that_blocks_delays_no_step(pen: Pen, tmp_path: Path) -> None:
    exports, tally = penned(pen, tmp_path, capacity=50)
    exports.start()
    story = scenario(ranks=2, core=MirroredCore(exports)).healthy(1)
    assert pen.is_waiting.wait(PATIENCE)

    story.healthy(200)

    assert story.job.num_steps == 201, "all are judged, though nothing has been written"
    assert pen.steps == []
    assert tally.num_dropped == 150
    pen.has_ink.set()
    exports.close(PATIENCE)
    assert pen.steps == [1, *range(152, 202)], "the newest are written"


def test_only_a_few_histograms_wait_for_a_mirror_that_blocks(pen: Pen, tmp_path: Path) -> None:
    exports, tally = penned(pen, tmp_path)
    exports.start()
    story = scenario(ranks=2, core=MirroredCore(exports))
    story.sampled(30, grad_histogram=[SHARES] * 4)
    pen.has_ink.set()
    exports.close(PATIENCE)

    assert pen.steps == list(range(1, 31))
    assert 8 <= pen.num_histograms <= 9, "the last eight, and the one that was being written"
    assert tally.num_withdrawn == 30 - pen.num_histograms


def test_a_mirror_that_breaks_is_opened_again(pen: Pen, tmp_path: Path) -> None:
    exports, tally = penned(pen, tmp_path)
    pen.has_ink.set()
    pen.is_broken = True
    exports.start()
    story = scenario(ranks=1, core=MirroredCore(exports)).healthy(3)
    assert wait_until(lambda: tally.num_failed == 3, PATIENCE)
    assert pen.num_closed == 3
    pen.is_broken = False
    story.healthy(2)
    exports.close(PATIENCE)

    assert pen.steps == [4, 5]


def test_of_many_jobs_only_some_files_are_open(tmp_path: Path) -> None:
    opened: list[Pen] = []

    def open_pen(directory: Path, run: MirrorRun) -> Pen:
        opened.append(Pen())
        opened[-1].has_ink.set()
        return opened[-1]

    mirror = Mirror("pens", tmp_path, open_pen, ExportCounts())
    for number in range(MAX_OPEN + 3):
        story = scenario(ranks=1, job=f"job-{number}").healthy(1)
        item = Curves().pick(story.job, story.job.recent[-1])
        assert item is not None
        mirror.take(item)

    assert sum(pen.num_closed for pen in opened) == 3
    mirror.close()
    assert [pen.num_closed for pen in opened] == [1] * (MAX_OPEN + 3)


def test_jobs_without_end_are_forgotten_and_found_again_on_disk(tmp_path: Path) -> None:
    def open_pen(directory: Path, run: MirrorRun) -> Pen:
        pen = Pen()
        pen.has_ink.set()
        return pen

    mirror = Mirror("pens", tmp_path, open_pen, ExportCounts())
    first = scenario(ranks=1, job="job-0").healthy(2)
    summaries = list(first.job.recent)
    story = scenario(ranks=1, job="job-0").healthy(1)
    for number in range(MAX_BOOKS + 1):
        item = Curves().pick(story.job, story.job.recent[-1])
        assert item is not None
        mirror.take(replace(item, job=f"job-{number}"))
    assert len(mirror._books) == MAX_BOOKS
    assert "job-0" not in mirror._books

    item = Curves().pick(first.job, summaries[-1])
    assert item is not None
    mirror.take(item)
    mirror.close()

    assert [path.name for path in (tmp_path / "job-0").glob("run-*")] == ["run-1"], "it goes on in its run"


def test_two_files_of_one_second_are_two_files(tmp_path: Path) -> None:
    for _ in range(2):
        file = EventFile(tmp_path, MirrorRun("train", 1, 1, "x"))
        file.scalars(1, 1.0, {"a": 1.0})
        file.close()

    assert len(list(tmp_path.iterdir())) == 2


def test_histograms_of_a_step_that_was_taken_back_are_none() -> None:
    story = scenario(ranks=2).sampled(grad_histogram=[SHARES] * 4)
    item = Curves(1, 0.0).pick(story.job, story.job.recent[-1])
    assert item is not None
    assert item.sample is not None
    assert item.sample.histograms is not None
    counts = histograms(item.sample.histograms)
    assert counts is not None
    assert all(len(count) == len(EDGES) - 1 for count in counts.values())

    item.sample.histograms.step = None

    assert histograms(item.sample.histograms) is None
