"""A run as a TensorBoard event file.

Written with tensorboardX's synchronous writer: its `SummaryWriter` uses a thread and a queue, which hide a
full disk.
"""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from caboose_daemon.out.export.items import EDGES, Floats
from caboose_daemon.out.export.runs import MirrorRun

_numbers = itertools.count(1)


class EventFile:
    """One event file in a run's directory; a reopened run gets a second one, as TensorBoard expects."""

    def __init__(self, directory: Path, run: MirrorRun) -> None:
        # Two writers in one second need different files, which are read in name order.
        suffix = f".{next(_numbers):08}.{os.getpid()}"
        self._file = EventsWriter(str(directory / "events"), filename_suffix=suffix)

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """One event with all numbers of a step."""
        made = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._write(step, time, Summary(value=made))

    def histograms(self, step: int, time: float, counts: Mapping[str, Floats]) -> None:
        """Histograms over powers of two."""
        middles = (EDGES[:-1] + EDGES[1:]) / 2
        for name, count in counts.items():
            made = summary.histogram_raw(
                name,
                min=float(EDGES[0]),
                max=float(EDGES[-1]),
                num=float(count.sum()),
                sum=float((count * middles).sum()),
                sum_squares=float((count * np.square(middles)).sum()),
                bucket_limits=EDGES[1:].tolist(),
                bucket_counts=count.tolist(),
            )
            self._write(step, time, made)

    def text(self, step: int, time: float, name: str, text: str) -> None:
        """Markdown, in the TEXT tab."""
        self._write(step, time, summary.text(name, text))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, step: int, time: float, made: Summary) -> None:
        self._file.write_event(Event(wall_time=time, step=step, summary=made))
